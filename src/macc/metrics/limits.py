"""Limits that predictions have to keep, for pipelines that stop when they do not."""

from collections.abc import Mapping

from macc.metrics._metric import registry
from macc.metrics._report import Report
from macc.tables import number, thousands
from macc.words import class_called


def broken_limits(report: Report, limits: Mapping[str, float]) -> list[str]:
    """Say why, for every metric whose *upper* bound exceeds its limit; nothing if none does.

    Args:
        report: The measured metrics, lower being better.
        limits: The largest value allowed for each.

    Returns:
        One sentence for each broken limit.
    """
    reasons = []
    for name, limit in limits.items():
        estimate = report[name]
        if estimate.high <= limit:
            continue
        value, high = (_write(v, name, report) for v in (estimate.value, estimate.high))
        level = f"{100 * report.confidence:.4g} %"
        if estimate.value <= limit:
            reasons.append(
                f"too few samples to tell: {_label(name, report)} {value} is within the limit of {_plain(limit, name)}, "
                f"but from {thousands(report.num_samples)} samples the {level} interval reaches {high}"
            )
        else:
            low = _write(estimate.low, name, report)
            reasons.append(
                f"{_label(name, report)} {value} is above the limit of {_plain(limit, name)} ({level} interval {low} to {high})"
            )
    return reasons


def kept_limits(report: Report, limits: Mapping[str, float]) -> list[str]:
    """One line for each limit that is kept."""
    return [
        f"{_label(name, report)} {_write(report[name].value, name, report)}, "
        f"at most {_write(report[name].high, name, report)}, "
        f"is within the limit of {_plain(limit, name)}"
        for name, limit in limits.items()
        if report[name].high <= limit
    ]


def limited(name: str, num_classes: int) -> str:
    """The metric that a limit is about: of two classes it is the error of the positive class.

    The errors of the two classes can cancel in that of the top label.

    Example:
        >>> limited("ece", 2), limited("ece", 10), limited("top_label_ece", 2)
        ('positive_ece', 'ece', 'ece')
    """
    if num_classes == 2 and f"positive_{name}" in registry() and registry()[name].top_label:
        return f"positive_{name}"
    return name.removeprefix("top_label_")


def limitable() -> list[str]:
    """What can be limited: metrics that should be small, and of two classes top-label errors."""
    found = [name for name, metric in registry().items() if metric.better == "lower" and metric.of == "any"]
    return found + [f"top_label_{name}" for name in found if f"positive_{name}" in registry()]


def _label(name: str, report: Report) -> str:
    metric = registry()[name]
    if metric.part_of_above:
        return metric.noun
    label = metric.title(two_classes=report.positive is not None)
    short = label.removesuffix(", positive class")
    if report.positive is None or short == label:
        return short
    return f"{short} of the positive {class_called(report.positive.name)}"


def _write(value: float, name: str, report: Report) -> str:
    return number(value, registry()[name].unit, report[name].high - report[name].low, suffix=True)


def _plain(limit: float, name: str) -> str:
    unit = registry()[name].unit
    return f"{unit.scale * limit:g}{unit.suffix}"
