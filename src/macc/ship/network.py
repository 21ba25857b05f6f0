"""From raw inputs to calibrated answers as one module, for PyTorch and exported graphs."""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from macc import heads, posthoc
from macc.heads import LogitMoments
from macc.posthoc import Calibrator, Sets, Threshold
from macc.ship.files import Trained
from macc.training import checkpoints
from macc.training.building import has_head, rebuilt
from macc.training.inputs import Scaling
from macc.training.recipe import DROPOUT

EXPORTABLE = (
    posthoc.Identity,
    posthoc.Temperature,
    posthoc.VectorScaling,
    posthoc.MatrixScaling,
    posthoc.Platt,
    posthoc.EnsembleTemperature,
)
"""The calibrators that are plain arithmetic of the logits, in any precision."""

FOLDED_MEAN = 8
"""Up to how many standard deviations from zero the mean of a feature may be for ``W (x - mean)`` as
``W x - W mean``.
"""


class Answers(NamedTuple):
    """What the network says of ``N`` inputs."""

    labels: Tensor
    confidence: Tensor
    probs: Tensor
    certainty: Tensor | None
    accepted: Tensor
    in_set: Tensor | None = None


class Moments(nn.Module):
    """A classifier's last layer that gives the closed form of both moments in evaluation too.

    Args:
        linear: The layer, whose values are copied.
        p: Dropout rate.
        temperature: The mean is that of the logits over this; the variance that of the logits.
    """

    def __init__(self, linear: nn.Linear, p: float, temperature: float = 1.0) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.weight: Tensor
        self.register_buffer("weight", weight / temperature, persistent=False)
        self.spread: Tensor
        self.register_buffer("spread", weight.square() * (p / (1 - p)), persistent=False)
        self.column: Tensor | None
        bias = None if linear.bias is None else linear.bias.detach()[:, None] / temperature
        self.register_buffer("column", bias, persistent=False)

    def forward(self, features: Tensor) -> LogitMoments:
        """Both moments; a faster :func:`macc.heads.analytic_linear`."""
        # The samples as columns: for few classes and many samples, the product is about twice as
        # fast.
        samples = features.mT
        if self.column is None:
            mean = torch.mm(self.weight, samples)
        else:
            mean = torch.addmm(self.column, self.weight, samples)
        return LogitMoments(mean.mT, torch.mm(self.spread, samples.square()).mT)


class Network(nn.Module):
    """Raw inputs ``(N, …)`` to :class:`Answers`: preparation, network, calibrator, softmax,
    certainty, acceptance, sets.

    Certainty is that of the predicted class, from the closed form of the moments with the rate of
    the recipe's head, or 0.2 where the model has none. A model that does not end in a linear layer
    has no certainty.

    Args:
        trained: The model and what belongs to it.
        model: The module, where it was a user's own.
    """

    def __init__(self, trained: Trained, model: nn.Module | None = None) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # of dropout before the head, which is off
            body = rebuilt(trained.recipe, trained.inputs) if model is None else model
        checkpoints.load_module(body, trained.weights, trained.source)
        temperature = _temperature(trained.calibrator)
        self.body, self.p = _with_moments(body, 1.0 if temperature is None else temperature)
        self.kind = trained.inputs.kind
        # None where the last layer divides by the temperature already: by far the most common.
        self.calibrator = (
            trained.calibrator.module(double=not isinstance(trained.calibrator, EXPORTABLE))
            if temperature is None or self.p is None
            else None
        )
        self.accept(trained.rule)
        self.hold(trained.sets)
        scaling = trained.inputs.normalisation
        self.scaled = scaling is not None and not (model is None and _folded(self.body, scaling))
        shape = (1, -1, *(1,) * (len(trained.inputs.shape) - 1))
        for unit in (1, 255):
            if scaling is not None and self.scaled:
                mean, std = torch.tensor(scaling.mean), torch.tensor(scaling.std)
                self.register_buffer(f"mean{unit}", (unit * mean).view(shape), persistent=False)
                self.register_buffer(f"scale{unit}", (1 / (unit * std)).view(shape), persistent=False)
        self.requires_grad_(False).eval()

    def forward(self, inputs: Tensor) -> Answers:
        """Answers for raw inputs, as the data set had them."""
        output = heads.logits_in(self.body(self.prepared(inputs)))
        logits = output.mean if isinstance(output, LogitMoments) else output
        # The logits of the last layer lie in memory as columns of samples, and over such columns
        # softmax is about ten times as fast as over rows.
        columns = logits.mT.softmax(dim=0) if self.calibrator is None else self.calibrator(logits).mT
        confidence, labels = columns.max(dim=0)
        certainty = None
        if isinstance(output, LogitMoments):
            certainty = torch.rsub(output.variance.mT.gather(0, labels[None]).tanh_()[0], 1)
        probs = columns.mT
        held = None if self.sets is None else in_sets(self.sets, probs)
        return Answers(labels, confidence, probs, certainty, confidence >= self.threshold, held)

    def accept(self, rule: Threshold) -> None:
        """Accept by another rule from now on; nothing where it promises nothing."""
        self.threshold = math.inf if rule.threshold is None else rule.threshold

    def hold(self, sets: Sets | None) -> None:
        """Answer with these sets from now on, or with none."""
        if sets is not None and sets.seed is not None:
            raise ValueError(
                "a model answers the same whenever it is asked, so its sets cannot be randomised; fit them without"
            )
        self.sets = sets

    def prepared(self, inputs: Tensor) -> Tensor:
        """What the model itself takes: numbers of the scale it was trained on."""
        if self.kind == "tokens":
            return inputs.long()
        unit = 255 if inputs.dtype == torch.uint8 else 1
        values = inputs.float()
        if self.scaled:
            mean, scale = self.get_buffer(f"mean{unit}"), self.get_buffer(f"scale{unit}")
            return (values - mean).mul_(scale)
        return values / unit if unit > 1 else values


def in_sets(sets: Sets, probs: Tensor) -> Tensor:
    """Which classes are in the set of each row, ``(N, K)``; see :class:`macc.posthoc.Sets`."""
    # Apple's graphics processors have no double precision.
    values = probs if probs.device.type == "mps" else probs.double()
    limits = torch.tensor(sets.thresholds, dtype=values.dtype, device=values.device)
    return sets.class_scores(values) <= limits


def _folded(body: nn.Module, scaling: Scaling) -> bool:
    """Put the normalisation of features into a linear first layer, if no precision is lost."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (scaling.mean, scaling.std))
    if not isinstance(body, nn.Sequential) or len(body) < 2 or (mean.abs() > FOLDED_MEAN * std).any():
        return False
    flatten, first = body[0], body[1]
    if not (isinstance(flatten, nn.Flatten) and type(first) is nn.Linear and first.in_features == len(mean)):
        return False
    weight = first.weight.detach().double() / std
    bias = -weight @ mean if first.bias is None else first.bias.detach().double() - weight @ mean
    layer = nn.Linear(first.in_features, first.out_features, device=first.weight.device)
    layer.weight.data.copy_(weight)
    layer.bias.data.copy_(bias)
    body[1] = layer
    return True


def _temperature(calibrator: Calibrator) -> float | None:
    """What a calibrator divides the logits by, where it does nothing else."""
    if isinstance(calibrator, posthoc.Temperature):
        return calibrator.temperature
    return 1.0 if isinstance(calibrator, posthoc.Identity) else None


def _with_moments(body: nn.Module, temperature: float) -> tuple[nn.Module, float | None]:
    """The model with a last layer that gives moments, if it can have one, and the rate."""
    if not has_head(body):
        try:
            with warnings.catch_warnings(action="ignore"):
                body = heads.attach(body, p=DROPOUT)
        except ValueError:
            return body, None
    for name, module in body.named_modules():
        if isinstance(module, heads.MCDropoutLinear):
            layer = Moments(module, module.p, temperature)
            if not name:
                return layer, module.p
            body.set_submodule(name, layer)
            return body, module.p
    return body, None
