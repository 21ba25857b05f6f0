"""Mean and variance of the logits under dropout of the last features: sampled, and in closed form.

Shape legend: ``N`` samples, ``D`` features, ``K`` classes, ``S`` dropout masks, ``H`` and ``W``
sides of a map.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

# Above this many bytes of masks, rows are sampled in chunks whose masks are drawn again in the
# backward pass.
MASK_BYTES = 256 * 2**20


class LogitMoments(NamedTuple):
    """Mean and variance of the logits over dropout masks.

    What an attached model returns in training. In evaluation it returns a plain tensor. Dense
    prediction has a class for each pixel: of four axes or more, ``(N, K, H, W)``, the second is
    that of the classes.

    Args:
        mean: Mean logits, ``(N, K)`` or ``(N, K, H, W)``.
        variance: Variance of the logits, of the same shape, the paper's uncertainty u.

    Example:
        >>> import torch
        >>> output = LogitMoments(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.5]]))
        >>> output.probs
        tensor([[0.8808, 0.1192]])
        >>> output.certainty
        tensor([[1.0000, 0.5379]])
        >>> output.separation
        tensor([2.8284])
    """

    mean: Tensor
    variance: Tensor

    @property
    def probs(self) -> Tensor:
        """The paper's mean confidence, the softmax of the mean logits, of their shape.

        Of one logit, or of independent labels, the probabilities are ``mean.sigmoid()``.
        """
        self._refuse_one_logit("probs")
        return self.mean.softmax(dim=self._class_axis)

    @property
    def certainty(self) -> Tensor:
        """The paper's certainty, ``1 - tanh(variance)``, in ``(0, 1]``, of the shape of the logits.

        It is what MACC aligns with confidence in training, and no sign that a prediction is right.
        The variance of a logit grows with the logit, so trained networks are least certain where
        they are most confident. To tell right predictions from wrong ones, rank them by confidence,
        ``probs.amax(-1)``, or by :attr:`separation`.
        """
        return 1 - self.variance.tanh()

    @property
    def separation(self) -> Tensor:
        """How many standard deviations the highest mean logit lies above the second, at least 0,
        ``(N,)`` or ``(N, H, W)``.

        The margin of the two, divided by the root of the sum of their variances. It falls as the
        variance grows *relative to the squared margin*, and so ranks right above wrong predictions
        about as well as confidence does. Infinite where there is no variance.
        """
        self._refuse_one_logit("separation")
        axis = self._class_axis
        top = self.mean.topk(2, dim=axis)
        margin = top.values.select(axis, 0) - top.values.select(axis, 1)
        spread = self.variance.gather(axis, top.indices).sum(axis).sqrt()
        return torch.where(margin == 0, torch.zeros_like(margin), margin / spread)

    @property
    def _class_axis(self) -> int:
        return 1 if self.mean.ndim >= 4 else -1

    def _refuse_one_logit(self, name: str) -> None:
        if self.mean.shape[self._class_axis] == 1:
            raise ValueError(
                f"`{name}` compares the classes of a softmax and there is one logit only; "
                "its probability is `output.mean.sigmoid()`"
            )

    def __getattr__(self, name: str) -> Any:
        # Reached only for what a tuple does not have; Tensor methods are what people try.
        message = f"'LogitMoments' object has no attribute '{name}'"
        if hasattr(Tensor, name):
            message += (
                ": a model with an MC-dropout head returns mean and variance of the logits while training; "
                f"use `output.mean.{name}`, or `model.eval()` for plain logits "
                "(and call a transformers model without `labels=`)"
            )
        raise AttributeError(message)


def _refuse_arithmetic(_: LogitMoments, *__: object) -> NoReturn:
    raise TypeError(
        "a model with an MC-dropout head returns mean and variance of the logits while training, and these cannot be "
        "computed with as logits can; compute with `output.mean`, or do it before the layer that was attached to"
    )


# What a tuple does with these, repeating and joining, is never meant.
for _operator in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "matmul",
    "rmatmul",
    "neg",
):
    setattr(LogitMoments, f"__{_operator}__", _refuse_arithmetic)


def inside_transform() -> bool:
    """Whether this runs inside ``torch.func.vmap``, ``grad`` or another transform of the kind."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off: a variance of ten close half-precision logits is mostly rounding."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def at_least_float32(tensor: Tensor) -> Tensor:
    """``tensor`` itself, or in float32 where it is of half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def moments_over_samples(logits: Tensor) -> LogitMoments:
    """Mean and unbiased variance over the first axis of ``(S, N, K)``."""
    variance, mean = torch.var_mean(logits, dim=0, correction=1)
    return LogitMoments(mean, variance)


def dropped(features: Tensor, p: float, samples: int) -> Tensor:
    """``features`` under independent dropout masks, ``(samples, *features.shape)``.

    On a CPU, drawing masks is most of the work: 16 random bits decide a unit there, a third of the
    time of ``F.dropout``. The rate is rounded to 1/65536, and what is kept is scaled by just that
    rate.
    """
    shape = (samples, *features.shape)
    kept = round((1 - p) * 2**16)
    plain = features.device.type == "cpu" and not torch.compiler.is_compiling() and not inside_transform()
    if not plain or not 0 < kept < 2**16:
        return F.dropout(features.expand(shape), p=p, training=True)
    units = math.prod(shape)
    bits = torch.empty(-(-units // 4), dtype=torch.int64, device="cpu").random_(-(2**63), None)
    mask = bits.view(torch.int16)[:units].view(shape) < kept - 2**15
    return mask * (features * (2**16 / kept))


def sampled_linear(
    features: Tensor, weight: Tensor, bias: Tensor | None, p: float, samples: int
) -> tuple[Tensor, Tensor]:
    """Moments over ``samples`` masks, independent per row, unit and mask, in one product."""
    masked = dropped(features, p, samples)
    # The bias moves the mean only, so it is added once and not to every sample.
    mean, variance = moments_over_samples(F.linear(masked, weight))
    return mean if bias is None else mean + bias, variance


def chunked_sampled_linear(
    features: Tensor, weight: Tensor, bias: Tensor | None, p: float, samples: int
) -> tuple[Tensor, Tensor]:
    rows = max(1, MASK_BYTES // (samples * features.shape[-1] * features.element_size()))
    # A transform such as torch.func.grad cannot recompute; it takes the memory instead.
    if features.shape[0] <= rows or inside_transform():
        return sampled_linear(features, weight, bias, p, samples)
    # Parameters are arguments, so that recomputing uses the tensors of the forward pass even under
    # functional_call; the generator state is kept, so the masks of the backward pass are the same.
    chunks = [
        checkpoint(
            sampled_linear, part, weight, bias, p, samples, use_reentrant=False, preserve_rng_state=True
        )
        for part in torch.split(features, rows)
    ]
    means, variances = zip(*cast("list[tuple[Tensor, Tensor]]", chunks), strict=True)
    return torch.cat(means), torch.cat(variances)


def analytic_linear(features: Tensor, weight: Tensor, bias: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """Moments over infinitely many masks, in closed form."""
    odds = p / (1 - p)
    # A compiler joins the small operations by itself, and a transform cannot look into a function
    # of ours.
    if torch.compiler.is_compiling() or inside_transform():
        return F.linear(features, weight, bias), F.linear(features.square() * odds, weight.square())
    rows = features.reshape(-1, features.shape[-1])
    mean, variance = _ClosedForm.apply(rows, weight, bias, odds)  # type: ignore[no-untyped-call]
    shape = (*features.shape[:-1], weight.shape[0])
    return mean.reshape(shape), variance.reshape(shape)


class _ClosedForm(torch.autograd.Function):
    """The two products of the closed form, and the four of its gradient, with little around them.

    Autograd alone takes three more passes over tensors of the size of the weights, and memory for
    each. Here the gradient of the squares is added in place.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, odds: float
    ) -> tuple[Tensor, Tensor]:
        squares = features.square().mul_(odds), weight.square()
        ctx.save_for_backward(features, weight, *squares)
        ctx.odds = odds
        ctx.set_materialize_grads(False)  # of moments that nobody used there is no product to compute
        return F.linear(features, weight, bias), F.linear(*squares)

    @staticmethod
    def backward(
        ctx: Any, of_mean: Tensor | None, of_variance: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        features, weight, features2, weight2 = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # for gradients of gradients the squares must be functions of what they are of
            features2, weight2 = features.square() * ctx.odds, weight.square()
        for_features, for_weight, for_bias = ctx.needs_input_grad[:3]
        found: list[Tensor | None] = [None, None, None]
        if of_mean is not None:
            found = [
                of_mean @ weight if for_features else None,
                of_mean.T @ features if for_weight else None,
                of_mean.sum(dim=0) if for_bias else None,
            ]
        if of_variance is not None and for_features:
            found[0] = _plus(found[0], of_variance @ weight2, features, 2 * ctx.odds)
        if of_variance is not None and for_weight:
            found[1] = _plus(found[1], of_variance.T @ features2, weight, 2)
        return found[0], found[1], found[2], None


def _plus(total: Tensor | None, product: Tensor, values: Tensor, factor: float) -> Tensor:
    """``total + factor * product * values`` in the memory of one of the first two."""
    if total is None:
        return product.mul_(values).mul_(factor)
    return total.addcmul_(product, values, value=factor)
