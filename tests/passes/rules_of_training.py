"""Rules of a step: gradients and the update, what is packed before it is sent, metrics, checkpoint and weights."""

from __future__ import annotations

from step_rules import ASYNC, BOUNDARY, OLD_POLICY, UPDATE, Rule

RULES = (
    # Gradients and the update.
    Rule(
        "training calls run in the order of the micro-batches",
        BOUNDARY,
        ("move fwd_bwd.first after micro_batches",),
        "ST204",
        "`fwd_bwd` of step k would run before `fwd_bwd.first` of step k",
        "`fwd_bwd` of step k needs the gradient accumulator as `fwd_bwd.first` of step k leaves it",
    ),
    Rule(
        "an update takes the gradients of its whole step",
        BOUNDARY,
        ("move apply_deferred_update before micro_batches",),
        "ST204",
        "`apply_deferred_update` of step k would run before `fwd_bwd` of step k",
        "`apply_deferred_update` of step k needs the gradient accumulator as `fwd_bwd` of step k leaves it",
    ),
    Rule(
        "a step has one update",
        BOUNDARY,
        (f"insert after apply_deferred_update: {UPDATE}",),
        "ST201",
        "`update` runs `update` of the source a second time",
        "`apply_deferred_update` runs it already",
    ),
    Rule(
        "an update that is held back is made",
        BOUNDARY,
        ("drop apply_deferred_update",),
        "ST200",
        "`apply_deferred_update` does not run in the schedule",
        (
            "`save_checkpoint` of step k needs the parameters as `apply_deferred_update` of step k leaves "
            "them, once it has finished"
        ),
    ),
    Rule(
        "the next step's first call comes after the update",
        BOUNDARY,
        ("move fwd_bwd_staged.first before apply_deferred_update",),
        "ST204",
        "`fwd_bwd_staged.first` of step k+1 would run before `apply_deferred_update` of step k",
        "`fwd_bwd_staged.first` of step k+1 needs the parameters as `apply_deferred_update` of step k leaves them",
    ),
    Rule(
        "log-probs under the actor come after the update before them",
        OLD_POLICY,
        (
            'in old_logps.first replace "at(m=0)" with "at(m=0) shift=+1"',
            "move old_logps.first before apply_deferred_update",
        ),
        "ST204",
        "`old_logps.first` of step k+1 would run before `apply_deferred_update` of step k",
        "`old_logps.first` of step k+1 needs the parameters as `apply_deferred_update` of step k leaves them",
    ),
    # From groups to micro-batches.
    Rule(
        "a micro-batch is packed before the reference sees it",
        BOUNDARY,
        ("move pack after ref_logps.first",),
        "ST204",
        "`next_mb.first` of step k would run before `pack` of step k",
        "`next_mb.first` of step k uses `%batch`, which `pack` of step k makes",
    ),
    Rule(
        "a micro-batch is packed before it is shipped",
        BOUNDARY,
        (
            'in stage_fwd_bwd replace "lane=host" with "lane=packer"',
            "move stage_fwd_bwd before pack",
        ),
        "ST204",
        "`stage_fwd_bwd` of step k would run before `ref_logps.first` of step k",
        "`stage_fwd_bwd` of step k uses `%mb.2.first`, which `ref_logps.first` of step k makes",
    ),
    Rule(
        "a micro-batch is packed before it is sent",
        BOUNDARY,
        (
            'in fwd_bwd.first replace "lane=host" with "lane=packer"',
            'in fwd_bwd.first replace "at(m=0)" with "at(m=0) shift=+1"',
            "move fwd_bwd.first before pack",
        ),
        "ST204",
        "`fwd_bwd.first` of step k would run before `ref_logps.first` of step k",
        "`fwd_bwd.first` of step k uses `%mb.2.first`, which `ref_logps.first` of step k makes",
    ),
    Rule(
        "a micro-batch has its log-probs before it is sent",
        BOUNDARY,
        ("move ref_logps after fwd_bwd",),
        "ST204",
        "`fwd_bwd` of micro-batch m would run before `ref_logps` of micro-batch m",
        "`fwd_bwd` of micro-batch m uses `%mb.2`, which `ref_logps` of micro-batch m makes",
    ),
    # Metrics, checkpoint, weights.
    Rule(
        "metrics are set aside once the update is sent",
        BOUNDARY,
        ("move start_metrics before apply_deferred_update",),
        "ST204",
        "`start_metrics` of step k would run before `apply_deferred_update` of step k",
        ("`start_metrics` of step k needs the trainer's metrics buffer as `apply_deferred_update` of step k leaves it"),
    ),
    Rule(
        "metrics are fetched once they are complete",
        BOUNDARY,
        ("move fetch_metrics before start_metrics",),
        "ST204",
        "`fetch_metrics` of step k would run before `start_metrics` of step k",
        (
            "`fetch_metrics` of step k needs the metrics that were set aside as `start_metrics` of step k "
            "leaves them, once it has finished"
        ),
    ),
    Rule(
        "metrics are set aside before the next step adds its own",
        BOUNDARY,
        ("move start_metrics after fwd_bwd_staged.first",),
        "ST204",
        "`fwd_bwd_staged.first` of step k+1 would run before `start_metrics` of step k",
        (
            "`start_metrics` of step k and `fwd_bwd_staged.first` of step k+1 both write the trainer's "
            "metrics buffer, in this order"
        ),
    ),
    Rule(
        "a checkpoint holds the update of its step",
        BOUNDARY,
        ("move save_checkpoint before apply_deferred_update",),
        "ST204",
        "`save_checkpoint` of step k would run before `apply_deferred_update` of step k",
        (
            "`save_checkpoint` of step k needs the parameters as `apply_deferred_update` of step k leaves "
            "them, once it has finished"
        ),
    ),
    Rule(
        "a checkpoint holds no gradients of the next step",
        BOUNDARY,
        ("move save_checkpoint after fwd_bwd_staged.first",),
        "ST204",
        "`fwd_bwd_staged.first` of step k+1 would run before `save_checkpoint` of step k",
        (
            "`fwd_bwd_staged.first` of step k+1 overwrites the gradient accumulator, which `save_checkpoint` "
            "of step k still reads"
        ),
    ),
    Rule(
        "a checkpoint is written from a finished copy",
        ASYNC,
        (
            'in write_checkpoint replace "lane=io" with "lane=host"',
            "move write_checkpoint before snapshot_checkpoint",
        ),
        "ST204",
        "`write_checkpoint` of step k would run before `snapshot_checkpoint` of step k",
        (
            "`write_checkpoint` of step k needs the copy of the trainer's state as `snapshot_checkpoint` of "
            "step k leaves it, once it has finished"
        ),
    ),
    Rule(
        "weights are published after the update",
        BOUNDARY,
        ("move sync_weights before apply_deferred_update",),
        "ST204",
        "`sync_weights` of step k would run before `apply_deferred_update` of step k",
        (
            "`sync_weights` of step k needs the parameters as `apply_deferred_update` of step k leaves them, "
            "once it has finished"
        ),
    ),
    Rule(
        "a failed save suppresses the sync",
        BOUNDARY,
        ("move sync_weights before save_checkpoint",),
        "ST204",
        "`sync_weights` of step k would run before `save_checkpoint` of step k",
        (
            "`sync_weights` of step k overwrites the rollout weights, which `save_checkpoint` of step k still"
            " reads; should `save_checkpoint` of step k fail, no new ones are published"
        ),
    ),
    Rule(
        "weights are copied before the next step's first call",
        ASYNC,
        (
            "move copy_weights after fwd_bwd_staged.first",
            "move commit after copy_weights",
        ),
        "ST204",
        "`fwd_bwd_staged.first` of step k+1 would run before `copy_weights` of step k",
        "the trainer gets `copy_weights` of step k before `fwd_bwd_staged.first` of step k+1",
    ),
    Rule(
        "weights are transferred from a copy",
        ASYNC,
        (
            'in transfer_weights replace "lane=rollout" with "lane=host"',
            'in apply_weights replace "lane=rollout" with "lane=host"',
            "move transfer_weights before copy_weights",
        ),
        "ST204",
        "`transfer_weights` of step k would run before `copy_weights` of step k",
        (
            "`transfer_weights` of step k needs the copy of the parameters as `copy_weights` of step k leaves"
            " it, once it has finished"
        ),
    ),
    Rule(
        "one sync round is in flight at a time",
        ASYNC,
        ('in transfer_weights replace "lane=rollout" with "lane=rollout shift=+1"',),
        "ST204",
        "`transfer_weights` of step k+1 would run before `apply_weights` of step k",
        (
            "`transfer_weights` of step k+1 needs the sync round as `apply_weights` of step k leaves it, once"
            " it has finished"
        ),
    ),
)
