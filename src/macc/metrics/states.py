"""States of streams in files: ``macc evaluate --state`` writes, ``macc merge`` adds them."""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from macc.io.arrays import read_npz
from macc.io.writing import write_whole
from macc.metrics.inputs import check_bins
from macc.metrics.streaming import Calibration
from macc.metrics.sums import GROUPS, shapes

_FORMAT = 5


def save(calibration: Calibration, path: Path) -> None:
    """Write the state, whole or not at all; :func:`load` reads it."""
    about = {
        "macc_state": _FORMAT,
        "num_classes": calibration.num_classes,
        "bins": calibration.bins,
        "classes": calibration.classes,
        "positive": calibration.positive,
    }
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {name: part.numpy() for name, part in calibration.sums().parts.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=text, **arrays)
    with write_whole(path) as file:
        file.write(buffer.getvalue())


def load(path: Path, seed: int = 0) -> Calibration:
    """Read a state that nobody vouches for; the seed is of the groups of what is added to it."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a state written by macc evaluate --state")
    arrays = read_npz(path, {"about", *shapes(2, 1, groups=GROUPS, positive=True)})
    try:
        about = json.loads(arrays.pop("about").tobytes())
        size, bins, classes = about["num_classes"], about["bins"], about["classes"]
        usable = about["macc_state"] == _FORMAT and type(size) is int and isinstance(classes, list)
        usable = usable and len(classes) == size and all(isinstance(name, str) for name in classes)
        check_bins(bins)
        # Nothing is allocated from a number in the file before the arrays are known to have its
        # size.
        if not usable or size < 2 or not _are_sums(arrays, size, bins):
            raise ValueError
        state = Calibration(
            size, bins, intervals=True, classes=classes, positive=about["positive"], seed=seed
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is not a state that this version of macc can read; write it anew") from None
    if not _is_possible(arrays, state.positive):
        raise ValueError(f"{path} holds sums that no samples can have; write it anew")
    for name, part in state.sums().parts.items():
        part.copy_(torch.from_numpy(arrays[name]))
    return state


def merged(paths: Sequence[Path]) -> Calibration:
    """The states of several files put together, one at a time."""
    places = [path.resolve() for path in paths]
    twice = next((path for k, path in enumerate(paths) if places[k] in places[:k]), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice, and its samples would count twice; name each state once")
    # What the files hold gives their order and the numbers of their groups, so that the order of
    # their names is all one.
    order = sorted((_digest(path), path) for path in paths)
    seed = int.from_bytes(hashlib.sha256(b"".join(digest for digest, _ in order)).digest())
    state = load(order[0][1], seed)
    for _, path in order[1:]:
        other = load(path)
        try:
            state.merge(other)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return state


def _digest(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file")
    return hashlib.sha256(path.read_bytes()).digest()


def _are_sums(arrays: dict[str, npt.NDArray[Any]], num_classes: int, bins: int) -> bool:
    """Whether these are the sums of so many classes and bins, all of them numbers."""
    wanted = shapes(num_classes, bins, groups=GROUPS, positive=num_classes == 2)
    return arrays.keys() == wanted.keys() and all(
        arrays[name].shape == shape
        and arrays[name].dtype == np.float64
        and bool(np.isfinite(arrays[name]).all())
        for name, shape in wanted.items()
    )


@np.errstate(over="ignore", invalid="ignore")  # whatever numbers a file may hold
def _is_possible(sums: dict[str, npt.NDArray[np.float64]], positive: int | None) -> bool:
    """Whether samples can have these sums: counts agree, and none passes what they allow."""
    samples, right, loss, squared, infinite = sums["scores"].T
    squares, rows, relative, repeated = sums["weights"]
    count = samples.sum()
    slack = 1e-6 * (1 + count)  # sums of so many numbers are rounded
    hits, every = sums["hits"], sums["all"]
    counted = [infinite, sums["images"], sums["weights"][1:], sums["class_weights"][0]]
    summed = [samples, right, sums["class_samples"], hits, every]
    gaps_of_classes = sums["class_gaps"]

    def same(one: Any, other: Any) -> bool:
        """Whether sums of weights agree; those of samples without weights do so exactly."""
        return _within(one - other, -slack, slack) if relative else bool(np.all(one == other))

    found = [
        not (relative and repeated),
        relative > 0 or (squares == count and rows == count),
        # By the inequality of Cauchy and Schwarz.
        _within(count**2, 0, squares * rows * (1 + 1e-6) + slack),
        _within(relative, 0, rows) and _within(repeated, 0, rows),
        same(sums["class_weights"][0].sum() - rows, 0.0) and same(sums["class_weights"][1].sum(), squares),
        _within(right, 0, samples + (slack if relative else 0)),
        _within(sums["images"], 0, rows),
        _within(infinite, 0, rows),
        _within(loss, -slack, np.inf),
        _within(squared, -slack, 2 * samples + slack),
        _within(sums["by_outcome"], -slack, [[np.inf, 2 * count + slack]]),
        same(sums["class_samples"].sum(), count),
        _within(np.abs(gaps_of_classes).sum(1), 0, sums["class_samples"][:, None] + slack),
        _within(gaps_of_classes.sum((0, 1)) - (hits.sum(1) - sums["totals"]), -slack, slack),
        _within(sums["class_null"], 0, np.inf),
        _within(sums["class_null"].sum(0), 0, squares / 4 + slack),
        _within(sums["totals"], 0, count + slack),
        # Rows of bfloat16 may sum to 1 within 2 %.
        _within(sums["totals"].sum(), 0.98 * count - slack, 1.02 * count + slack),
        _within(hits, 0, every + (slack if relative else 0)),
        same(every.sum(1), count) and same(hits.sum(), count),
    ]
    parts = [("top", right.sum())]
    if positive is not None:
        parts.append(("positive", hits[positive].sum()))
        found.append(_within(sums["positive_brier"], -slack, samples + slack))
    for name, number_right in parts:
        filled, claimed, correct, spread, of_squares = sums[name]
        gaps, bins = sums[f"{name}_gaps"], len(filled)
        summed += [filled, correct]
        low, high = np.arange(bins) / bins, np.arange(1, bins + 1) / bins
        found += [
            same(filled.sum(), count)
            and same(correct.sum(), number_right)
            and same(of_squares.sum(), squares),
            _within(correct, 0, filled + (slack if relative else 0)),
            _within(claimed, filled * low - slack, filled * high + slack),
            _within(spread, -slack, of_squares / 4 + slack),
            _within(np.abs(gaps).sum(1), 0, samples + slack),
            _within(gaps.sum(0) - (correct - claimed), -slack, slack),
        ]
    counted += [] if relative else summed
    return all(found) and all(bool(((part >= 0) & (part == part.round())).all()) for part in counted)


def _within(values: Any, low: Any, high: Any) -> bool:
    """Whether all values lie between their limits."""
    return bool(((values >= low) & (values <= high)).all())
