"""What several tests of shipping share."""

import pytest

from macc import training


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A small network on digits, trained for three epochs; other tests only read it."""
    recipe = training.load("digits", scale="smoke", loss="CrossEntropy + MACC", overrides=["epochs=3"])
    return training.fit(recipe, out=tmp_path_factory.mktemp("digits"), resamples=100)
