"""Batch statistics are those of the global batch: real gloo processes with uneven shards."""

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

import macc
from helpers import workers
from macc.losses import distributed

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed"),
    pytest.mark.xdist_group("gloo"),  # one pytest worker, so that the processes are started once
]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """What each rank found, for a world of 2 and of 4."""
    folder = tmp_path_factory.mktemp("gloo")
    multiprocessing.spawn(workers.run, (request.param, folder / "address", folder), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("text", workers.PENALTIES)
def test_gradient_after_averaging_is_that_of_one_process(ranks, text):
    model, x, y = workers.model_and_batch()
    macc.attach(model, p=0.5, estimator="analytic")
    value, gradient = workers.value_and_gradient(model, text, x, y)

    assert gradient.abs().max() > 1e-4
    for found in ranks:
        torch.testing.assert_close(found[text][0], value, rtol=1e-9, atol=0)
        assert (found[text][1] - gradient).norm() <= 1e-6 * gradient.norm()


@pytest.mark.parametrize("text", workers.PENALTIES)
def test_without_sync_each_process_sees_its_shard(ranks, text):
    model, x, y = workers.model_and_batch()
    macc.attach(model, p=0.5, estimator="analytic")
    for rank, found in enumerate(ranks):
        rows = workers.shard(rank, len(ranks))
        value, _ = workers.value_and_gradient(model, text, x[rows], y[rows])
        torch.testing.assert_close(found[text, "alone"][0], value)

    assert any(not torch.allclose(found[text, "alone"][0], found[text][0]) for found in ranks)


@pytest.mark.parametrize("options", ["{'find_unused_parameters': True}", "{'static_graph': True}"])
def test_an_attached_model_trains_under_ddp(ranks, options):
    for found in ranks:
        torch.testing.assert_close(found[options], ranks[0][options])
        assert found[options].abs().sum() > 0


@pytest.mark.parametrize("text", ["MACC", "MMCE"])
def test_penalties_compile_under_distributed(ranks, text):
    for found in ranks:
        torch.testing.assert_close(found[text, "compiled"], found[text][0])


def test_a_wrapped_model_is_refused(ranks):
    assert ranks[0]["refusal"] == (
        "the model is wrapped in DistributedDataParallel; attach first: `DistributedDataParallel(macc.attach(model))`"
    )


def test_moments_through_ddp(ranks):
    assert sum(len(found["eval"]) for found in ranks) == workers.ROWS


def test_without_processes_nothing_is_reduced(monkeypatch):
    def unwanted(*_):
        raise AssertionError("reduced without a process group")

    monkeypatch.setattr(distributed, "_sum_over_processes", unwanted)
    model, x, y = workers.model_and_batch()
    macc.attach(model)
    values = [workers.value_and_gradient(model, text, x, y)[0] for text in workers.PENALTIES]

    assert all(float(value) > 0 for value in values)
