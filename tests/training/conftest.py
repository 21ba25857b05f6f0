"""Intervals are not what tests of training look at: they get few resamples."""

import pytest


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr("macc.training.fitting.RESAMPLES", 100)
