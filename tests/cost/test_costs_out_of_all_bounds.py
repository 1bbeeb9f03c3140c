"""Costs that nobody means: refused with a code and a line, whatever they are."""

from __future__ import annotations

import pytest

from steptrace.cost import bound_of, parse_costs, period_of
from steptrace.diag.base import SteptraceError
from steptrace.diag.cost import CostFileError, CostValueError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.simulate import Spread

TEXT = """\
[links.wire]
bandwidth = "1 B/s"
[ops.fwd_bwd]
work = "1 s"
bytes = "1 B"
link = "wire"
deviation = 0.5
straggler_chance = 0.5
straggler_times = 2
[rollout]
requests = 5
capacity = 2
"""


@pytest.mark.parametrize(
    ("old", "new", "error", "line"),
    [
        ('"1 s"', '"1.7e308 s"', CostValueError, 4),
        ('"1 s"', '"1e31 s"', CostValueError, 4),
        ('"1 B"', '"1e200 TB"', CostValueError, 5),
        ('"1 B/s"', '"1e-300 B/s"\nlatency = "1e30 s"', CostValueError, 4),
        ('"1 B/s"', '"1e-40 B/s"', CostValueError, 3),
        ('link = "wire"', 'link = ["wire"]', CostFileError, 6),
        ("deviation = 0.5", "deviation = 1e300", CostValueError, 3),
        ("times = 2", "times = 1e308", CostValueError, 3),
        ("requests = 5", f"requests = 1{'0' * 20}", CostValueError, 10),
        ("capacity = 2", "capacity = 100000000000000", CostValueError, 10),
        ("capacity = 2", "capacity = 0", CostValueError, 10),
        ("capacity = 2", f"capacity = {'9' * 5000}", CostFileError, 1),
        ("capacity = 2", f"capacity = {'[' * 5000}{']' * 5000}", CostFileError, 1),
    ],
)
def test_what_is_out_of_all_bounds_is_refused_with_its_line(old: str, new: str, error: type, line: int):
    assert old in TEXT
    with pytest.raises(error) as refused:
        parse_costs(TEXT.replace(old, new))
    assert refused.value.loc.line == line


def test_control_the_largest_that_is_none_of_these_has_a_period():
    source = resolve("grpo")
    costs = parse_costs('[ops.other]\nwork = "1e30 s"\nissue = "1e30 s"\nship = "1e30 s"\ndeviation = 1e6\n')
    assert period_of(lower(source), costs.covering(source), micro_batches=9).seconds > 1e30
    assert bound_of(source, costs.covering(source), micro_batches=9).seconds > 1e30
    assert parse_costs(TEXT).rollout is not None


@pytest.mark.parametrize("values", [{"deviation": 1e300}, {"times": 1e300}, {"deviation": float("nan")}, {"chance": 2}])
def test_no_spread_is_out_of_all_bounds(values: dict[str, float]):
    with pytest.raises(SteptraceError, match="is no spread"):
        Spread(**values)
