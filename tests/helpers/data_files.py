"""Reading data sets whose files a test has written."""

import pytest

from macc import data


def load(name, root):
    """The set, from files whose checksums are not compared."""
    return data.load(name, root=root, verify=False)


def refused(name, root, *, verify=False):
    """The sentence with which the set is refused."""
    with pytest.raises(ValueError) as error:
        data.load(name, root=root, verify=verify)
    assert "\n" not in str(error.value)
    return str(error.value)


def sizes(splits):
    """The numbers of training, validation and test samples."""
    return len(splits.train), len(splits.val), len(splits.test)


def files_below(folder):
    """Every file below a folder except locks, as relative paths in their order."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )
