"""Rules of a step: commit, log and callbacks; what is taken, shipped and held back across the border of two steps."""

from __future__ import annotations

from step_rules import AFTER, ASYNC, BOUNDARY, EARLY, FEED, LENT, LENT_AHEAD, STAGE, STREAM, Rule

RULES = (
    # Commit, log, callbacks.
    Rule(
        "a commit follows the weight sync",
        BOUNDARY,
        ("move commit before sync_weights",),
        "ST204",
        "`commit` of step k would run before `sync_weights` of step k",
        "`commit` of step k needs the policy version as `sync_weights` of step k leaves it, once it has finished",
    ),
    Rule(
        "a commit follows the copy of a sync in the background",
        ASYNC,
        ("move commit before copy_weights",),
        "ST204",
        "`commit` of step k would run before `copy_weights` of step k",
        "`commit` of step k needs the policy version as `copy_weights` of step k leaves it",
    ),
    Rule(
        "a log follows the metrics",
        BOUNDARY,
        ("move log before fetch_metrics",),
        "ST204",
        "`log` of step k would run before `fetch_metrics` of step k",
        "`log` of step k uses `%metrics`, which `fetch_metrics` of step k makes",
    ),
    Rule(
        "a log follows the version that its step published",
        BOUNDARY,
        (
            "move log before commit",
            "move fetch_metrics before log",
        ),
        "ST204",
        "`log` of step k would run before `commit` of step k",
        "`log` of step k needs the training cursor as `commit` of step k leaves it, once it has finished",
    ),
    Rule(
        "the end of a step is told with its metrics",
        BOUNDARY,
        ("move on_step_end before fetch_metrics",),
        "ST204",
        "`on_step_end` of step k would run before `fetch_metrics` of step k",
        (
            "`on_step_end` of step k needs the metrics of the step as `fetch_metrics` of step k leaves them, "
            "once it has finished"
        ),
    ),
    Rule(
        "the end of a step is told once its weights are published",
        BOUNDARY,
        (
            "move fetch_metrics after save_checkpoint",
            "move on_step_end after fetch_metrics",
        ),
        "ST254",
        "on_step_end@0 may have run when sync_weights@0 fails",
        "the source runs on_step_end@0 only after that succeeded",
    ),
    Rule(
        "memory is released after the log, its last reader",
        BOUNDARY,
        ("move free before log",),
        "ST204",
        "`free` of step k would run before `log` of step k",
        "`free` of step k changes or releases the host memory of the step, which `log` of step k still reads",
    ),
    Rule(
        "the begin of a step is told after the end of the one before",
        BOUNDARY,
        (
            'in on_step_begin replace "lane=host" with "lane=host shift=+1"',
            "move on_step_begin before on_step_end",
        ),
        "ST204",
        "`on_step_begin` of step k+1 would run before `on_step_end` of step k",
        "users' callbacks see `on_step_end` of step k before `on_step_begin` of step k+1",
    ),
    Rule(
        "a step is sampled with the version of its place",
        BOUNDARY,
        (
            'in dispatch replace "shift=+1" with "shift=+2"',
            'in dispatch replace "lane=packer" with "lane=host"',
        ),
        "ST204",
        "`dispatch` of step k+2 would run before `sync_weights` of step k",
        "`dispatch` of step k+2 uses the rollout weights that `sync_weights` of step k publishes",
    ),
    Rule(
        "a step's version is not recorded when its groups are taken",
        BOUNDARY,
        (
            'in commit replace "lane=host" with "lane=packer shift=+1"',
            "move commit after take",
        ),
        "ST205",
        "lanes host and packer would wait for one another for ever",
        "`commit` of step k waits for `sync_weights` of step k: it needs the policy version",
    ),
    # What is taken ahead.
    Rule(
        "groups of one step beyond the current one are held",
        BOUNDARY,
        (
            'in free replace "lane=host" with "lane=packer"',
            *(f'in {op} replace "shift=+1" with "shift=+2"' for op in FEED),
        ),
        "ST206",
        "`take` of step k+2 would need room in `host` before `free` of step k makes it",
        "`take` of step k+2 needs room in `host`, which holds 2 at a time: `free` of step k makes it",
    ),
    Rule(
        "so are they where groups stream",
        STREAM,
        (
            'in resource host replace "cell(2)" with "cell(1)"',
            'in free replace "lane=host" with "lane=packer"',
        ),
        "ST206",
        "`stream_mb.first` of step k+1 would need room in `host` before `free` of step k makes it",
        "`stream_mb.first` of step k+1 needs room in `host`, which holds 1 at a time: `free` of step k makes it",
    ),
    Rule(
        "a take that waits for data holds up no boundary",
        BOUNDARY,
        ('in take replace "lane=packer" with "lane=host"',),
        "ST207",
        "`take` of step k+1 would hold up the step before it on lane host",
        "`on_step_begin` of step k comes next there, and waits as long as the data takes",
    ),
    Rule(
        "groups taken ahead are committed by their own step",
        BOUNDARY,
        ('in commit replace "lane=host" with "lane=host shift=+1"',),
        "ST204",
        "`commit` of step k would run before `sync_weights` of step k",
        "`commit` of step k needs the policy version as `sync_weights` of step k leaves it, once it has finished",
    ),
    # What is shipped ahead.
    Rule(
        "with the update in the last call, metrics wait for that",
        AFTER,
        ("move start_metrics before micro_batches",),
        "ST204",
        "`start_metrics` of step k would run before `fwd_bwd` of step k",
        "`start_metrics` of step k needs the trainer's metrics buffer as `fwd_bwd` of step k leaves it",
    ),
    Rule(
        "metrics are set aside ahead of the save",
        BOUNDARY,
        ("move start_metrics after save_checkpoint",),
        "ST254",
        "save_checkpoint@1 may have run when start_metrics@1 fails",
        "the source runs save_checkpoint@1 only after that succeeded",
    ),
    Rule(
        "what was not packed in time, or was lost, is sent whole",
        BOUNDARY,
        ("drop fwd_bwd.first",),
        "ST200",
        "`fwd_bwd.first`, part `late` of `fwd_bwd`, does not run in the schedule",
        "`fwd_bwd` of step k needs the gradient accumulator as `fwd_bwd.first` of step k leaves it",
    ),
    Rule(
        "what was not shipped is the next step's first call",
        EARLY,
        ("move fwd_bwd.first after micro_batches",),
        "ST204",
        "`fwd_bwd` of step k would run before `fwd_bwd.first` of step k",
        "`fwd_bwd` of step k needs the gradient accumulator as `fwd_bwd.first` of step k leaves it",
    ),
    Rule(
        "a micro-batch is sent shipped or whole, not both",
        BOUNDARY,
        ('in fwd_bwd.first replace "when(not %staged and" with "when(%staged and"',),
        "ST203",
        "`fwd_bwd.first` has another condition than in its source",
        (
            "it sends the micro-batch where none was sent ahead: not packed in time, or lost on the way; of "
            "the ops that send it exactly one runs"
        ),
    ),
    Rule(
        "what is sent as shipped was shipped",
        BOUNDARY,
        ('in fwd_bwd_staged.first replace "when(%staged) " with ""',),
        "ST203",
        "`fwd_bwd_staged.first` has another condition than in its source",
        "it sends the micro-batch that was shipped ahead; of the ops that send it exactly one runs",
    ),
    Rule(
        "one micro-batch is shipped for a step",
        BOUNDARY,
        (f"insert after apply_deferred_update: {STAGE}",),
        "ST201",
        "`stage_fwd_bwd.2` runs `fwd_bwd` of the source a second time",
        "`stage_fwd_bwd` runs it already",
    ),
    Rule(
        "it is shipped before it is sent",
        BOUNDARY,
        ("move fwd_bwd_staged.first before stage_fwd_bwd",),
        "ST204",
        "`fwd_bwd_staged.first` of step k would run before `stage_fwd_bwd` of step k",
        (
            "`fwd_bwd_staged.first` of step k needs the micro-batch that the trainer holds as `stage_fwd_bwd`"
            " of step k leaves it, once it has finished"
        ),
    ),
    # While an update is held back.
    Rule(
        "what needs the step closed waits until the update is made",
        BOUNDARY,
        ("move apply_deferred_update after sync_weights",),
        "ST204",
        "`start_metrics` of step k would run before `apply_deferred_update` of step k",
        "`start_metrics` of step k needs the trainer's metrics buffer as `apply_deferred_update` of step k leaves it",
    ),
    Rule(
        "every call that can be the last one holds the update back",
        BOUNDARY,
        (
            'in fwd_bwd replace "{closes="defer"} " with ""',
            'in fwd_bwd replace "trainer.held, " with ""',
        ),
        "ST203",
        "`fwd_bwd` has other attributes than in its source",
        "",
    ),
    Rule(
        "shipping then waits for nothing",
        BOUNDARY,
        ('in stage_fwd_bwd replace "writes[trainer.staged]" with "writes[trainer.staged] awaits[params]"',),
        "ST005",
        "`stage_fwd_bwd` does not have `params` among what it awaits",
        "",
    ),
    # Where micro-batches lie in buffers that are used again.
    Rule(
        "a buffer is given back once its last reader is done",
        LENT,
        (
            'in release.first replace "lane=link" with "lane=host"',
            "move release.first before fwd_bwd.first",
        ),
        "ST204",
        "`release.first` of step k would run before `fwd_bwd.first` of step k",
        (
            "`release.first` of step k gives back the buffer of `%mb.first`, which `fwd_bwd.first` of step k reads"
            " until its work is done"
        ),
    ),
    Rule(
        "a micro-batch that is handed out waits for a buffer",
        LENT_AHEAD,
        ('in resource buffers.loop replace "fifo(2)" with "fifo(1)"',),
        "ST206",
        "`buffers.loop` would have to hold more than 1 entry at a time",
        "`next_mb` of micro-batch m+1 waits for `release` of micro-batch m: it needs a place in `buffers.loop`",
    ),
    Rule(
        "every buffer is given back",
        LENT,
        ("drop release",),
        "ST203",
        "`next_mb` has other attributes than in its source",
        "",
    ),
)
