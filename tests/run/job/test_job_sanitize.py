"""The main job under the sanitizer: it runs, and says that it has looked."""

from __future__ import annotations

import pytest
from job_cases import job

from steptrace.run.job import run_job

pytestmark = pytest.mark.slow


def test_a_sanitized_job_says_so(tmp_path, capsys):
    assert run_job(job(tmp_path / "out", steps=1, json=False, sanitize=True))["steps"] == 1
    assert "sanitized: users' ops do what they declare" in " ".join(capsys.readouterr().out.split())
