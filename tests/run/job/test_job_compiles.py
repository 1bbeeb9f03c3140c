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
    watch.log(0, {})
    watch.log(1, {})
    first = {"trainer.fwd_bwd": 1, "trainer.update": 1, "rollout.generate": 1}
    assert watch.counts() == {"after_first_step": first, "at_end": first, "again": []}


def test_control_leaves_that_compile_again_or_anew_are_named():
    trainer = Part(fwd_bwd=1, update=1)
    watch = CompileWatch({"trainer": trainer})
    watch.log(0, {})
    trainer.traces = {"fwd_bwd": 2, "update": 1, "old_logps": 1}
    assert watch.counts()["again"] == ["trainer.fwd_bwd", "trainer.old_logps"]
