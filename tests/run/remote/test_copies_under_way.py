"""A copy of the weights that another process was sent for is not waited for; what comes of it is told where it was."""

from __future__ import annotations

import pytest
from remote_parts import Failing, bind, digests, shared_workers

import steptrace
from steptrace.diag.binding import PartResultError
from steptrace.ir import ops_of
from steptrace.run.remote.hosting import renew
from steptrace.run.remote.line import Line
from steptrace.workers import remote

PROGRAM = "grpo{prompts=4, samples=3, staleness=1}"
PIPELINES = ("async-weight-sync", "pipelined-boundary,async-weight-sync", "async-everything")
SEEN: list[int] = []


class Copying(Failing):
    """Fails at the copy of a step's weights, or gives what is no copy."""

    def copy_weights(self):
        made = super().copy_weights()
        if self.way != "odd":
            self._fail("copy_weights", self.applied)
        elif self.applied == self.step:
            return {"weights": made[0]}
        return made


@steptrace.op(takes=("version",), reads=[], writes=["log"])
def stamped(version):
    """What is read of a copy."""
    assert type(version) is int
    SEEN.append(version)


@steptrace.program
def stamping(step):
    step.dispatch(prompts=4, samples=3)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    version = step.sync_weights()
    step.commit()
    stamped(version)
    step.log(metrics)


@pytest.fixture(scope="module")
def shared():
    with shared_workers(trainer=remote(Copying)) as parts:
        yield parts


@pytest.fixture
def workers(shared):
    renew(shared)
    shared["trainer"].reset()
    return shared


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that a lane waits for in a run, as they are made."""
    calls: list[str] = []
    plain = Line.call

    def call(line: Line, verb: str, *args, **given):
        calls.append(verb)
        return plain(line, verb, *args, **given)

    monkeypatch.setattr(Line, "call", call)
    return calls


def run(bound, program=PROGRAM, **options):
    return steptrace.run(program, bound, steps=4, stall_s=60.0, target="process", **options)


def said(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ()), *map(str, getattr(error, "notes", ()))])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_no_lane_waits_for_a_copy_and_nothing_changes(workers, waited, pipeline):
    made = run(workers, pipeline=pipeline)
    assert digests(made) == digests(steptrace.run(PROGRAM, bind(), steps=4))
    assert "copy_weights" not in waited


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_copy_that_fails_ends_the_run_with_its_error_and_where_it_was(workers, pipeline):
    workers["trainer"].arm("copy_weights", 2)
    with pytest.raises(ZeroDivisionError, match="what was asked for") as caught:
        run(workers, pipeline=pipeline)
    words = "in `copy_weights` of step 1, lane host: the call of `copy_weights`"
    assert said(caught.value).count(words) == 1  # whichever lanes have waited for it


def test_a_copy_that_gets_lost_is_no_round_that_got_lost(workers):
    """The trainer itself says so: there is nothing that could be sent again."""
    workers["trainer"].arm("copy_weights", 2, "lost")
    with pytest.raises(TimeoutError, match="what was asked for") as caught:
        run(workers, pipeline="async-weight-sync")
    assert "in `copy_weights` of step 1" in said(caught.value)


def test_what_is_no_copy_is_refused_with_the_line_of_the_copy(workers):
    workers["trainer"].arm("copy_weights", 2, "odd")
    with pytest.raises(PartResultError, match=r"returned .*, not \(weights, version\)") as caught:
        run(workers, pipeline="async-weight-sync")
    (sync,) = [op for op in ops_of(steptrace.resolve(PROGRAM).body) if op.kind == "sync_weights"]
    assert caught.value.loc == sync.loc


def test_control_a_copy_whose_version_is_read_is_waited_for(workers, waited):
    SEEN.clear()
    run(workers, stamping, pipeline="async-weight-sync")
    assert SEEN == [1, 2, 3, 4]
    assert waited.count("copy_weights") == 4
