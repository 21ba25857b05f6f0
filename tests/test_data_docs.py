"""What docs/data.md shows is what happens."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs" / "data.md"


@pytest.mark.skipif(not DOCS.is_file(), reason="the docs are not beside the tests")
def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(DOCS), module_relative=False, optionflags=flags)

    assert tried > 10
    assert not failed
