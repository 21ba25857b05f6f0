"""Heads: layers that return the moments of the logits in training, and plain logits in evaluation.

Shape legend: ``N`` samples, ``D`` features, ``K`` classes, ``S`` dropout masks.
"""

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macc.heads._moments import (
    LogitMoments,
    analytic_linear,
    at_least_float32,
    chunked_sampled_linear,
    dropped,
    full_precision,
    moments_over_samples,
)

Estimator = Literal["sampled", "analytic"]


def check_knobs(p: float, samples: int, estimator: str) -> None:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"`p` must lie in [0, 1), got {p!r}; 0.2 is a common choice")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"`samples` must be a whole number of dropout masks, at least 1, got {samples!r}")
    if estimator not in get_args(Estimator):
        raise ValueError(f"`estimator` must be 'sampled' or 'analytic', got {estimator!r}")
    if estimator == "analytic" and samples == 1:
        raise ValueError(
            "`samples=1` is ordinary dropout and has no moments to compute; "
            "drop `samples` for estimator='analytic', or use estimator='sampled'"
        )


def needs_two(samples: int) -> None:
    if samples < 2:
        raise ValueError(
            "a variance needs at least two dropout masks and this head has samples=1 (ordinary dropout); "
            "ask for `moments(..., samples=10)` or `moments(..., estimator='analytic')`"
        )


class DropoutHead(nn.Module):
    """What :class:`MCDropoutLinear` and :class:`MCDropoutConv2d` share, before the plain class.

    The plain layer gives the logits. A subclass says what shape features have and how both
    estimators compute.
    """

    p: float
    samples: int
    estimator: Estimator
    weight: Tensor
    bias: Any

    def forward(self, input: Tensor) -> Tensor | LogitMoments:  # noqa: A002 - the plain layer's name
        """Logits in evaluation and with ``samples=1``, :class:`LogitMoments` in training."""
        if not self.training:
            return cast("Tensor", super().forward(input))
        if self.samples == 1:
            return cast("Tensor", super().forward(F.dropout(input, p=self.p, training=True)))
        return self.moments(input)

    def moments(
        self, features: Tensor, *, samples: int | None = None, estimator: Estimator | None = None
    ) -> LogitMoments:
        """Mean and variance of the logits, in any mode.

        Args:
            features: What the layer is applied to.
            samples: Number of masks in place of the head's own; asks for sampling unless
                ``estimator`` says otherwise.
            estimator: Estimator in place of the head's own.

        Returns:
            Two tensors of the shape of the logits.
        """
        estimator = estimator or (self.estimator if samples is None else "sampled")
        samples = self.samples if samples is None else samples
        self.check_features(features)
        if estimator != "analytic":
            check_knobs(self.p, samples, estimator)
            needs_two(samples)
        with full_precision(features):
            weight = at_least_float32(self.weight)
            bias = None if self.bias is None else at_least_float32(self.bias)
            values = features.to(weight.dtype)
            if estimator == "analytic":
                return self.in_closed_form(values, weight, bias)
            return self.over_masks(values, weight, bias, samples)

    def check_features(self, features: Tensor) -> None:
        """Refuse features of a shape that the layer does not take."""
        raise NotImplementedError

    def in_closed_form(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> LogitMoments:
        """Moments over infinitely many masks."""
        raise NotImplementedError

    def over_masks(self, features: Tensor, weight: Tensor, bias: Tensor | None, samples: int) -> LogitMoments:
        """Moments over ``samples`` masks."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The layer's own text with the knobs of the head."""
        return f"{super().extra_repr()}, p={self.p}, samples={self.samples}, estimator={self.estimator!r}"


class MCDropoutLinear(DropoutHead, nn.Linear):  # type: ignore[misc]
    r"""A linear classifier that reports mean and variance of its logits under dropout of its input.

    In evaluation it is the linear layer: plain logits, exactly the mean over masks. In training it
    returns :class:`LogitMoments`. ``estimator="sampled"`` is the paper's: features once,
    ``samples`` masks, one batched product, unbiased variance. ``estimator="analytic"`` is the limit
    of both moments for infinitely many masks, without noise and without sampling:

    .. math:: \bar z = W f + b, \qquad u = \tfrac{p}{1-p} (W \circ W)(f \circ f)

    The task loss then sees no dropout noise either, so it is a limit of the paper's loss and not
    its training with ten masks. ``samples=1`` is ordinary dropout: a plain tensor, no variance.

    Parameters have the names of ``nn.Linear``: a checkpoint moves between the two in both
    directions. Moments are computed in float32 under autocast and for half-precision weights.
    Inside ``torch.func.vmap`` the sampled form needs ``randomness="different"``;
    ``torch.jit.script`` is not supported.

    Args:
        in_features: ``D``.
        out_features: ``K``: one per class, one per label, or the one logit of a binary classifier.
        bias: Whether to add a bias.
        device: Where the parameters live.
        dtype: Their type.
        p: Dropout rate in ``[0, 1)``.
        samples: Number of masks.
        estimator: ``"sampled"`` or ``"analytic"``.

    Example:
        >>> import torch
        >>> head = MCDropoutLinear(8, 3, p=0.2)
        >>> output = head(torch.ones(5, 8))
        >>> type(output).__name__, tuple(output.variance.shape)
        ('LogitMoments', (5, 3))
        >>> tuple(head.eval()(torch.ones(5, 8)).shape)
        (5, 3)

    Reference:
        Kugathasan and Khan, *Multiclass Alignment of Confidence and Certainty for Network
        Calibration*, GCPR 2023, section 3.2.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        p: float = 0.2,
        samples: int = 10,
        estimator: Estimator = "sampled",
    ) -> None:
        check_knobs(p, samples, estimator)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.p = p
        self.samples = samples
        self.estimator = estimator

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, *, p: float = 0.2, samples: int = 10, estimator: Estimator = "sampled"
    ) -> "MCDropoutLinear":
        """A head that shares the parameters of ``linear``."""
        head = cls(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            device="meta",
            p=p,
            samples=samples,
            estimator=estimator,
        )
        head.weight, head.bias = linear.weight, linear.bias
        return head.train(linear.training)

    def to_linear(self) -> nn.Linear:
        """A plain linear layer that shares the parameters of this head."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear.train(self.training)

    def check_features(self, features: Tensor) -> None:
        """``(N, D)``; of further leading axes, one is kept."""
        if features.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"features must have {self.in_features} values a row, got shape {tuple(features.shape)}"
            )
        if features.ndim > 3:
            raise ValueError(
                f"a linear head takes features (N, {self.in_features}), got shape {tuple(features.shape)}; "
                "for a map of logits use a 1x1 convolution, whose classes are the second axis"
            )

    def in_closed_form(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> LogitMoments:
        """Moments over infinitely many masks."""
        return LogitMoments(*analytic_linear(features, weight, bias, self.p))

    def over_masks(self, features: Tensor, weight: Tensor, bias: Tensor | None, samples: int) -> LogitMoments:
        """Moments over ``samples`` masks, in chunks of rows."""
        rows = features if features.ndim == 2 else features.reshape(-1, self.in_features)
        parts = chunked_sampled_linear(rows, weight, bias, self.p, samples)
        if features.ndim == 2:
            return LogitMoments(*parts)
        shape = (*features.shape[:-1], self.out_features)
        return LogitMoments(*(part.reshape(shape) for part in parts))


class MCDropout(nn.Module):
    """Sampled moments for a head that is not one linear layer.

    Drops the input of ``module`` under ``samples`` masks and runs it once on all of them, in the
    type of its parameters; there is no closed form here and no bound on memory. A batch norm inside
    ``module`` sees ``samples`` times the batch.

    Args:
        module: Maps features ``(N, …)`` to logits ``(N, K)``.
        p: Dropout rate in ``[0, 1)``.
        samples: Number of masks; 1 is ordinary dropout and returns a plain tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> head = MCDropout(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)))
        >>> tuple(head(torch.ones(5, 8)).mean.shape)
        (5, 3)
    """

    def __init__(self, module: nn.Module, *, p: float = 0.2, samples: int = 10) -> None:
        super().__init__()
        check_knobs(p, samples, "sampled")
        self.module = module
        self.p = p
        self.samples = samples

    def forward(self, features: Tensor) -> Tensor | LogitMoments:
        """Logits in evaluation and with ``samples=1``, :class:`LogitMoments` in training."""
        if not self.training:
            return cast("Tensor", self.module(features))
        if self.samples == 1:
            return cast("Tensor", self.module(F.dropout(features, p=self.p, training=True)))
        return self.moments(features)

    def moments(
        self, features: Tensor, *, samples: int | None = None, estimator: Estimator | None = None
    ) -> LogitMoments:
        """Mean and variance of the logits, in any mode; see :meth:`MCDropoutLinear.moments`."""
        samples = self.samples if samples is None else samples
        if estimator == "analytic":
            raise ValueError(
                "the closed form exists for one linear layer only; leave `estimator` out to sample this head"
            )
        check_knobs(self.p, samples, estimator or "sampled")
        needs_two(samples)
        with full_precision(features):
            masked = dropped(features, self.p, samples)
            weight = next(self.module.parameters(), None)
            if weight is not None:
                masked = masked.to(weight.dtype)
            logits = self.module(masked.flatten(0, 1))
            return moments_over_samples(at_least_float32(logits.unflatten(0, (samples, -1))))

    def extra_repr(self) -> str:
        """The knobs."""
        return f"p={self.p}, samples={self.samples}"


Head = DropoutHead | MCDropout
