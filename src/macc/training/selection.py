"""Which epoch's weights are the result, by validation alone."""

from collections.abc import Sequence
from typing import Any

from macc.training.recipe import Selection

ACCURACY_SLACK = 0.005
"""How far below the best accuracy, as a share, ``val_sce`` looks for a better calibrated epoch."""

Row = dict[str, Any]


def chosen_epoch(history: Sequence[Row], rule: Selection) -> int:
    """The epoch that a rule selects; the first of equal ones.

    ``val_refinement`` takes the least negative log-likelihood after temperature scaling, because
    every run ends with its scale mended. ``val_accuracy`` is the paper's rule: the first strict
    maximum. ``val_nll`` takes the least negative log-likelihood, ``val_sce`` the least SCE among
    epochs within 0.5 points of the best accuracy, ``last`` the last.

    Example:
        >>> rows = [{"epoch": 1, "val/accuracy": 0.9}, {"epoch": 2, "val/accuracy": 0.9}]
        >>> chosen_epoch(rows, "val_accuracy")
        1
    """
    if rule == "last":
        return int(history[-1]["epoch"])
    if rule == "val_accuracy":
        best = max(history, key=lambda row: row["val/accuracy"])
    elif rule == "val_sce":
        best = min(_accurate(history), key=lambda row: row["val/sce"])
    else:
        best = min(history, key=lambda row: row[f"val/{rule.removeprefix('val_')}"])
    return int(best["epoch"])


def candidate_epochs(history: Sequence[Row], rule: Selection) -> set[int]:
    """The epochs that may still be chosen, whatever follows: their weights must be kept.

    With ``val_sce`` a better accuracy later may rule out the present choice in favour of an earlier
    epoch that is now second: every epoch that no other beats in both is kept.
    """
    if rule != "val_sce":
        return {chosen_epoch(history, rule)}
    rows = _accurate(history)
    return {
        int(row["epoch"])
        for index, row in enumerate(rows)
        if not any(_beats(o, row) for o in rows[:index])
        and not any(_beats(o, row, strictly=True) for o in rows[index + 1 :])
    }


def _accurate(history: Sequence[Row]) -> list[Row]:
    limit = max(row["val/accuracy"] for row in history) - ACCURACY_SLACK
    # Accuracies are multiples of 1/n: rounding must not decide.
    return [row for row in history if row["val/accuracy"] >= limit - 1e-9]


def _beats(other: Row, row: Row, *, strictly: bool = False) -> bool:
    at_least = other["val/accuracy"] >= row["val/accuracy"] and other["val/sce"] <= row["val/sce"]
    if not strictly:
        return bool(at_least)
    return bool(at_least and other["val/sce"] < row["val/sce"])


def at_chance(history: Sequence[Row], chance: float, count: int, *, after: int) -> bool:
    """Whether validation accuracy has been no better than chance in the last two epochs.

    Args:
        history: The rows so far.
        chance: Share of the largest class among the validation samples.
        count: Number of validation samples.
        after: Epochs that are let pass, because a penalty was still warming up.
    """
    rows = [row for row in history if row["epoch"] > after][-2:]
    limit = chance + (chance * (1 - chance) / count) ** 0.5
    return len(rows) == 2 and all(row["val/accuracy"] <= limit for row in rows)
