"""What can be wrong with a model, a loss, an optimizer, a micro-batch, or the order of trainer calls: ST340-ST399."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class ModelError(SteptraceError):
    """The model cannot be split into trainable parameters and the rest.

    A trainer takes a flax NNX module, or a linen module together with its variables. It needs at least
    one parameter array, and each of them floating.

    Example::

        JaxTrainer(MyLinenModule(), optax.adam(1e-3), loss)     # linen_variables= is missing

    Ways out: pass ``linen_variables=module.init(key, tokens, positions, segment_ids)``; choose what is
    trained with ``wrt=`` (NNX); keep integer state out of ``nnx.Param`` and out of linen's ``params``.
    """

    code = "ST340"


class OptimizerError(SteptraceError):
    """The optimizer is no gradient transformation that gradients alone can drive.

    An optimizer is an ``optax.GradientTransformation``: ``init(params)`` and ``update(grads, state, params)``.
    The mean loss is offered as ``value`` to the transforms that ask for it; a line search, which wants to
    evaluate the loss again, cannot run on an accumulated gradient.

    Example::

        JaxTrainer(model, optax.lbfgs(), loss)

    Ways out: use a transform without line search (``optax.lbfgs(linesearch=None)``), or pass the transform
    itself where a class or a schedule was passed.
    """

    code = "ST341"


class LossError(SteptraceError):
    """The loss gives back something else than ``(sum, count, aux)``.

    ``loss(model, batch)`` gives the *sum* of the loss terms (a floating scalar), how many terms that were
    (a scalar), and metrics by name, each as ``(sum, weight)``. The division happens once, in ``update``, over
    all micro-batches of the step; a loss that has divided already would make the update depend on how
    samples were split.

    Example::

        def loss(model, batch):
            return jnp.mean(cross_entropy(model, batch))

    Ways out: return ``(jnp.sum(terms * mask), jnp.sum(mask), {})``; give the same metric names for every
    micro-batch.
    """

    code = "ST342"


class LossSettingError(SteptraceError):
    """A setting of a built-in loss is out of its range.

    Example::

        GrpoLoss(clip_low=1.5)
        GrpoLoss(aggregation="mean")

    Ways out: clip widths are at least 0 (``clip_low`` below 1), the temperature is above 0,
    ``aggregation`` is ``"token_mean"`` or ``"sequence_mean"``.
    """

    code = "ST343"


class MicroBatchError(SteptraceError):
    """An array of a micro-batch has the wrong dtype, rank or shape.

    ``tokens``, ``segment_ids`` and ``positions`` are int32, the mask, the advantages and all log-probs
    float32, each [rows, length] and all of one shape. This is checked before anything is compiled.

    Example::

        MicroBatch(step=0, index=0, arrays={"tokens": tokens.astype("float32"), ...}, keys=())

    Ways out: convert the array where it is made; an array of another shape goes under a name of your own,
    read by your own loss.
    """

    code = "ST344"


class MissingArrayError(SteptraceError):
    """The loss reads an array that the micro-batch does not have.

    Example::

        GrpoLoss(kl_coef=0.01)        # in a program that never runs ``step.ref_logps``

    A loss that says what it reads (``loss.reads``, names of arrays that ops make) is compared with the program before
    step 0; another one is found out by its first call.

    Ways out: run the op that adds the array before ``fwd_bwd`` (``ref_logps``, ``old_logps``, an op of your
    own), or choose settings of the loss that do not need it.
    """

    code = "ST345"


class UnfinishedStepError(SteptraceError):
    """A micro-batch of another step arrived before the update of the current one.

    All micro-batches of a step are accumulated, then comes its one update.

    Example::

        trainer.fwd_bwd(micro_batch_of_step_0)
        trainer.fwd_bwd(micro_batch_of_step_1)      # step 0 was not updated

    Ways out: call ``update`` first; stamp micro-batches with the step they belong to.
    """

    code = "ST346"


class NothingAccumulatedError(SteptraceError):
    """``update`` was called with no micro-batch since the last update.

    Example::

        trainer.update()
        trainer.update()

    Ways out: one ``update`` per step, after its ``fwd_bwd`` calls; guard it when a step can come without
    micro-batches.
    """

    code = "ST347"


class OpenAccumulationError(SteptraceError):
    """A checkpoint was asked for while gradients are accumulated.

    A checkpoint holds parameters and optimizer state, no half of a step.

    Example::

        trainer.fwd_bwd(micro_batch)
        trainer.save_checkpoint(directory)

    Ways out: ``update`` first, then save; or ``restore_checkpoint``, which drops the accumulation.
    """

    code = "ST348"


class NoLogpsError(SteptraceError):
    """The trainer cannot make log-probs: neither the loss nor the caller says how.

    Example::

        trainer = JaxTrainer(model, optimizer, my_loss)
        trainer.old_logps(micro_batch)

    Ways out: give the loss a method ``logps(model, batch) -> [rows, length]``, or pass ``logps_fn=`` with
    that signature.
    """

    code = "ST349"


class DamagedStateError(SteptraceError):
    """A trainer checkpoint is missing, cut short or altered.

    What is read back is compared with the digest that was written with it, so that a damaged file is never
    trained on.

    Example: the job was killed, or the disk was full, while the checkpoint was copied elsewhere.

    Ways out: restore an older checkpoint; copy the folder again, whole.
    """

    code = "ST350"


class OtherModelError(SteptraceError):
    """A trainer checkpoint belongs to another model or optimizer.

    The names, shapes and dtypes of parameters, optimizer state and other model state must be those of the
    trainer that restores.

    Example: saved with 2 layers, restored into 4; saved with SGD, restored into Adam.

    Ways out: build the trainer as it was when the checkpoint was written; to start another optimizer from
    these weights, load the parameters yourself and make a new trainer.
    """

    code = "ST351"


class StateNotWrittenError(SteptraceError):
    """A trainer checkpoint could not be written.

    Example::

        trainer.save_checkpoint(pathlib.Path("/proc/checkpoint"))

    Ways out: choose a folder that can be written and does not hold a checkpoint yet; free disk space.
    """

    code = "ST352"


class TrainerSettingError(SteptraceError):
    """A setting of the trainer is out of its range.

    Example::

        JaxTrainer(model, optimizer, loss, in_flight=0)

    Ways out: ``in_flight`` and ``max_records`` are at least 1.
    """

    code = "ST353"


class HeldUpdateError(SteptraceError):
    """Something that needs the step closed was asked for while the trainer holds its update back.

    `fwd_bwd(micro_batch, apply_optimizer=True, defer_update=True)` runs the last micro-batch of a step and holds the
    update. Until `apply_deferred_update` has run it, the trainer takes no other micro-batch and no `update`, and
    gives no metrics, no checkpoint, no weights and no log-probs: each would see half a step.

    Example::

        trainer.fwd_bwd(last, apply_optimizer=True, defer_update=True)
        trainer.weights()                           # of which step?

    Ways out: call `apply_deferred_update` first; `stage_fwd_bwd`, `info` and the waits are allowed meanwhile.
    """

    code = "ST354"


class AlreadyStagedError(SteptraceError):
    """A micro-batch was staged while another one is.

    The trainer holds exactly one micro-batch for a later call.

    Example::

        trainer.stage_fwd_bwd(first)
        trainer.stage_fwd_bwd(second)

    Ways out: run the first one with `fwd_bwd_staged`; `compile` and `restore_checkpoint` drop it.
    """

    code = "ST355"


class NotStagedError(SteptraceError):
    """A staged call names a micro-batch that the trainer does not hold.

    It was run already, or `compile` or `restore_checkpoint` has dropped it.

    Example::

        staged = trainer.stage_fwd_bwd(micro_batch)
        trainer.restore_checkpoint(directory)
        trainer.fwd_bwd_staged(staged.request)

    Ways out: stage it again, or send it whole with `fwd_bwd`.
    """

    code = "ST356"


class UpdateFailedError(SteptraceError):
    """An update failed on the device, and a later call saw it.

    Calls return at dispatch, so a failed update shows up where something first waits for the device: in the wait of a
    stage, say. The message names the step whose update it was, and the call that saw it; what the device raised is
    the cause of the error.

    Example: the device ran out of memory in the update of step 7, and staging the first micro-batch of step 8 waited.

    Way out: look at the update, not at the call that saw it.
    """

    code = "ST357"


class NothingHeldError(SteptraceError):
    """`apply_deferred_update` was called, and no update is held back.

    Example::

        trainer.fwd_bwd(last)                        # without defer_update=True
        trainer.apply_deferred_update()

    Ways out: `update` closes a step whose last call did not hold its update back; a held one is applied once.
    """

    code = "ST358"


class TrainerCallError(SteptraceError):
    """A training call was given options that contradict one another.

    `defer_update=True` says how the call that carries the update does it, so it goes with `apply_optimizer=True`.

    Example::

        trainer.fwd_bwd(micro_batch, defer_update=True)

    Way out: give both on the last micro-batch of a step, and neither on the others.
    """

    code = "ST359"


class ReplayError(SteptraceError):
    """The model cannot say that it dropped tokens, or cannot be run again without dropping any.

    Under replay a micro-batch that lost tokens to a finite buffer counts for nothing, and is run again by a program
    that drops nothing. For that the model has methods ``watched``, ``overflowed`` and ``as_dropless``, as
    ``models.moe.MoeDecoder`` has, or a ``Replay`` names functions in their place. It is found out once the next
    micro-batch is on its way, so the attempt must leave nothing in the model: a call may not change floating state,
    such as the statistics of a batch norm.

    Example::

        JaxTrainer(Decoder(config), optimizer, loss, replay=Replay())       # a model that never drops

    Ways out: leave ``replay`` away for a model that drops nothing; give ``overflowed`` a bool scalar; freeze
    running statistics.
    """

    code = "ST360"


class ReleasedInputError(SteptraceError):
    """A micro-batch is to run again, and an array of it was donated or deleted.

    A micro-batch's inputs are needed until its flag has been read: when the micro-batch after it has been sent, or
    in the update, for the last one of a step.

    Example::

        trainer.fwd_bwd(micro_batch)            # drops tokens
        micro_batch.arrays["tokens"].delete()
        trainer.update()

    Ways out: release arrays after the update; hand over host arrays, which are copied.
    """

    code = "ST361"


class NoHeadError(SteptraceError):
    """A head that works on hidden states was chosen for a model that does not give them.

    The head ``shard_map`` takes hidden states and the table instead of logits. ``models.decoder.Decoder`` gives both:
    a method ``hidden(tokens, positions, segment_ids)`` and a parameter ``head_kernel`` [features, vocab].

    Example::

        JaxTrainer(model_with_logits_alone, optimizer, GrpoLoss(head="shard_map"))

    Ways out: ``head="dense"``; give the model the two.
    """

    code = "ST363"


class MeshError(SteptraceError):
    """Parameters cannot be sharded over the mesh as the rules say.

    A rule is a regular expression, searched for in a parameter's path, and the axes of its dimensions; the first that
    fits a parameter holds. Its axes must be axes of the mesh, and divide the dimensions that they are given for.

    Example::

        mesh = jax.make_mesh((2, 2), ("data", "fsdp"))
        JaxTrainer(model, optimizer, loss, mesh=mesh, rules=[("embedding", PartitionSpec("tensor"))])

    Ways out: name axes of the mesh; shard a dimension that divides; leave the rule away, and the longest dimension that
    divides by ``fsdp`` is sharded over it.
    """

    code = "ST362"
