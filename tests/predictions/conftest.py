"""Files of predictions are written into a folder of the test's own, and read in small batches where
a test asks.
"""

import pytest

from macc.predictions import source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_batches(monkeypatch):
    """Ten rows are read at once."""
    monkeypatch.setattr(source, "_MOST_ROWS", 10)
