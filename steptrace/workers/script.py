"""The driver's script, whose definitions a worker may need: loaded once, and only when one is asked for."""

from __future__ import annotations

import runpy
import sys
import types

from steptrace.diag.loc import Loc
from steptrace.diag.workers import WorkerMainError

_LOADED_AS = "__mp_main__"
"""What the driver's script is called in a worker, as `multiprocessing` calls it: its `__main__` guard holds."""
_drivers: list[tuple[str, str]] = []
_loading: list[str] = []


def here() -> tuple[str, str]:
    """The script of this process: its module when it was started by ``-m``, and its file; "" for none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return getattr(spec, "name", None) or "", getattr(main, "__file__", None) or ""


def serves(module: str, file: str) -> None:
    """This process is a worker of the driver with that script."""
    _drivers[:] = [(module, file)]


def module_of(name: str) -> str:
    """The module in which this process finds what its sender found in ``name``."""
    if name not in ("__main__", _LOADED_AS):
        return name
    if not _drivers:
        return "__main__"
    if _LOADED_AS not in sys.modules:
        _load(*_drivers[0])
    return _LOADED_AS


def refuse_while_loading(loc: Loc | None) -> None:
    """Raise when a worker is loading the script that asks for another worker.

    Raises:
      WorkerMainError: it would go on for ever.
    """
    if _loading:
        raise WorkerMainError(
            f"`{_loading[0]}` starts a worker when it is loaded, and a worker is loading it",
            loc=loc,
            help='put what the script does under `if __name__ == "__main__":`',
        )


def _load(module: str, file: str) -> None:
    _loading.append(file)
    try:
        run = runpy.run_module if module else runpy.run_path
        names = run(module or file, run_name=_LOADED_AS)
    finally:
        _loading.clear()
    loaded = types.ModuleType(_LOADED_AS)
    loaded.__dict__.update(names)
    sys.modules[_LOADED_AS] = loaded
