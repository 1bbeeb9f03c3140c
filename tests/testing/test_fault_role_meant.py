"""A fault for a role that is misspelt names the role that is meant."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from steptrace.diag.faults import BadFaultError
from steptrace.run.remote.part import RemotePart
from steptrace.testing import Fault, faults, inject


def _refusal(monkeypatch: pytest.MonkeyPatch, rollout: object) -> str:
    op = SimpleNamespace(id="pack", kind="pack")
    monkeypatch.setattr(faults, "_calls", lambda plan: [SimpleNamespace(op=op)])
    session = SimpleNamespace(plan=None, parts=SimpleNamespace(rollout=rollout, trainer=None, reference=None))
    with pytest.raises(BadFaultError) as refused:
        inject(Fault("pack", step=0, kind="kill", worker="rolout")).begun(session)
    return str(refused.value)


def test_the_role_meant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`rollout`" in _refusal(monkeypatch, object.__new__(RemotePart))


def test_control_a_role_without_a_process_is_not_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _refusal(monkeypatch, object())
    assert "`rollout`" not in text
    assert "steptrace.remote" in text
