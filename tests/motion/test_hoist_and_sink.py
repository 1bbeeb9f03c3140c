"""`hoist` and `sink`: ops run earlier or later in their step."""

from motion_views import changed, edge_of, plain, refusal, step

from steptrace.motion import hoist, peel, sink, split


def test_a_log_goes_above_nothing_that_it_needs():
    error = refusal(lambda: hoist(plain(), "log", above="commit"))
    assert error.code == "ST204"
    assert error.message == "`log` of step k would run before `commit` of step k"
    assert edge_of(error) == "commit -> log (0)"
    assert "legal for `log`: after `commit` and before `free`" in [note.text for note in error.notes]


def test_sinking_passes_what_is_independent():
    split_ = split(plain(), "get_metrics", law="start-fetch").schedule
    moved = sink(split_, "fetch_metrics", below="commit")
    assert changed(split_, moved) == ["- fetch_metrics", "+ fetch_metrics"]
    at = step(moved.schedule).index("fetch_metrics")
    assert step(moved.schedule)[at - 1 : at + 2] == ["commit", "fetch_metrics", "log"]
    assert moved.obligation.discharged == "no edge"
    assert moved.obligation.class_ == "order"


def test_sinking_past_a_reader_is_refused():
    split_ = split(plain(), "get_metrics", law="start-fetch").schedule
    error = refusal(lambda: sink(split_, "fetch_metrics", below="log"))
    assert (error.code, edge_of(error)) == ("ST204", "fetch_metrics -> log (0)")


def test_a_sunk_op_is_hoisted_back():
    begun = split(plain(), "get_metrics", law="start-fetch").schedule
    there = sink(begun, "fetch_metrics", below="commit").schedule
    back = hoist(there, "fetch_metrics", above="save_checkpoint").schedule
    assert back.program == begun.program


def test_several_ops_move_together_and_keep_their_order():
    begun = plain()
    moved = hoist(begun, ("take", "dispatch"), above="on_step_begin")
    assert changed(begun, moved) == ["- on_step_begin", "+ on_step_begin"]
    assert step(moved.schedule)[:4] == ["dispatch", "take", "on_step_begin", "reward"]
    assert str(moved.schedule.trail[-1]) == 'hoist(schedule, ("take", "dispatch"), above="on_step_begin")'


def test_ops_of_a_loop_move_within_it():
    error = refusal(lambda: hoist(plain(), "fwd_bwd", above="ref_logps"))
    assert (error.code, edge_of(error)) == ("ST204", "ref_logps -> fwd_bwd (0)")


def test_a_loop_moves_as_a_whole():
    begun = peel(plain(), "micro_batches").schedule
    error = refusal(lambda: hoist(begun, "micro_batches", above="fwd_bwd.first"))
    assert (error.code, edge_of(error)) == ("ST204", "fwd_bwd.first -> fwd_bwd (0)")


def test_arguments_that_mean_nothing():
    cases = {
        "ST215": lambda: hoist(plain(), "logg", above="commit"),
        "ST280": lambda: hoist(plain(), "log", above="fwd_bwd"),
        "ST281": lambda: hoist(plain(), (), above="commit"),
    }
    for code, action in cases.items():
        assert refusal(action).code == code
    assert refusal(cases["ST215"]).help == "did you mean `log`?"
    assert refusal(cases["ST280"]).help == "name the loop `micro_batches`"
    assert refusal(lambda: hoist(plain(), "commit", above="log")).message == "`commit` stands above `log` already"
    assert refusal(lambda: sink(plain(), "log", below="commit")).message == "`log` stands below `commit` already"
    assert refusal(lambda: sink(plain(), "log", below="log")).message == "`log` cannot move past itself"
    two_homes = refusal(lambda: hoist(plain(), ("fwd_bwd", "log"), above="commit"))
    assert (two_homes.code, two_homes.help) == ("ST280", "move them one after the other")


def test_nothing_moves_out_of_a_loop_over_epochs():
    error = refusal(lambda: hoist(plain("grpo_epochs{staleness=1}"), "fwd_bwd", above="log"))
    assert error.code == "ST280"
    assert error.message == "`fwd_bwd` stands inside loop `repeat`, which is moved as a whole"
