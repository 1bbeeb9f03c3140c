"""A call of one's own op under the sanitizer, in a test without a run."""

from __future__ import annotations

import numpy as np
import pytest

import steptrace
from steptrace.diag.sanitize import CapturedStateError, ChangedInPlaceError, UndeclaredAccessError
from steptrace.testing import sanitized_call

steptrace.resource("means", "cell", doc="the mean of each step")


@steptrace.op(takes=("metrics",), gives="metrics", reads=["means[k-1]"], writes=["means[k]"])
def smoothed(metrics, *, weight: float = 0.5, step, resources):
    mean = weight * metrics["loss"] + (1 - weight) * (resources.read("means[k-1]") or 0.0)
    resources.write("means[k]", mean)
    return {**metrics, "mean": mean, "at": step}


def test_an_op_is_called_with_its_attributes_step_and_resources():
    values = {"means[k-1]": 4.0}
    made = sanitized_call(smoothed, {"loss": 2.0}, step=7, resources=values, weight=0.25)
    assert made == {"loss": 2.0, "mean": 3.5, "at": 7}
    assert values == {"means[k-1]": 4.0, "means[k]": 3.5}


def test_what_it_does_beside_its_declaration_is_refused():
    held = np.arange(3.0)

    @steptrace.op(takes=("metrics",), gives="metrics", reads=["means[k]"], writes=[])
    def wrong_cell(metrics, *, resources):
        return {"mean": resources.read("means[k-1]")}

    @steptrace.op(takes=("metrics",), gives="metrics", reads=[], writes=[])
    def in_place(metrics):
        metrics["loss"] = 0.0
        return metrics

    @steptrace.op(takes=("metrics",), gives="metrics", reads=[], writes=[])
    def counts(metrics):
        held[0] += 1
        return metrics

    with pytest.raises(UndeclaredAccessError):
        sanitized_call(wrong_cell, {})
    for op in (in_place, counts):
        with pytest.raises(ChangedInPlaceError):
            sanitized_call(op, {"loss": 1.0})


def test_a_model_that_it_holds_is_refused_and_a_declared_one_is_not():
    from flax import nnx

    module = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def judged(metrics):
        return metrics if module is not None else {}

    undeclared = steptrace.op(takes=("metrics",), gives="metrics", reads=[], writes=[])(judged)
    declared = steptrace.op(takes=("metrics",), gives="metrics", reads=["reference.params"], writes=[])(judged)
    with pytest.raises(CapturedStateError):
        sanitized_call(undeclared, {})
    assert sanitized_call(declared, {}) == {}
