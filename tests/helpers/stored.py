"""Reading what a test or a command has stored."""

import numpy as np


def arrays(path):
    """All arrays of an ``.npz`` file; the file is closed, so that no later test finds it left
    open.
    """
    with np.load(path) as found:
        return dict(found)
