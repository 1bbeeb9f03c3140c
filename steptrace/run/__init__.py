"""Running a plan on JAX: executor, trainer, rollout, data.

The room is also the function: ``steptrace.run(program, bind=...)`` runs a program, ``steptrace.run.trainer`` is a
room in it. Python sets the sub-package as the attribute ``run`` of ``steptrace`` whenever anything of it is
imported, so the module itself is made callable. What it shows of itself, to `help` and `inspect`, is the function.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that runs a program when called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `steptrace.run.api.run`."""
        from steptrace.run.interrupts import noted

        with noted():  # JAX is imported in here, which takes long
            from steptrace.run.api import run
            from steptrace.run.called import check_call

            check_call(run, args, kwargs)
            return run(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's."""
        from steptrace.run.api import run

        return inspect.signature(run)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The function's, below its signature; `help` shows it for the module."""
        from steptrace.run.api import run
        from steptrace.run.called import shown

        return shown(run)


sys.modules[__name__].__class__ = _Callable
