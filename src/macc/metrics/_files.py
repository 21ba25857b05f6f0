"""Predictions from files that nobody vouches for, and results written whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.io.json import finite
from macc.io.writing import write_whole
from macc.words import shown

KINDS = ".npz, .npy, .csv or .parquet"


@dataclass(frozen=True)
class Loaded:
    """Scores ``(N, K)`` or ``(N,)``, labels ``(N,)``, whether the scores are logits, and class names if known.

    ``rows`` says where in its file each sample stands, counted from 0; without it samples are all of the file.
    """

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    from_logits: bool
    classes: list[str] | None
    rows: npt.NDArray[np.int64] | None = None

    def probs(self) -> npt.NDArray[Any]:
        """The scores as probabilities."""
        if not self.from_logits:
            return self.scores
        # Only logits need torch; reading files does not.
        from macc.metrics._inputs import predictions

        return predictions(self.scores, self.labels, from_logits=True).matrix().numpy()


def write_json(path: Path, content: Any) -> None:
    """Write numbers as JSON, whole or not at all; what is not finite becomes null."""
    with write_whole(path) as file:
        file.write(json.dumps(finite(content), indent=2).encode() + b"\n")


def check_file(path: Path) -> None:
    """Refuse what is not a file with something in it."""
    name = shown(path)
    if path.is_dir():
        raise ValueError(f"{name} is a folder; name a file ({KINDS})")
    if not path.exists():
        raise ValueError(f"{name} does not exist")
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    if size == 0:
        raise ValueError(f"{name} is empty")
