"""The choice of a strategy: the fewest bytes that fit, over all subsets of axes, and why not the others.

With the vocabulary split ``p`` ways the table costs bytes that fall as ``1 / p``, hidden states bytes that grow as
``p``: the best ``p`` is about the square root of vocabulary entries per token of a device, but axes are few and of
given sizes, so that all of their subsets are simply tried.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from steptrace_kernels.logps.cost import Cost, Parts, cost
from steptrace_kernels.logps.fallback import LOG, Fallback
from steptrace_kernels.logps.head import Axes, Strategy
from steptrace_kernels.logps.mesh import count, sizes
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.validate import LogpsError

BLOCKS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of vocabulary blocks that are tried where memory is limited."""


@dataclass(frozen=True)
class Refused:
    """The best strategy with another set of axes, and why it was not chosen."""

    strategy: Strategy
    cost: Cost
    why: str


@dataclass(frozen=True)
class Plan:
    """How a call is to be computed, and what that will cost; ``str`` of it is for people.

    Attributes:
      strategy: what was chosen; None where the kernel cannot run.
      cost: predicted bytes and memory; None where the kernel cannot run.
      reasons: why it was chosen, in sentences.
      refused: the best of each other set of axes, the fewest bytes first.
      fallback_reason: why the kernel cannot run, or None.
    """

    strategy: Strategy | None
    cost: Cost | None
    reasons: tuple[str, ...]
    refused: tuple[Refused, ...] = ()
    fallback_reason: Fallback | None = None

    def __str__(self) -> str:
        if self.strategy is None or self.cost is None:
            return f"the chunked head without shard_map: {self.fallback_reason}"
        lines = [f"{described(self.strategy)}: {priced(self.cost)}", *(f"  {reason}" for reason in self.reasons)]
        if self.refused:
            lines.append("not chosen:")
            lines += [f"  {described(r.strategy)}: {priced(r.cost)}; {r.why}" for r in self.refused]
        return "\n".join(lines)


@functools.cache
def choose(setting: Setting, parts: Parts, memory_limit: int | None = None) -> Plan:
    """The plan of a call whose setting is this one, but for the strategy; the log tells each choice once.

    Raises:
      LogpsError: nothing fits into ``memory_limit`` bytes.
    """
    best: dict[Axes, tuple[Strategy, Cost]] = {}
    for axes in axis_subsets(setting):
        ways = _ways(axes, setting, parts, memory_limit)
        tried = [(strategy, of_strategy(setting, parts, strategy)) for strategy in ways]
        best[axes] = min(tried, key=lambda one: _rank(*one, memory_limit))
    strategy, price = min(best.values(), key=lambda one: _rank(*one, memory_limit))
    if memory_limit is not None and price.memory > memory_limit:
        least = min((one for _, one in best.values()), key=lambda one: one.memory)
        raise LogpsError(f"no strategy fits into {_mib(memory_limit)}: the least of them takes {_mib(least.memory)}")
    refused = tuple(
        Refused(*other, _why_not(other[1], price, memory_limit))
        for other in sorted(best.values(), key=lambda one: _rank(*one, memory_limit))
        if other[0] is not strategy
    )
    plan = Plan(strategy, price, _reasons(setting, parts, strategy, len(best), memory_limit), refused)
    LOG.info("log-probs of %d tokens a device, %s: %s", setting.local_tokens, described(strategy), priced(price))
    return plan


def compared(setting: Setting, parts: Parts, strategy: Strategy, memory_limit: int | None = None) -> Plan:
    """The plan of a strategy that was given by hand: what it costs, beside what would have been chosen."""
    price = of_strategy(setting, parts, strategy)
    other = choose(setting, parts, memory_limit)
    assert other.strategy is not None
    assert other.cost is not None
    more = price.bytes / other.cost.bytes if other.cost.bytes else 1.0
    reasons = [f"given by hand; sends {more:.2f} times the bytes of what would have been chosen"]
    if memory_limit is not None and price.memory > memory_limit:
        reasons.append(f"does not fit into {_mib(memory_limit)}")
    return Plan(strategy, price, tuple(reasons), (Refused(other.strategy, other.cost, "would have been chosen"),))


def axis_subsets(setting: Setting) -> list[Axes]:
    """Sets of axes that the vocabulary may be split over, each in the order of the mesh.

    Those that shard no tokens are in all of them: their devices have the same tokens, and would do the same work.
    """
    axis_sizes = sizes(setting.mesh)
    idle = {axis for axis in axis_sizes if axis not in setting.layout.tokens and axis_sizes[axis] > 1}
    # Of subsets that cost the same, the one whose devices are nearest to each other: its axes vary fastest.
    busy = [axis for axis in reversed(axis_sizes) if axis in setting.layout.tokens and axis_sizes[axis] > 1]
    chosen = [set(some) | idle for n in range(len(busy) + 1) for some in itertools.combinations(busy, n)]
    return [tuple(axis for axis in axis_sizes if axis in some) for some in chosen]


def of_strategy(setting: Setting, parts: Parts, strategy: Strategy) -> Cost:
    """What ``setting`` would cost with ``strategy``."""
    return cost(replace(setting, strategy=strategy), parts)


def _ways(axes: Axes, setting: Setting, parts: Parts, memory_limit: int | None) -> list[Strategy]:
    """Strategies with these axes; more than one block only where memory is limited, since they cost bytes."""
    ways = [Strategy(axes)]
    if parts.gradient and not parts.one_pass:
        ways += [Strategy(axes, keep_hidden=True)] if setting.keepable(axes) else []
        more = BLOCKS[1:] if memory_limit is not None else ()
        ways += [Strategy(axes, vocab_blocks=n, prefetch=ahead) for n in more for ahead in (n > 2, False)]
    return ways


def _rank(strategy: Strategy, price: Cost, memory_limit: int | None) -> tuple[float, ...]:
    """What is least is best: it fits, sends least; of equals, it gathers ahead, has fewer blocks, takes less memory."""
    if memory_limit is not None and price.memory > memory_limit:
        return 1, price.memory
    waits = strategy.vocab_blocks > 1 and not strategy.prefetch
    return 0, price.bytes, waits, strategy.vocab_blocks, price.memory


def _reasons(
    setting: Setting, parts: Parts, strategy: Strategy, subsets: int, memory_limit: int | None
) -> tuple[str, ...]:
    limit = "" if memory_limit is None else f" that fits into {_mib(memory_limit)}"
    reasons = [f"sends least of the {subsets} sets of axes{limit}"]
    idle = [axis for axis in strategy.vocab_axes if axis not in setting.layout.tokens]
    if idle:
        reasons.append(f"{', '.join(idle)}: shards no tokens, so that splitting the vocabulary over it costs no gather")
    if strategy.vocab_blocks > 1:
        reasons.append(f"in {strategy.vocab_blocks} blocks, since fewer take too much memory")
    members = count(sizes(setting.mesh), [axis for axis in strategy.vocab_axes if axis in setting.layout.tokens])
    if members > 1 and not parts.one_pass:
        split = count(sizes(setting.mesh), strategy.vocab_axes)
        ideal = (setting.vocab / max(1, setting.local_tokens)) ** 0.5
        reasons.append(f"split {split} ways; the square root of vocabulary entries per token is {ideal:.1f}")
    return tuple(reasons)


def _why_not(price: Cost, chosen: Cost, memory_limit: int | None) -> str:
    if memory_limit is not None and price.memory > memory_limit:
        return f"does not fit into {_mib(memory_limit)}"
    if price.bytes > chosen.bytes:
        return f"sends {price.bytes / chosen.bytes:.2f} times as much" if chosen.bytes else "sends more"
    if price.memory > chosen.memory:
        return "sends as much, and takes more memory"
    return "costs the same; its devices are further apart"


def described(strategy: Strategy) -> str:
    """A strategy in a few words."""
    words = [f"vocabulary over {', '.join(strategy.vocab_axes)}" if strategy.vocab_axes else "vocabulary whole"]
    if strategy.vocab_blocks > 1:
        words.append(f"{strategy.vocab_blocks} blocks{', gathered ahead' if strategy.prefetch else ''}")
    if strategy.keep_hidden:
        words.append("hidden states kept")
    return ", ".join(words)


def priced(price: Cost) -> str:
    """A cost in a few words."""
    parts = f"table {price.table / 1e6:.3f}, hidden {price.hidden / 1e6:.3f}, tokens {price.tokens / 1e6:.3f}"
    return f"{price.bytes / 1e6:.3f} MB a device ({parts}), memory {_mib(price.memory)}"


def _mib(size: float) -> str:
    return f"{size / 2**20:,.2f} MiB"
