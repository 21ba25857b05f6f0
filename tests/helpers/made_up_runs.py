"""Runs that are made up: folders with the files that training leaves, so that every number is
known.
"""

import json

import numpy as np

from macc import experiments
from macc.experiments.ledger import open_ledger
from macc.io.arrays import write_arrays
from macc.io.json import write_json
from macc.io.writing import write_bytes

MACC_ALONE = {"name": "M", "loss": "CrossEntropy + MACC", "set": {"head.p": 0.2}}
MACC = {"name": "M", "loss": "CrossEntropy + {1,10}*MACC", "set": {"head.p": "{0.2,0.5}"}}


def made_up(tmp_path, **values):
    """The ledger of an experiment on digits."""
    values = {"name": "made-up", "datasets": "digits", "seeds": 2, **values}
    return open_ledger(experiments.Experiment.model_validate(values), tmp_path / "runs", None)


def train(ledger, job, *, accuracy=0.9, nll=0.3, scale=1.0, parts=("val", "test"), seconds=30.0, **more):
    """Leave what a finished training leaves; ``scale`` multiplies well calibrated logits."""
    recipe, run = ledger.recipe(job), ledger.run(job)
    write_bytes(run.path / "recipe.yaml", recipe.to_yaml().encode())
    row = {
        "epoch": 1,
        "seconds": seconds,
        "val/accuracy": accuracy,
        "val/nll": nll,
        "val/refinement": nll,
        "val/ece": 0.1,
        "val/sce": 0.02,
        **more,
    }
    write_bytes(run.path / "history.jsonl", (json.dumps(row) + "\n").encode())
    for index, part in enumerate(parts):
        rng = np.random.default_rng([job.seed, index])
        logits = 2 * rng.normal(size=(400, 10))
        truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        labels = np.array([rng.choice(10, p=each) for each in truth])
        arrays = {"logits": (scale * logits).astype("float32"), "labels": labels}
        write_arrays(run.path / "predictions" / f"{part}.npz", arrays)
    write_json(run.path / "metrics.json", {})
    write_json(run.path / "environment.json", {"commit": f"c{job.seed}", "packages": {"torch": "2"}})
    return run


def jobs_of(ledger, title, seeds=(0,)):
    dataset, method = ledger.catalog.datasets[0], ledger.experiment.method(title)
    return [
        ledger.job(dataset, method, point, seed) for point in ledger.points(dataset, method) for seed in seeds
    ]


def own_data(tmp_path, *shifts):
    """Features of somebody's own, with shifted sets of these names; and what names them in an
    experiment.
    """
    rng = np.random.default_rng(0)
    arrays = {}
    for name in ("train", "test", *shifts):
        arrays |= {f"{name}_features": rng.normal(size=(60, 4)), f"{name}_labels": np.arange(60) % 3}
    np.savez(tmp_path / "own.npz", **arrays)
    return f"arrays:{tmp_path / 'own.npz'}"
