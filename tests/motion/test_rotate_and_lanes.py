"""`rotate` and `move_to_lane`: ops run steps ahead, and on other lanes."""

from motion_views import changed, edge_of, plain, refusal, step

from steptrace.motion import Schedule, guard, hoist, move_to_lane, peel, rename, rotate, split

FEED = ("dispatch", "take", "reward", "advantages", "pack")


def boundary() -> Schedule:
    """Take-ahead by hand, with the first micro-batch ready to be staged."""
    schedule = peel(plain(), "micro_batches").schedule
    group = (*FEED, "next_mb.first", "ref_logps.first")
    schedule = move_to_lane(schedule, group, lane="packer").schedule
    schedule = rename(schedule, "host", capacity=2).schedule
    schedule = rotate(schedule, group, above="on_step_begin").schedule
    return split(schedule, "fwd_bwd.first", law="stage").schedule


def test_a_dispatch_runs_ahead_at_the_end_of_the_step():
    begun = plain()
    moved = rotate(begun, "dispatch")
    assert changed(begun, moved) == ["- dispatch", "+ dispatch shift=+1"]
    assert step(moved.schedule)[-1] == "dispatch shift=+1"
    slack = {str(one.edge): one.slack for one in moved.obligation.edges}
    assert slack["sync_weights -> dispatch (2) raw rollout.weights[k-2]"] == 1


def test_ahead_and_back_again():
    begun = plain()
    there = rotate(begun, "dispatch", above="take").schedule
    back = rotate(there, "dispatch", ahead=-1, above="take").schedule
    assert back.program == begun.program


def test_a_dispatch_two_ahead_of_weights_one_behind_is_refused():
    error = refusal(lambda: rotate(plain(), "dispatch", ahead=2, above="take"))
    assert (error.code, edge_of(error)) == ("ST204", "sync_weights -> dispatch (2)")
    assert "staleness=2" in error.help


def test_without_staleness_the_dispatch_stays_behind_the_sync():
    error = refusal(lambda: rotate(plain("grpo"), "dispatch", above="take"))
    assert error.message == "`dispatch` of step k+1 would run before `sync_weights` of step k"
    assert "staleness=1" in error.help
    assert step(rotate(plain("grpo"), "dispatch").schedule)[-1] == "dispatch shift=+1"


def test_running_behind_is_refused():
    error = refusal(lambda: rotate(plain(), "log", ahead=-1))
    assert error.code == "ST208"


def test_a_take_must_not_hold_up_the_boundary():
    error = refusal(lambda: rotate(plain(), FEED, above="on_step_begin"))
    assert error.code == "ST207"
    assert error.message == "`take` of step k+1 would hold up the step before it on lane host"


def test_on_a_lane_of_its_own_it_may_wait():
    begun = plain()
    there = move_to_lane(begun, FEED, lane="packer")
    assert changed(begun, there) == [*(f"- {op}" for op in FEED), *(f"+ {op} lane=packer" for op in FEED)]
    moved = rotate(there.schedule, FEED, above="on_step_begin")
    assert step(moved.schedule)[:6] == [*(f"{op} lane=packer shift=+1" for op in FEED), "on_step_begin"]


def test_more_steps_ahead_than_the_memory_holds_are_refused():
    begun = rename(move_to_lane(plain("grpo{staleness=3}"), FEED, lane="packer").schedule, "host", capacity=2).schedule
    assert rotate(begun, FEED, above="on_step_begin").obligation.discharged == "slack"
    one_lane = rename(plain("grpo{staleness=3}"), "host", capacity=1).schedule
    error = refusal(lambda: rotate(one_lane, ("dispatch", "take"), above="free"))
    assert (error.code, edge_of(error)) == ("ST206", "free -> take (1)")


def test_ops_of_the_loop_run_micro_batches_ahead():
    begun = plain()
    moved = rotate(begun, ("next_mb", "ref_logps"), above="fwd_bwd")
    assert changed(begun, moved) == ["- next_mb", "- ref_logps", "+ next_mb shift=+1", "+ ref_logps shift=+1"]
    assert moved.obligation.claim.endswith("1 micro-batch ahead, above `fwd_bwd`")


def test_a_training_call_ahead_in_its_loop_is_refused():
    error = refusal(lambda: rotate(plain(), "fwd_bwd"))
    assert error.code == "ST204"


def test_shipping_goes_above_the_update_and_the_shipped_call_does_not():
    begun = boundary()
    moved = rotate(begun, "stage_fwd_bwd", above="update")
    assert changed(begun, moved) == ["- stage_fwd_bwd at(m=0)", "+ stage_fwd_bwd at(m=0) shift=+1"]
    error = refusal(lambda: rotate(moved.schedule, "fwd_bwd_staged.first", above="update"))
    assert (error.code, edge_of(error)) == ("ST204", "update -> fwd_bwd_staged.first (1)")
    error = refusal(lambda: rotate(moved.schedule, "fwd_bwd_staged.first", above="sync_weights"))
    assert (error.code, edge_of(error)) == ("ST204", "sync_weights -> fwd_bwd_staged.first (1)")
    sent = rotate(moved.schedule, "fwd_bwd_staged.first", above="log").schedule
    assert "fwd_bwd_staged.first: fwd_bwd_staged at(m=0) shift=+1 when(%staged)" in step(sent)


def test_lanes_that_would_wait_for_one_another_are_refused():
    """The log waits for the metrics, they wait for the update, and that stands behind the log on its lane."""
    begun = move_to_lane(plain(), ("update", "log"), lane="io").schedule
    error = refusal(lambda: hoist(begun, "log", above="update"))
    assert error.code == "ST205"
    assert error.message == "lanes io and host would wait for one another for ever"
    told = " | ".join(note.text for note in error.notes)
    assert "lane io runs `log` of step k before `update` of step k" in told
    assert "`get_metrics` of step k waits for `update` of step k" in told


def test_a_lane_that_no_text_could_name_is_refused():
    error = refusal(lambda: move_to_lane(plain(), "commit", lane="packr"))
    assert (error.code, error.message) == ("ST281", "`packr` is no lane")
    assert error.help.startswith("the lanes are host, packer, trainer,")


def test_arguments_that_mean_nothing():
    assert refusal(lambda: rotate(plain(), "dispatch", ahead=0)).code == "ST281"
    assert refusal(lambda: rotate(plain(), "micro_batches")).message == (
        "loop `micro_batches` cannot run ahead of its step as a whole"
    )
    assert refusal(lambda: move_to_lane(plain(), "dispach", lane="packer")).code == "ST215"


def test_a_call_that_waits_for_packing_must_not_hold_up_the_boundary():
    begun = peel(plain(), "micro_batches").schedule
    group = (*FEED, "next_mb.first", "ref_logps.first")
    begun = move_to_lane(begun, group, lane="packer").schedule
    begun = rotate(begun, group, above="on_step_begin").schedule
    error = refusal(lambda: rotate(begun, "fwd_bwd.first", above="log"))
    assert error.code == "ST207"
    assert error.notes[0].text == "`fwd_bwd.first` uses what `take` has to wait for"
    guarded = guard(begun, "fwd_bwd.first").schedule
    assert rotate(guarded, ("poll_packed.first", "fwd_bwd.first.early"), above="log")
    error = refusal(lambda: rotate(guarded, ("poll_packed.first", "fwd_bwd.first"), above="log"))
    assert error.code == "ST207"
