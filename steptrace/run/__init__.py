"""Running a plan on JAX: executor, trainer, rollout, data.

The room is also the function: ``steptrace.run(program, bind=...)`` runs a program, ``steptrace.run.trainer`` is a
room in it. Python sets the sub-package as the attribute ``run`` of ``steptrace`` whenever anything of it is
imported, so the module itself is made callable.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that runs a program when called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `steptrace.run.api.run`."""
        from steptrace.run.api import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
