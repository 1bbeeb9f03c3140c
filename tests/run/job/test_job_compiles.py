from steptrace.run.job.compiles import CompileWatch


class Part:
    def __init__(self, **traces):
        self.traces = traces

    def info(self):
        return {"compiles": dict(self.traces)}


def test_leaves_that_stand_still_after_the_first_step():
    trainer = Part(fwd_bwd=0)
    watch = CompileWatch({"trainer": trainer, "rollout": Part(generate=1)})
    trainer.traces = {"fwd_bwd": 1, "update": 1}
    watch.phases(0, {})
    watch.phases(1, {})
    first = {"trainer.fwd_bwd": 1, "trainer.update": 1, "rollout.generate": 1}
    assert watch.counts() == {"after_first_step": first, "at_end": first, "again": []}


def test_control_leaves_that_compile_again_or_anew_are_named():
    trainer = Part(fwd_bwd=1, update=1)
    watch = CompileWatch({"trainer": trainer})
    watch.phases(0, {})
    trainer.traces = {"fwd_bwd": 2, "update": 1, "old_logps": 1}
    assert watch.counts()["again"] == ["trainer.fwd_bwd", "trainer.old_logps"]


def test_a_step_that_is_only_logged_tells_nothing():
    """A resumed run logs the step of its checkpoint before anything of it is compiled."""
    trainer = Part()
    watch = CompileWatch({"trainer": trainer})
    watch.log(3, {})
    trainer.traces = {"fwd_bwd": 1}
    watch.log(4, {})
    watch.phases(4, {})
    assert watch.counts()["again"] == []
    assert watch.counts()["after_first_step"] == {"trainer.fwd_bwd": 1}
