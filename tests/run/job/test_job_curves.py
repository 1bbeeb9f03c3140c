import importlib.util
import re

import pytest

from steptrace.run.job.curves import draw_curves, smoothed

RECORDS = [{"step": float(step), "reward": step / 10, "kl": 0.1} for step in range(12)]


def test_smoothing_is_the_mean_of_the_last_values():
    assert smoothed([1.0, 2.0, 3.0, 4.0], window=2) == [1.0, 1.5, 2.5, 3.5]
    assert smoothed([]) == []


def test_the_curves_are_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = draw_curves(RECORDS, "a run", tmp_path)
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_they_are_a_page_that_needs_nothing(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    path = draw_curves(RECORDS, "p < 0.05", tmp_path)
    page = path.read_text()
    assert path == tmp_path / "curves.html"
    assert "p &lt; 0.05" in page
    assert "mean reward: 0 to 1.1 (least 0, most 1.1)" in page
    assert "entropy, nats: not recorded" in page
    assert not re.findall(r"src=|href=|https?:", page)
    first = re.search(r'points="([^"]*)"', page)[1].split()
    assert (first[0], first[-1], len(first)) == ("0.0,200.0", "420.0,0.0", 12)


def test_a_point_that_is_no_number_is_left_out(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    page = draw_curves([*RECORDS, {"step": 12.0, "reward": None, "kl": 0.1}], "a run", tmp_path).read_text()
    assert "mean reward: 0 to 1.1 (least 0, most 1.1)" in page
