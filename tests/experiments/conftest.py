"""What several tests of experiments share."""

import pytest

from helpers.made_up_runs import jobs_of, made_up, train
from macc.experiments.gather import gather


@pytest.fixture
def measured(tmp_path):
    """Two trained methods, temperature scaling and an ensemble, in domain and over two shifts;
    three seeds.
    """
    ledger = made_up(
        tmp_path,
        seeds=3,
        tests={"test": "test", "noise": ["own/noise-1", "own/noise-2"]},
        columns=["accuracy", "ece", "sce", "classwise_ece", "temperature", "u", "auroc", "minutes"],
        methods=[
            {"name": "CE", "loss": "CrossEntropy"},
            {"name": "CE+MACC", "loss": "CrossEntropy + MACC"},
            {"name": "CE+TS", "of": "CE", "posthoc": "temperature"},
            {"name": "CE x 3", "of": "CE", "ensemble": True},
        ],
    )
    parts = ("val", "test", "digits/noise-1", "digits/noise-2")
    for title, scale, more in (("CE", 2.5, {}), ("CE+MACC", 1.1, {"train/u": 0.75})):
        for job in jobs_of(ledger, title, seeds=range(3)):
            train(ledger, job, scale=scale, parts=parts, seconds=60 + job.seed, **more)
    ledger.catalog.datasets[0].sets = {"own": ["noise-1", "noise-2"]}
    return ledger, gather(ledger)
