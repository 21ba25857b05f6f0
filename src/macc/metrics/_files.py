"""Predictions from files that nobody vouches for, and results written whole or not at all."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc._arrays import Array, names_in, read_npz
from macc._writing import write_whole

KINDS = ".npz, .npy, .csv or .parquet"
PREDICTIONS = ("probs", "logits", "labels")


@dataclass(frozen=True)
class Loaded:
    """Scores ``(N, K)`` or ``(N,)``, labels ``(N,)``, whether the scores are logits, and class names if known."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    from_logits: bool
    classes: list[str] | None

    def probs(self) -> npt.NDArray[Any]:
        """The scores as probabilities."""
        if not self.from_logits:
            return self.scores
        # Only logits need torch; reading files does not.
        from macc.metrics._inputs import predictions

        return predictions(self.scores, self.labels, from_logits=True).matrix().numpy()


def same_samples(path_a: Path, a: Loaded, path_b: Path, b: Loaded, *, first: int = 0) -> None:
    """Refuse to compare predictions of other samples or other classes; ``first`` were compared before."""
    if len(a.labels) != len(b.labels):
        raise ValueError(
            f"{path_a} has {len(a.labels)} samples and {path_b} has {len(b.labels)}; compare the same samples"
        )
    if not np.array_equal(a.labels, b.labels):
        at = int(np.flatnonzero(np.ravel(a.labels) != np.ravel(b.labels))[0])
        raise ValueError(
            f"{path_a} and {path_b} disagree on the label of sample {first + at + 1}; compare the same samples in the same order"
        )
    if a.classes is not None and b.classes is not None and a.classes != b.classes:
        raise ValueError(
            f"{path_a} and {path_b} have other class columns, or in another order; make them agree"
        )


def write_json(path: Path, content: Any) -> None:
    """Write numbers as JSON, whole or not at all; what is not finite becomes null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [clean(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    with write_whole(path) as file:
        file.write(json.dumps(clean(content), indent=2).encode() + b"\n")


def check_file(path: Path) -> None:
    """Refuse what is not a file with something in it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file ({KINDS})")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if size == 0:
        raise ValueError(f"{path} is empty")


def read_predictions(path: Path, logits: bool) -> Loaded:
    """The predictions of an ``.npz``."""
    arrays = {name: numbers(array, f"{path}: {name}") for name, array in read_npz(path, PREDICTIONS).items()}
    found = ", ".join(sorted(names_in(path))) or "nothing"
    if "labels" not in arrays:
        raise ValueError(f"{path} has no key 'labels'; it has {found}")
    if "probs" in arrays and "logits" in arrays:
        raise ValueError(f"{path} has both 'probs' and 'logits'; keep the one to be measured")
    if "probs" not in arrays and "logits" not in arrays:
        raise ValueError(f"{path} has neither 'probs' nor 'logits'; it has {found}")
    if logits and "probs" in arrays:
        raise ValueError(f"{path} has 'probs', and --logits says they are logits; rename the key to 'logits'")
    key = "logits" if "logits" in arrays else "probs"
    return Loaded(arrays[key], arrays["labels"], key == "logits", None)


def numbers(array: Array, name: str) -> Array:
    """The array, if it holds numbers."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds values of type {array.dtype}, not numbers")
    return array
