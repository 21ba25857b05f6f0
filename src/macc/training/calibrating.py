"""Every run ends calibrated: a calibrator fitted to its validation logits."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from macc import posthoc
from macc.metrics.temperature import best_temperature
from macc.training.recipe import Calibrate
from macc.words import documented, listed

FEW = 100
"""Fewer validation samples than this leave the scale of a model open."""
UNSEEN = 1.0
"""Samples that are taken to be there beside those of the validation set, with a label that may be
any class.
"""


@documented
def fitted_to(logits: Tensor, labels: Tensor, how: Calibrate, classes: Sequence[str]) -> posthoc.Calibrator:
    """The calibrator of a run; its notes say what the validation set is too small for.

    A validation set without errors asks for a temperature of 0, at which the first error on new
    data costs any amount. So the temperature is fitted with one sample more, as in
    :func:`macc.metrics.refinement`, by which epochs are selected.

    Args:
        logits: Validation logits ``(N, K)``.
        how: ``"temperature"``, or ``"auto"`` for the best of all calibrators by cross-validation.
        classes: Names of the classes.
    """
    notes = _lacking(labels, classes)
    calibrator: posthoc.Calibrator | None = None
    if how == "auto":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # they are notes of the calibrator too
                calibrator = posthoc.best(logits, labels).calibrator
        except ValueError as error:
            notes.append(f"{error}; a temperature is fitted instead")
    if calibrator is None:
        found = best_temperature(logits, labels, unseen=UNSEEN)
        calibrator = posthoc.Temperature(len(classes), found.value, found.at_bound, notes=found.notes)
    return replace(calibrator, notes=(*notes, *calibrator.notes))


def _lacking(labels: Tensor, classes: Sequence[str]) -> list[str]:
    """What the validation set is too small for, a sentence each."""
    notes = []
    if len(labels) < FEW:
        notes.append(
            f"{len(labels)} validation samples are few to calibrate by; have {FEW} at least, better 1000"
        )
    counts = labels.bincount(minlength=len(classes)).tolist()
    absent = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if absent:
        notes.append(
            f"the validation set has no sample of {listed(absent)}, so nothing shows how sure the model may be there; "
            "move some from training to validation"
        )
    return notes
