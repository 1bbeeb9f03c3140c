"""Codes of tracing: what a step written in Python may not do, and how programs and ops are declared and named."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class TracedBranchError(SteptraceError):
    """Python branched on a value that exists only when the step runs.

    A step is traced once; what the trace holds are names of values, not values. `if`, `while`, `and`,
    `or` and `not` would decide once, for every step.

    Example::

        flagged = overlong(groups)           # a user op that gives a flag
        if flagged:                          # ST101
            step.save_checkpoint()

    Ways out: `with step.when(flagged):` for a flag, `with step.every(10):` for a cadence; combine
    conditions with `&`, `|` and `~`. Branching on the program's parameters is fine: they are known.
    """

    code = "ST101"


class TracedValueError(SteptraceError):
    """Python computed with a value that exists only when the step runs.

    Comparing, adding, indexing, iterating, taking the length of or calling a traced value has no meaning
    while the step is traced.

    Example::

        groups = step.take()
        for group in groups:                 # ST102
            print(group)

    Ways out: put the computation into an op of your own (`@steptrace.op`), whose body gets the real
    values; run over the micro-batches with `for mb in step.micro_batches(batch):`.
    """

    code = "ST102"


class TracedAttributeError(TracedValueError, AttributeError):
    """An attribute was read off a value that exists only when the step runs.

    Example::

        groups = step.take()
        groups.rewards                       # ST103

    Ways out: an op of your own (`@steptrace.op`), whose body gets the real value.
    """

    code = "ST103"


class LoopLeftError(SteptraceError):
    """A traced loop was left before its end.

    The body of a loop over micro-batches, mini-batches or epochs is traced once and stands for every
    pass. `break`, or `return` inside it, would leave in the middle of the only pass that is traced.

    Example::

        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
            break                            # ST104

    Ways out: run ops under a condition (`with step.when(step.first):`); choose the number of
    micro-batches by what is packed.
    """

    code = "ST104"


class LoopReusedError(SteptraceError):
    """A traced loop was run over twice.

    Example::

        mbs = step.micro_batches(batch)
        for mb in mbs:
            step.fwd_bwd(mb)
        for mb in mbs:                       # ST105
            step.fwd_bwd(mb)

    Ways out: call `step.micro_batches(batch)` for each `for`.
    """

    code = "ST105"


class OutOfScopeError(SteptraceError):
    """A value was used where it need not exist: outside its loop, or without its condition.

    Example::

        with step.every(10):
            metrics = step.get_metrics()
        step.log(metrics)                    # ST106: no metrics in the other nine steps

    Ways out: move the use into the loop or condition, or make the value outside it.
    """

    code = "ST106"


class ForeignValueError(SteptraceError):
    """A value, a condition or a step of another trace was used.

    Each trace makes values of its own; one kept from an earlier trace names nothing in this one.

    Example::

        kept = []

        @steptrace.program
        def mine(step):
            kept.append(step.take())
            step.reward(kept[0])             # ST107 when it is traced the second time

    Ways out: pass values from op to op within the step; keep nothing across traces.
    """

    code = "ST107"


class NotTracedError(SteptraceError):
    """An op was given something that no op of the step made.

    Example::

        step.log({"loss": 0.0})              # ST108: metrics come from get_metrics

    Ways out: hand over the value that an op returned, `step.log(step.get_metrics())`; make own values with
    an op of your own (`@steptrace.op`).
    """

    code = "ST108"


class OperandError(SteptraceError):
    """An op was given a value of the wrong type, or one that lacks a field the op reads.

    Example::

        groups = step.take()
        step.pack(groups)                    # ST109: packing reads the advantages

    Ways out: the op that makes the type or the field must come first; `steptrace ops` lists what each op
    takes and gives.
    """

    code = "ST109"


class OpCallError(SteptraceError):
    """An op was called with an argument it does not have, or without one it needs.

    Example::

        step.dispatch(prompts=32)            # ST110: samples is missing

    Ways out: the arguments that the message lists.
    """

    code = "ST110"


class AttributeValueError(SteptraceError):
    """An attribute of an op, a loop or a condition has a value it cannot have.

    Attributes are fixed when the step is traced: numbers, strings, booleans, or lists of strings.

    Example::

        step.dispatch(prompts="32", samples=8)            # ST111: an int is expected
        step.advantages(groups, estimator="gpro")         # ST111: no such estimator
        step.every(0)                                     # ST111: at least 1

    Ways out: a value of the type, and one of the choices, that the message names.
    """

    code = "ST111"


class UnknownOpError(SteptraceError, AttributeError):
    """The step has no op of that name.

    Example::

        step.fwd_bdw(mb)                     # ST112

    Ways out: the spelling that the message proposes; an op of your own is called as a function,
    `penalised = length_penalty(groups)`.
    """

    code = "ST112"


class NestedTraceError(SteptraceError):
    """A trace was started inside a trace.

    Example::

        @steptrace.program
        def mine(step):
            steptrace.trace(other)           # ST113

    Ways out: trace the other program before or after; share parts of a step as plain functions that take
    `step`.
    """

    code = "ST113"


class ProgramSignatureError(SteptraceError):
    """A function cannot be a program as it is declared.

    A program takes the step first, then its parameters, each an int, float, bool or str with a default
    or an annotation. `staleness`, `weights`, `partial` and `empty` are the contract's names, not
    parameters.

    Example::

        @steptrace.program
        def mine(step, *sizes):              # ST114
            ...

    Ways out: `def mine(step, prompts=32, samples=8):`.
    """

    code = "ST114"


class ParameterError(SteptraceError):
    """A program was given a parameter it does not have, a wrong value for one, or lacks a value for one.

    Example::

        steptrace.trace(grpo, promts=16)     # ST115

    Ways out: the parameters that the message lists; those of the contract (`staleness`, `weights`,
    `partial`, `empty`) may be given for every program.
    """

    code = "ST115"


class ContractOptionError(SteptraceError):
    """An option of the contract has a value it cannot have.

    `staleness` is a number of updates, 0 or more; `weights` is `pinned` or `freshest`; `partial` is
    `train`, `drop` or `error`; `empty` is `skip` or `error`.

    Example::

        @steptrace.program(staleness=-1)     # ST116
        def mine(step): ...

    Ways out: one of the values above.
    """

    code = "ST116"


class OpDeclarationError(SteptraceError):
    """A user's op is not declared as it must be.

    `takes` has one type for each operand of the function, in order; `gives` has the types of what it
    returns; the function's other parameters are keyword-only or have defaults and become attributes;
    `reads` and `writes` name resources.

    Example::

        @steptrace.op(takes=("groups",), gives="groups<penalised>")
        def length_penalty(groups, other):   # ST117: two operands, one type
            ...

    Ways out: the form that the message names.
    """

    code = "ST117"


class OpNameClashError(SteptraceError):
    """Two different functions are one op of a program.

    The name of an op stands for one implementation; with two, a dump could not say which one runs.

    Example::

        a = steptrace.op(takes=("groups",), gives="groups")(lambda groups: groups)   # both are named
        b = steptrace.op(takes=("groups",), gives="groups")(lambda groups: [])       # alike: ST118

    Ways out: rename one, or give it a name: `@steptrace.op(name="...")`.
    """

    code = "ST118"


class ResourceError(SteptraceError):
    """A resource was named that nobody declared, or was declared in two ways.

    A misspelt resource would silently lose an order, so names that are not built in must be declared.

    Example::

        @steptrace.op(reads=["hots[k]"])     # ST119: `host` was meant
        def look(): ...

    Ways out: the spelling that the message proposes, or `steptrace.resource("replay", kind="state")`
    before the op.
    """

    code = "ST119"


class CarryError(SteptraceError):
    """A value carried from step to step is not declared or set as it must be.

    Example::

        kl = step.carry("kl_coef", init=0.1)
        kl.set(step.get_metrics())           # ST120: metrics are not a number

    Ways out: one `step.carry` for each name, set once a step, outside loops and conditions, to a scalar
    that an op made in this step.
    """

    code = "ST120"


class UnknownProgramError(SteptraceError):
    """There is no program of that name.

    Example::

        steptrace dump gpro                  # ST121

    Ways out: a name that `steptrace programs` lists, `module:function`, a `.st` file, or `-` for standard
    input.
    """

    code = "ST121"


class ProgramReferenceError(SteptraceError):
    """The name of a program is not written as it must be.

    Example::

        steptrace dump 'grpo{staleness}'     # ST122: a value is missing

    Ways out: `grpo`, `grpo{staleness=1, prompts=16}`, `module:function`, `module:function{prompts=16}`,
    `path/to/file.st`, or `-`.
    """

    code = "ST122"


class ProgramImportError(SteptraceError):
    """The module of a program, the function in it, or its file could not be found, or it is no program.

    Example::

        steptrace dump train:setp            # ST123: module `train` has no `setp`

    Ways out: run from the folder that holds the module; decorate the function with `@steptrace.program`.
    """

    code = "ST123"


class NotAProgramError(SteptraceError):
    """Something was traced that is no program.

    Example::

        def mine(step): ...

        steptrace.trace(mine)                # ST124: not decorated

    Ways out: decorate the function with `@steptrace.program`; an IR program is traced already.
    """

    code = "ST124"


class UnusedError(SteptraceError):
    """A loop, a stream or a condition was made and not used, so that what follows it is not part of it.

    Example::

        step.every(10)                       # ST125: `with` is missing
        step.save_checkpoint()

    Ways out: `with step.every(10):`, `for mb in step.micro_batches(batch):`; or drop it.
    """

    code = "ST125"


class ConditionLeftError(SteptraceError):
    """A condition does not end where the loop or the condition around it says.

    `with` ends conditions in the order of nesting. Entered by hand, or kept open by an `ExitStack` that outlives
    a loop, a condition would hold for ops that it was not written around.

    Example::

        rare = step.every(10)
        rare.__enter__()                     # ST126
        step.save_checkpoint()
        step.on_step_end(reads=[])

    Ways out: `with step.every(10):` around the ops.
    """

    code = "ST126"
