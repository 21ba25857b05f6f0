"""A stream gives what all samples at once give, on one process or several, in fixed memory."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from helpers.predictions import sample
from macc import metrics

SCALARS = ["ece", "mce", "sce", "accuracy", "nll", "brier"]


def assert_same(result, data, **options):
    for name in [*SCALARS, "classwise_ece"]:
        expected = getattr(metrics, name)(*data, **({} if name in ("accuracy", "nll", "brier") else options))
        np.testing.assert_allclose(result[name], expected, rtol=1e-12, atol=1e-15, err_msg=name)
    assert result["count"] == len(data[1])


@pytest.mark.parametrize("bins", [5, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batches_give_the_one_shot_values(bins, dtype):
    probs, labels = sample(1000, 20, dtype=dtype)
    calibration = metrics.Calibration(20, bins)
    for start in range(0, 1000, 64):
        calibration.update(probs[start : start + 64], labels[start : start + 64])

    assert_same(calibration.compute(), (probs, labels), bins=bins)


def test_compute_has_the_fixed_names():
    calibration = metrics.Calibration(3)
    calibration.update(*sample(10, 3))
    result = calibration.compute()

    assert {"ece", "mce", "sce", "classwise_ece", "accuracy", "nll", "brier", "count"} <= set(result)
    assert isinstance(result["classwise_ece"], torch.Tensor)
    assert result["classwise_ece"].shape == (3,)


def test_merge_adds_in_place_and_leaves_the_other():
    probs, labels = sample(300, 4)
    one, two = metrics.Calibration(4), metrics.Calibration(4)
    one.update(probs[:100], labels[:100])
    two.update(probs[100:], labels[100:])
    one.merge(two)

    assert_same(one.compute(), (probs, labels))
    assert two.compute()["count"] == 200
    with pytest.raises(ValueError, match="cannot merge states of other bins: 15 and 10"):
        one.merge(metrics.Calibration(4, 10))


def test_logits_are_declared_once():
    probs, labels = sample(100, 4)
    calibration = metrics.Calibration(4, from_logits=True)
    calibration.update(np.log(probs), labels)

    assert calibration.compute()["nll"] == pytest.approx(metrics.nll(probs, labels))


def test_a_refused_batch_changes_nothing():
    probs, labels = sample(100, 4)
    calibration = metrics.Calibration(4)
    calibration.update(probs, labels)
    bad = probs.copy()
    bad[-1, 0] = np.nan
    with pytest.raises(ValueError, match=r"probs\[99, 0\] is nan"):
        calibration.update(bad, labels)
    with pytest.raises(ValueError, match="probs has 3 classes, and this Calibration was made for 4"):
        calibration.update(*sample(10, 3))

    assert_same(calibration.compute(), (probs, labels))


def test_reset_and_nothing_seen():
    calibration = metrics.Calibration(4)
    calibration.update(*sample(10, 4))
    calibration.reset()
    with pytest.raises(ValueError, match=r"no samples were given yet; call update"):
        calibration.compute()


@pytest.mark.parametrize("num_classes", [1, 0, 2.0, True])
def test_num_classes_is_checked(num_classes):
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 2"):
        metrics.Calibration(num_classes)


def test_batches_without_an_entry_above_the_first_bin():
    """As models of many classes give them before they are trained."""
    probs, labels = np.full((20, 30), 1 / 30), np.arange(20)
    calibration = metrics.Calibration(30)
    calibration.update(probs, labels)

    assert_same(calibration.compute(), (probs, labels))


def test_memory_does_not_grow_with_samples():
    probs, labels = sample(2000, 5)
    calibration = metrics.Calibration(5)

    def held():
        """Bytes of all tensors the object holds."""
        waiting = vars(calibration._waiting).values()
        return sum(
            t.nbytes for t in (*calibration._sums.parts.values(), *waiting) if isinstance(t, torch.Tensor)
        )

    calibration.update(probs, labels)
    before = held()
    for _ in range(300):
        calibration.update(probs, labels)

    assert held() == before < 40 * 2**20
    assert calibration.compute()["count"] == 301 * 2000


def test_what_is_sent_to_another_process_is_small_and_whole():
    probs, labels = sample(2000, 5)
    calibration = metrics.Calibration(5)
    calibration.update(probs, labels)
    sent = pickle.dumps(calibration)
    received = pickle.loads(sent)
    received.update(probs, labels)

    assert len(sent) < 10_000
    assert received.compute()["count"] == 4000
    assert calibration.compute()["ece"] == pytest.approx(received.compute()["ece"], abs=1e-12)


def test_batches_of_other_types_and_more_than_can_wait(monkeypatch):
    monkeypatch.setattr("macc.metrics.streaming._WAITING_ELEMENTS", 5 * 70)
    probs, labels = sample(400, 5)
    calibration = metrics.Calibration(5)
    cuts = (0, 30, 60, 100, 110, 250, 320, 321, 400)
    for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
        part = probs[start:stop]
        calibration.update(part.astype(np.float32) if index % 3 == 2 else part, labels[start:stop])
        probs[start:stop] = part.astype(np.float32).astype(float) if index % 3 == 2 else part
    expected = metrics.Calibration(5)
    expected.update(probs, labels)

    for name, value in expected.compute().items():
        np.testing.assert_allclose(calibration.compute()[name], value, rtol=1e-12, err_msg=name)


WORKER = """
import sys
import numpy as np
import torch
import torch.distributed as dist
from macc import metrics

rank, folder = int(sys.argv[1]), sys.argv[2]
data = np.load(folder + "/data.npz")
# Uneven shards; the last process has seen nothing.
cuts = [0, 700, 1000, 1000]
mine = slice(cuts[rank], cuts[rank + 1])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
calibration = metrics.Calibration(6)
for probs, labels in zip(np.array_split(data["probs"][mine], 3), np.array_split(data["labels"][mine], 3)):
    if len(labels):
        calibration.update(torch.from_numpy(probs), torch.from_numpy(labels))
for _ in range(2):  # computing twice must not count anything twice
    result = calibration.compute()
np.savez(f"{folder}/{rank}.npz", **{name: np.asarray(value) for name, value in result.items()})
if rank == 0:
    alone = metrics.Calibration(6, sync=False)
    alone.merge(calibration)
    assert alone.compute()["count"] == 700
dist.barrier()
dist.destroy_process_group()
"""


def test_processes_with_uneven_shards_sum_exactly(tmp_path):
    probs, labels = sample(1000, 6)
    np.savez(tmp_path / "data.npz", probs=probs, labels=labels)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=100)
        assert worker.returncode == 0, errors

    for rank in range(3):
        with np.load(tmp_path / f"{rank}.npz") as result:
            assert_same(dict(result), (probs, labels))
