"""How long a step takes to be traced, derived, checked and validated; part of `steptrace bench compile`."""

from __future__ import annotations

import subprocess
import sys
import time

TASKS = ("import", "derive", "validate")
"""What is measured, in its order."""

_IMPORT = "import time; begin = time.process_time(); import steptrace; print(time.process_time() - begin)"


def step_times(program: str = "grpo{staleness=1}", pipeline: str = "pipelined-boundary") -> dict[str, float]:
    """Seconds of processor time for a step, each measured once, with nothing remembered of an earlier call.

    Args:
      program: the program as on the command line.
      pipeline: what is derived of it.

    Returns:
      ``import``: of the package, in a process of its own; ``derive``: the program traced, the pipeline run on it with
      the checks after each pass, and structure and edges of the schedule checked once more; ``validate``: the schedule
      run beside its source in full, all flags of its windows included.
    """
    from steptrace.check import check_schedule
    from steptrace.check.validation import validate
    from steptrace.ir.verify import verify
    from steptrace.lang.reference import resolve
    from steptrace.passes import run_pipeline

    shown = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True).stdout
    begin = time.process_time()
    schedule = run_pipeline(resolve(program), pipeline).schedule
    verify(schedule.program)
    check_schedule(schedule.program, schedule.source)
    derived = time.process_time()
    report = validate(schedule.program, schedule.source)
    assert report.ok, "what passes derive is equal to its source"
    return {"import": float(shown), "derive": derived - begin, "validate": time.process_time() - derived}
