"""Predictions on a Dask cluster: the numbers of one process, whoever computes them and whoever
dies.
"""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from macc.metrics import Calibration
from macc.predictions import stream_files
from macc.predictions.parts import files_of, tree

pytest.importorskip("distributed", reason="dask is not installed: pip install 'macc-torch[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of threads and sockets that Dask closes in its own time

import dask  # noqa: E402
import dask.array as da  # noqa: E402
from dask.distributed import Client, LocalCluster  # noqa: E402

from helpers.command import run  # noqa: E402
from macc.integrations.dask import calibration, of_files  # noqa: E402

SIZES = [70, 1, 40, 90, 33, 12, 50, 6, 7, 80]


def rows(count, seed):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet([1, 1, 1], count)
    return probs, np.array([generator.choice(3, p=row) for row in probs], dtype=np.int64)


def write(folder, sizes=SIZES):
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        probs, labels = rows(size, number)
        np.savez(folder / f"part-{number:02}.npz", probs=probs, labels=labels)
    return folder


def same(one: Calibration, two: Calibration) -> bool:
    mine, theirs = one.sums().parts, two.sums().parts
    return mine.keys() == theirs.keys() and all(
        torch.equal(part, theirs[name]) for name, part in mine.items()
    )


@pytest.fixture(scope="module")
def cluster():
    """Two real worker processes."""
    with (
        dask.config.set({"distributed.admin.tick.interval": "1h", "distributed.worker.daemon": True}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as local,
    ):
        yield local


class Died:
    """A reader of rows whose process is killed the first time it comes to one of its files."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __call__(self, path: Path, number: int):
        if number == 4 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with np.load(path) as file:
            return file["probs"], file["labels"]


def test_a_cluster_gives_the_result_of_one_process_to_the_last_digit(tmp_path, cluster):
    paths = files_of(write(tmp_path / "parts") / "*.npz")

    assert len(paths) == len(SIZES)
    assert same(of_files(cluster.scheduler_address, paths, {}), stream_files(paths, {}))


def test_a_worker_that_is_killed_changes_nothing(tmp_path, cluster):
    paths, marker = files_of(write(tmp_path / "parts") / "*.npz"), tmp_path / "killed"
    read = dask.delayed(Died(marker), pure=False)
    loaded = [read(path, number) for number, path in enumerate(paths)]
    probs, labels = (
        da.concatenate(
            [
                da.from_delayed(dask.delayed(lambda pair, at: pair[at])(pair, at), shape, dtype)
                for pair, shape in zip(loaded, shapes, strict=True)
            ]
        )
        for at, shapes, dtype in (
            (0, [(size, 3) for size in SIZES], np.float64),
            (1, [(size,) for size in SIZES], np.int64),
        )
    )
    with Client(cluster.scheduler_address):
        found = calibration(probs, labels)

    assert marker.exists()
    assert same(found, stream_files(paths, {}))


def test_other_partitions_change_counts_by_nothing_and_sums_by_rounding():
    probs, labels = rows(60, seed=0)

    def parts(chunk):
        arrays = da.from_array(probs, chunks=(chunk, 2)), da.from_array(labels, chunks=chunk)
        return calibration(*arrays, intervals=False).sums().parts

    one = parts(60)
    for chunk in (4, 25):
        for name, part in parts(chunk).items():
            torch.testing.assert_close(part, one[name], rtol=0, atol=1e-11)
        assert torch.equal(parts(chunk)["top"][[0, 2]], one["top"][[0, 2]])  # samples, and right ones


def test_columns_of_a_frame():
    frames = pytest.importorskip("dask.dataframe", exc_type=ImportError)
    import pandas

    probs, labels = rows(120, seed=1)
    whole = pandas.DataFrame(probs, columns=["cat", "dog", "emu"])
    whole["label"] = np.array(["cat", "dog", "emu"])[labels]
    whole["weight"] = np.arange(120) % 3
    found = calibration(frames.from_pandas(whole, npartitions=5), "label", weights="weight")
    alone = Calibration(3, classes=["cat", "dog", "emu"])
    alone.update(probs, labels, weights=whole["weight"].to_numpy())

    assert found.classes == ["cat", "dog", "emu"]
    assert found.compute()["ece"] == pytest.approx(alone.compute()["ece"], abs=1e-14)


def test_the_command_line(tmp_path, cluster):
    folder = write(tmp_path / "parts", sizes=[40, 30, 20])
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    pattern = str(folder / "*.npz")
    run("evaluate", pattern, "--metrics", "ece", "--json", here)
    run("evaluate", pattern, "--metrics", "ece", "--json", there, "--cluster", cluster.scheduler_address)

    assert json.loads(here.read_text()) == json.loads(there.read_text())
    assert json.loads(here.read_text())["ece"]["value"] > 0


def test_what_is_refused(tmp_path):
    folder = write(tmp_path / "parts", sizes=[5])
    with pytest.raises(ValueError, match="no Dask scheduler answers at nowhere"):
        of_files("nowhere://1", [folder / "part-00.npz"], {})
    with pytest.raises(ValueError, match="nothing-\\*.npz does not exist, and is a pattern of no file"):
        files_of(folder / "nothing-*.npz")
    np.savez(folder / "part-01.npz", probs=np.eye(2), labels=np.arange(2))
    with pytest.raises(
        ValueError, match="part-01.npz and .*part-00.npz: cannot merge states of other classes"
    ):
        stream_files(files_of(folder / "*.npz"), {})


@pytest.mark.parametrize("count", [1, 2, 8, 9, 64, 65, 100])
def test_the_tree_has_every_leaf_once_in_its_order(count):
    widest = 0

    def join(nodes):
        nonlocal widest
        nodes = list(nodes)
        widest = max(widest, len(nodes))
        return [leaf for node in nodes for leaf in node]

    assert tree(lambda at: [at], join, count) == list(range(count))
    assert widest <= 8
