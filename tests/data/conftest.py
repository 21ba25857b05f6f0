"""No test of data sets reads a user's files or cache, or asks the network."""

import pytest


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MACC_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.delenv("MACC_DATA", raising=False)
