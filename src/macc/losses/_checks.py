"""What a loss accepts, checked once for all of them.

Shape and type are always checked. Values are checked on plain CPU tensors only: on an accelerator a
check would wait for the device, and inside ``torch.compile`` it would break the graph.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from macc.heads import LogitMoments, at_least_float32, inside_transform

Output = Tensor | LogitMoments


# `F.cross_entropy` leaves out labels of -100 unless it is given another number; here no label is
# left out.
NO_LABEL = torch.iinfo(torch.int32).min

# An independent label that is to be left out.
UNKNOWN = -math.inf

# What data sets write where there is no label.
NOT_A_LABEL = (-100, -1, 255)


def values_readable(*tensors: Tensor) -> bool:
    """Whether looking at values neither waits for a device nor breaks a graph or a vmap."""
    return (
        not torch.compiler.is_compiling()
        and not inside_transform()
        and all(tensor.device.type == "cpu" and type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    )


def check_logits(logits: Any, *, classes: bool = True) -> Tensor:
    """Logits ``(N, K)`` of at least single precision; without ``classes``, those of labels."""
    if not isinstance(logits, Tensor):
        cure = "; pass its `.logits`" if hasattr(logits, "logits") else ""
        if isinstance(logits, tuple) and len(logits) == 2:
            cure = "; if these are the two moments, pass `macc.LogitMoments(*output)`"
        raise ValueError(
            f"a loss takes logits as a Tensor or LogitMoments, got {type(logits).__name__}{cure}"
        )
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}; pass the raw network output")
    if logits.ndim != 2:
        raise ValueError(
            f"logits must have shape (N, K) or (N, K, H, W), got {tuple(logits.shape)}; flatten further axes into the first"
        )
    if logits.shape[0] == 0:
        raise ValueError("the batch is empty; skip it")
    if logits.shape[1] < (2 if classes else 1):
        raise ValueError(
            f"logits must have one column per class, got {logits.shape[1]}; "
            "for one logit with labels 0 and 1 use a task such as BinaryCrossEntropy"
        )
    # A sum is one pass and NaN wherever a summand is; of infinities of both signs it is so too.
    if values_readable(logits) and bool(logits.detach().sum().isnan()) and bool(logits.isnan().any()):
        row = int(logits.isnan().any(dim=1).nonzero()[0])
        raise ValueError(f"logits hold NaN, first in row {row}; lower the learning rate or clip gradients")
    return at_least_float32(logits)


def check_moments(output: Any, name: str, *, classes: bool = True) -> LogitMoments:
    """Mean and variance, or an error that tells ``name``'s user how to get them."""
    if isinstance(output, Tensor):
        raise ValueError(
            f"{name} needs the variance of the logits and got plain logits; attach a head with "
            "`macc.attach(model)` (samples=1 has no variance) and call the model in train mode; "
            "for validation use `criterion.task(output, labels)`"
        )
    if not isinstance(output, LogitMoments):
        check_logits(output, classes=classes)
    mean, variance = check_logits(output.mean, classes=classes), output.variance
    if not isinstance(variance, Tensor) or not variance.is_floating_point() or variance.shape != mean.shape:
        got = (
            f"{variance.dtype} of {tuple(variance.shape)}" if isinstance(variance, Tensor) else repr(variance)
        )
        raise ValueError(
            f"variance must be a floating-point tensor with the shape of the mean, {tuple(mean.shape)}, got {got}"
        )
    if values_readable(variance) and not bool(variance.detach().amin() >= 0):  # the minimum is NaN if any is
        row = int((~(variance >= 0)).any(dim=1).nonzero()[0])
        raise ValueError(f"variance must be non-negative, got a negative or NaN entry in row {row}")
    return LogitMoments(mean, at_least_float32(variance))


def check_labels(labels: Any, logits: Tensor, *, soft: str | None = None) -> Tensor:
    """Class indices ``(N,)``; probabilities ``(N, K)`` too unless ``soft`` names who refuses."""
    rows, classes = logits.shape
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a Tensor of class indices, got {type(labels).__name__}")
    if labels.shape == (rows, classes):
        return _check_soft(labels, logits, soft)
    if labels.shape != (rows,):
        cure = "; use `labels.squeeze(1)`" if labels.shape == (rows, 1) else ""
        raise ValueError(
            f"labels must have shape ({rows},), one class index a row, got {tuple(labels.shape)}{cure}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be whole numbers, got {labels.dtype}; use `labels.long()`")
    if values_readable(labels):
        outside = ((labels < 0) | (labels >= classes)).nonzero()
        if len(outside):
            index = int(outside[0])
            label = int(labels[index])
            cure = f"; pass `ignore_index={label}` to leave such samples out" if label in NOT_A_LABEL else ""
            raise ValueError(
                f"labels must lie in [0, {classes - 1}] for {classes} classes, got {label} at index {index}{cure}"
            )
    return labels.long()


def _check_soft(labels: Tensor, logits: Tensor, refused_by: str | None) -> Tensor:
    if not labels.is_floating_point():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype} look like multi-label or one-hot "
            "targets; for labels that do not exclude each other use a task such as BinaryCrossEntropy, and one-hot rows are "
            "`labels.argmax(1)`"
        )
    if refused_by:
        raise ValueError(
            f"{refused_by} is defined for class indices of shape (N,), got class probabilities; "
            "use `labels.argmax(1)`, or a loss that takes them such as CrossEntropy"
        )
    tolerance = max(1e-3, 2 * torch.finfo(labels.dtype).eps)
    labels = labels.to(logits.dtype)
    if values_readable(labels):
        sums, least = labels.sum(dim=1), labels.amin(dim=1)
        bad = (~(((sums - 1).abs() <= tolerance) & (least >= 0))).nonzero()
        if len(bad):
            row = int(bad[0])
            found = (
                f"has the entry {float(least[row]):.4g}"
                if least[row] < 0
                else f"sums to {float(sums[row]):.4g}"
            )
            raise ValueError(
                f"soft labels must be probabilities that sum to 1 in each row, row {row} {found}; "
                "for labels that do not exclude each other use a task such as BinaryCrossEntropy"
            )
    return labels


def check_targets(labels: Any, logits: Tensor, *, soft: str | None = None) -> Tensor:
    """Independent labels ``(N, K)``: 0, 1, ``UNKNOWN``, or between unless ``soft`` refuses."""
    rows, columns = logits.shape
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a Tensor of zeros and ones, got {type(labels).__name__}")
    if columns == 1 and labels.shape == (rows,):
        labels = labels.unsqueeze(1)
    if labels.shape != (rows, columns):
        allowed = f"({rows}, {columns})" + (f" or ({rows},)" if columns == 1 else "")
        raise ValueError(
            f"labels must have shape {allowed}, a 0 or 1 for each logit, got {tuple(labels.shape)}; "
            "for one class index a row use a task such as CrossEntropy"
        )
    if labels.is_complex():
        raise ValueError(f"labels must be zeros and ones, got {labels.dtype}; use `labels.float()`")
    targets: Tensor = labels.to(logits.dtype)
    if values_readable(targets):
        good = (targets == 0) | (targets == 1) if soft else (targets >= 0) & (targets <= 1)
        good |= targets == UNKNOWN
        if not bool(good.all()):
            row, column = (int(index) for index in (~good).nonzero()[0])
            found, cure = float(targets[row, column]), ""
            if 0 < found < 1:
                cure = f"; {soft} takes nothing between them, BinaryCrossEntropy does"
            elif found in NOT_A_LABEL:
                cure = f"; pass `ignore_index={found:.0f}` to leave such labels out"
            raise ValueError(f"labels must be 0 or 1, got {found:.4g} in row {row}, column {column}{cure}")
    return targets


def known_mean(values: Tensor, labels: Tensor) -> Tensor:
    """Mean of ``(N, K)`` values of independent labels, without those whose label is ``UNKNOWN``."""
    known = labels != UNKNOWN
    return values.where(known, 0).sum() / known.sum().clamp(min=1)


def label_probs(labels: Tensor, logits: Tensor) -> Tensor:
    """Checked labels as class probabilities ``(N, K)``; values are not looked at."""
    if labels.ndim == 2:
        return labels
    return (labels[:, None] == torch.arange(logits.shape[1], device=labels.device)).to(logits.dtype)


def check_number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """``value`` as a float in ``[low, high]``."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool | str) or not (low <= number <= high and math.isfinite(number)):
        limits = f"at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise ValueError(f"`{name}` must be a number {limits}, got {value!r}")
    return number


def check_whole(name: str, value: Any, *, low: int, high: int) -> int:
    """``value`` if it is a whole number in ``[low, high]``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"`{name}` must be a whole number in [{low}, {high}], got {value!r}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}")
    return value
