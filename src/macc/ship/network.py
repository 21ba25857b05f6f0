"""The whole way from raw inputs to calibrated answers as one module, for PyTorch and for exported graphs alike."""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from macc import heads, posthoc
from macc.heads import LogitMoments
from macc.posthoc import Threshold
from macc.ship.files import Trained
from macc.training import checkpoints
from macc.training.building import has_head, rebuilt
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


class Answers(NamedTuple):
    """What the network says of ``N`` inputs."""

    labels: Tensor
    confidence: Tensor
    probs: Tensor
    certainty: Tensor | None
    accepted: Tensor


class Moments(nn.Module):
    """A classifier's last layer that gives the closed form of both moments in evaluation too.

    Args:
        linear: The layer, whose parameters are shared.
        p: Dropout rate.
    """

    def __init__(self, linear: nn.Linear, p: float) -> None:
        super().__init__()
        self.weight, self.bias, self.p = linear.weight, linear.bias, p

    def forward(self, features: Tensor) -> LogitMoments:
        """Mean and variance of the logits."""
        return LogitMoments(*heads.analytic_linear(features, self.weight, self.bias, self.p))


class Network(nn.Module):
    """Raw inputs ``(N, …)`` to :class:`Answers`: preparation, network, calibrator, softmax, certainty, acceptance.

    Certainty is that of the predicted class, from the closed form of the moments with the rate of the recipe's head,
    or 0.2 where the model has none. A model that does not end in a linear layer has no certainty.

    Args:
        trained: The model and what belongs to it.
        model: The module, where it was a user's own.
    """

    def __init__(self, trained: Trained, model: nn.Module | None = None) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # of dropout before the head, which is off
            body = rebuilt(trained.recipe, trained.inputs) if model is None else model
        checkpoints.load_module(body, trained.weights, trained.source)
        self.body, self.p = _with_moments(body)
        self.kind = trained.inputs.kind
        self.calibrator = trained.calibrator.module(double=not isinstance(trained.calibrator, EXPORTABLE))
        self.accept(trained.rule)
        scaling = trained.inputs.normalisation
        self.scaled = scaling is not None
        shape = (1, -1, *(1,) * (len(trained.inputs.shape) - 1))
        for unit in (1, 255):
            if scaling is not None:
                mean, std = torch.tensor(scaling.mean), torch.tensor(scaling.std)
                self.register_buffer(f"mean{unit}", (unit * mean).view(shape), persistent=False)
                self.register_buffer(f"scale{unit}", (1 / (unit * std)).view(shape), persistent=False)
        self.requires_grad_(False).eval()

    def forward(self, inputs: Tensor) -> Answers:
        """Answers for raw inputs, as the data set had them."""
        output = heads.logits_in(self.body(self.prepared(inputs)))
        logits, variance = (
            (output.mean, output.variance) if isinstance(output, LogitMoments) else (output, None)
        )
        probs = self.calibrator(logits)
        confidence, labels = probs.max(dim=1)
        certainty = None
        if variance is not None:
            certainty = 1 - variance.gather(1, labels[:, None])[:, 0].tanh()
        return Answers(labels, confidence, probs, certainty, confidence >= self.threshold)

    def accept(self, rule: Threshold) -> None:
        """Accept by another rule from now on; nothing where it promises nothing."""
        self.threshold = math.inf if rule.threshold is None else rule.threshold

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


def _with_moments(body: nn.Module) -> tuple[nn.Module, float | None]:
    """The model with its last layer replaced by one that gives moments, and the rate; as it is if it cannot be."""
    if not has_head(body):
        try:
            with warnings.catch_warnings(action="ignore"):
                body = heads.attach(body, p=DROPOUT)
        except ValueError:
            return body, None
    for name, module in body.named_modules():
        if isinstance(module, heads.MCDropoutLinear):
            layer = Moments(module, module.p)
            if not name:
                return layer, module.p
            body.set_submodule(name, layer)
            return body, module.p
    return body, None
