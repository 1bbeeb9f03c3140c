"""A job on a mesh: what is said about devices, and how micro-batches are cut for it."""

import pytest
from job_cases import RECIPE, job

from steptrace.diag.job import JobOptionError, TooFewDevicesError
from steptrace.run.data.packing import Packer
from steptrace.run.job import run_job
from steptrace.run.job.devices import mesh_of, mesh_sizes
from steptrace.run.job.setup import Setup


def test_a_mesh_is_read_in_its_order():
    assert list(mesh_sizes("fsdp=2, data=1").items()) == [("fsdp", 2), ("data", 1)]
    assert mesh_sizes("") == {}
    assert mesh_of({}) is None
    assert dict(mesh_of({"data": 1, "expert": 1}).shape) == {"data": 1, "expert": 1}


@pytest.mark.parametrize("text", ["data", "data=0", "data=-1", "data=x", "tensor=2", "data=1,data=2", "data=1,", "=2"])
def test_what_is_no_mesh_is_refused_before_anything_runs(text, tmp_path):
    with pytest.raises(JobOptionError, match="data, fsdp, context, expert"):
        job(tmp_path, mesh=text)


def test_too_few_devices_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(TooFewDevicesError, match=r"takes 4096 devices(.|\n)*device_count=4096"):
        run_job(job(tmp_path / "a", mesh="data=64,fsdp=64"))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("mesh", "rows", "length"),
    [({}, 5, 27), ({"data": 2, "fsdp": 2}, 8, 27), ({"context": 2, "expert": 8}, 5, 28), ({"fsdp": 5}, 5, 27)],
)
def test_micro_batches_are_made_up_to_what_divides(mesh, rows, length):
    setup = Setup(RECIPE, None, None, None, None, 0, 4, 4, Packer(rows=5, length=27, pad_id=3))
    assert setup.packer_on(mesh) == Packer(rows=rows, length=length, pad_id=3)
