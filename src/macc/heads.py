"""The MC-dropout head: mean and variance of the logits under dropout of the last features.

``attach`` puts it into a model someone already has; in training the model then returns
:class:`LogitMoments`, in evaluation the plain logits it returned before.

Shape legend: ``N`` samples, ``D`` features, ``K`` classes, ``S`` dropout masks.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Estimator = Literal["sampled", "analytic"]
ModelT = TypeVar("ModelT", bound=nn.Module)

# Above this many bytes of masks, rows are sampled in chunks whose masks are drawn again in the backward pass.
MASK_BYTES = 256 * 2**20

HEAD_NAMES = ("fc", "head", "classifier", "score", "out_proj", "logits", "out")


class LogitMoments(NamedTuple):
    """Mean and variance of the logits over dropout masks.

    What an attached model returns in training. In evaluation it returns a plain tensor.

    Args:
        mean: Mean logits, ``(N, K)``.
        variance: Variance of the logits, ``(N, K)``, the paper's uncertainty u.

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
        """The paper's mean confidence, the softmax of the mean logits, ``(N, K)``."""
        return self.mean.softmax(dim=-1)

    @property
    def certainty(self) -> Tensor:
        """The paper's certainty, ``1 - tanh(variance)``, in ``(0, 1]``, ``(N, K)``.

        It is what MACC aligns with confidence in training, and no sign that a prediction is right. The variance of a
        logit grows with the logit, so trained networks are least certain where they are most confident. To tell right
        predictions from wrong ones, rank them by confidence, ``probs.amax(-1)``, or by :attr:`separation`.
        """
        return 1 - self.variance.tanh()

    @property
    def separation(self) -> Tensor:
        """How many standard deviations the highest mean logit lies above the second, at least 0, ``(N,)``.

        The margin of the two, divided by the root of the sum of their variances. It falls as the variance grows
        *relative to the squared margin*, and so ranks right above wrong predictions about as well as confidence does.
        Infinite where there is no variance.
        """
        top = self.mean.topk(2, dim=-1)
        margin = top.values[..., 0] - top.values[..., 1]
        spread = self.variance.gather(-1, top.indices).sum(-1).sqrt()
        return torch.where(margin == 0, torch.zeros_like(margin), margin / spread)

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


def _check_knobs(p: float, samples: int, estimator: str) -> None:
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


def _needs_two(samples: int) -> None:
    if samples < 2:
        raise ValueError(
            "a variance needs at least two dropout masks and this head has samples=1 (ordinary dropout); "
            "ask for `moments(..., samples=10)` or `moments(..., estimator='analytic')`"
        )


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


def _moments_over_samples(logits: Tensor) -> LogitMoments:
    """Mean and unbiased variance over the first axis of ``(S, N, K)``."""
    variance, mean = torch.var_mean(logits, dim=0, correction=1)
    return LogitMoments(mean, variance)


def _dropped(features: Tensor, p: float, samples: int) -> Tensor:
    """``features`` under independent dropout masks, ``(samples, *features.shape)``.

    On a CPU, drawing masks is most of the work: 16 random bits decide a unit there, a third of the time of
    ``F.dropout``. The rate is rounded to 1/65536, and what is kept is scaled by just that rate.
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


def _sampled_linear(
    features: Tensor, weight: Tensor, bias: Tensor | None, p: float, samples: int
) -> tuple[Tensor, Tensor]:
    """Moments over ``samples`` masks, independent per row, unit and mask, in one product."""
    dropped = _dropped(features, p, samples)
    # The bias moves the mean only, so it is added once and not to every sample.
    mean, variance = _moments_over_samples(F.linear(dropped, weight))
    return mean if bias is None else mean + bias, variance


def _chunked_sampled_linear(
    features: Tensor, weight: Tensor, bias: Tensor | None, p: float, samples: int
) -> tuple[Tensor, Tensor]:
    rows = max(1, MASK_BYTES // (samples * features.shape[-1] * features.element_size()))
    # A transform such as torch.func.grad cannot recompute; it takes the memory instead.
    if features.shape[0] <= rows or inside_transform():
        return _sampled_linear(features, weight, bias, p, samples)
    # Parameters are arguments, so that recomputing uses the tensors of the forward pass even under
    # functional_call; the generator state is kept, so the masks of the backward pass are the same.
    chunks = [
        checkpoint(
            _sampled_linear, part, weight, bias, p, samples, use_reentrant=False, preserve_rng_state=True
        )
        for part in torch.split(features, rows)
    ]
    means, variances = zip(*cast("list[tuple[Tensor, Tensor]]", chunks), strict=True)
    return torch.cat(means), torch.cat(variances)


def _analytic_linear(
    features: Tensor, weight: Tensor, bias: Tensor | None, p: float
) -> tuple[Tensor, Tensor]:
    mean = F.linear(features, weight, bias)
    variance = F.linear(features.square() * (p / (1 - p)), weight.square())
    return mean, variance


class MCDropoutLinear(nn.Linear):
    r"""A linear classifier that reports mean and variance of its logits under dropout of its input.

    In evaluation it is the linear layer: plain logits, exactly the mean over masks. In training it
    returns :class:`LogitMoments`. ``estimator="sampled"`` is the paper's: features once, ``samples``
    masks, one batched product, unbiased variance. ``estimator="analytic"`` is the limit of both
    moments for infinitely many masks, without noise and without sampling:

    .. math:: \bar z = W f + b, \qquad u = \tfrac{p}{1-p} (W \circ W)(f \circ f)

    The task loss then sees no dropout noise either, so it is a limit of the paper's loss and not its
    training with ten masks. ``samples=1`` is ordinary dropout: a plain tensor, no variance.

    Parameters have the names of ``nn.Linear``: a checkpoint moves between the two in both directions.
    Moments are computed in float32 under autocast and for half-precision weights. Inside
    ``torch.func.vmap`` the sampled form needs ``randomness="different"``; ``torch.jit.script`` is not
    supported.

    Args:
        in_features: ``D``.
        out_features: ``K``, at least 2.
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
        _check_knobs(p, samples, estimator)
        if out_features < 2:
            raise ValueError(
                f"a head with {out_features} output has no class-wise confidence; "
                "use two outputs, one per class, and class indices as labels"
            )
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.p = p
        self.samples = samples
        self.estimator: Estimator = estimator

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

    def forward(self, input: Tensor) -> Tensor | LogitMoments:  # type: ignore[override]  # noqa: A002 - nn.Linear's name
        """Logits in evaluation and with ``samples=1``, :class:`LogitMoments` in training."""
        if not self.training:
            return F.linear(input, self.weight, self.bias)
        if self.samples == 1:
            return F.linear(F.dropout(input, p=self.p, training=True), self.weight, self.bias)
        return self.moments(input)

    def moments(
        self, features: Tensor, *, samples: int | None = None, estimator: Estimator | None = None
    ) -> LogitMoments:
        """Mean and variance of the logits, in any mode.

        Args:
            features: What the layer is applied to, ``(N, D)`` (further leading axes are kept).
            samples: Number of masks in place of the head's own; asks for sampling unless ``estimator`` says
                otherwise.
            estimator: Estimator in place of the head's own.

        Returns:
            Two ``(N, K)`` tensors.
        """
        estimator = estimator or (self.estimator if samples is None else "sampled")
        samples = self.samples if samples is None else samples
        if features.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"features must have {self.in_features} values a row, got shape {tuple(features.shape)}"
            )
        if estimator != "analytic":
            _check_knobs(self.p, samples, estimator)
            _needs_two(samples)
        with full_precision(features):
            weight = at_least_float32(self.weight)
            bias = None if self.bias is None else at_least_float32(self.bias)
            rows = features.to(weight.dtype)
            if features.ndim != 2:
                rows = rows.reshape(-1, self.in_features)
            if estimator == "analytic":
                mean, variance = _analytic_linear(rows, weight, bias, self.p)
            else:
                mean, variance = _chunked_sampled_linear(rows, weight, bias, self.p, samples)
        if features.ndim != 2:
            shape = (*features.shape[:-1], self.out_features)
            mean, variance = mean.reshape(shape), variance.reshape(shape)
        return LogitMoments(mean, variance)

    def extra_repr(self) -> str:
        """The layer's own text with the knobs of the head."""
        return f"{super().extra_repr()}, p={self.p}, samples={self.samples}, estimator={self.estimator!r}"


class MCDropout(nn.Module):
    """Sampled moments for a head that is not one linear layer.

    Drops the input of ``module`` under ``samples`` masks and runs it once on all of them, in the type of its
    parameters; there is no closed form here and no bound on memory. A batch norm inside ``module`` sees
    ``samples`` times the batch.

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
        _check_knobs(p, samples, "sampled")
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
        _check_knobs(self.p, samples, estimator or "sampled")
        _needs_two(samples)
        with full_precision(features):
            dropped = _dropped(features, self.p, samples)
            weight = next(self.module.parameters(), None)
            if weight is not None:
                dropped = dropped.to(weight.dtype)
            logits = self.module(dropped.flatten(0, 1))
            return _moments_over_samples(at_least_float32(logits.unflatten(0, (samples, -1))))

    def extra_repr(self) -> str:
        """The knobs."""
        return f"p={self.p}, samples={self.samples}"


Head = MCDropoutLinear | MCDropout


def attach(
    model: ModelT,
    *,
    p: float = 0.2,
    samples: int = 10,
    estimator: Estimator = "sampled",
    layer: str | None = None,
    example: Any = None,
) -> ModelT:
    """Replace the classifier's last linear layer by an :class:`MCDropoutLinear`, in place.

    With ``example``, one forward pass in evaluation mode finds the layer whose output *is* the
    model's output. Without it, the last linear layer is taken if its name says that it is the
    classifier (``fc``, ``head``, ``classifier``, ``score``, ``out_proj``, ``logits``, ``out``) or if it ends
    an ``nn.Sequential``, unless a layer outside its block has such a name too. ``layer`` names it outright.

    A dropout layer registered right before the classifier is reported as a warning: features would be
    dropped twice.

    Args:
        model: Any classifier that ends in a linear layer. Attach before compiling it or wrapping it
            for distributed training. A transformers model is then called without ``labels=``.
        p: Dropout rate in ``[0, 1)``.
        samples: Number of masks; 1 is ordinary dropout.
        estimator: ``"sampled"`` (the paper's) or ``"analytic"`` (its limit in closed form).
        layer: Dotted name of the layer, as in ``model.named_modules()``.
        example: A batch: what ``model`` is called with; a dict is passed as keywords, a tuple as arguments.

    Returns:
        The same model; where the model *is* a linear layer, a new head that shares its parameters.

    Example:
        >>> from torch import nn
        >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), p=0.3)
        >>> model[2]
        MCDropoutLinear(in_features=8, out_features=3, bias=True, p=0.3, samples=10, estimator='sampled')
    """
    _check_knobs(p, samples, estimator)
    _refuse_wrapped(model)
    heads = [name for name, module in model.named_modules() if isinstance(module, Head)]
    if heads:
        where = (
            f"already has an MC-dropout head at '{heads[0]}'" if heads[0] else "is an MC-dropout head already"
        )
        raise ValueError(f"the model {where}; call `macc.detach(model)` first")
    name = find_classifier(model, layer, example)
    linear = cast("nn.Linear", model.get_submodule(name))
    _refuse_layer(linear, name)
    _refuse_owner(model.get_submodule(name.rpartition(".")[0]), name)
    head = MCDropoutLinear.from_linear(linear, p=p, samples=samples, estimator=estimator)
    _report_dropout_before(model, name)
    return _replace(model, linear, head)


def detach(model: ModelT) -> ModelT:
    """Undo :func:`attach`: put a plain layer with the same parameters back, in place.

    Returns:
        The same model; where the model *is* a head, the plain layer.

    Example:
        >>> from torch import nn
        >>> model = detach(attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))))
        >>> model[2]
        Linear(in_features=8, out_features=3, bias=True)
    """
    head = _only_head(model)
    if isinstance(head, MCDropout):
        return _replace(model, head, head.module)
    if "weight" not in head._parameters:
        raise ValueError(
            "the weight of the head is computed from other parameters (a parametrisation, weight norm or "
            "pruning); remove that before detaching"
        )
    return _replace(model, head, head.to_linear())


def moments(
    model: nn.Module, x: Any, *, samples: int | None = None, estimator: Estimator | None = None
) -> LogitMoments:
    """Mean and variance of the logits in evaluation mode: one pass through the body of the model.

    Batch norm uses its running statistics and other dropout is off, whatever mode the model is in;
    every module's mode is as it was afterwards.

    Args:
        model: A model with an MC-dropout head.
        x: A batch, as for ``attach(example=...)``.
        samples: Number of masks in place of the head's own.
        estimator: Estimator in place of the head's own.

    Returns:
        Two ``(N, K)`` tensors; ``.certainty`` is the paper's ``1 - tanh(variance)``, which does not rank right above
        wrong predictions; ``.separation`` and ``.probs`` do.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        >>> tuple(moments(model, torch.ones(5, 4)).certainty.shape)
        (5, 3)
    """
    head = _only_head(model)
    seen: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else next(iter(kwargs.values())))

    handle = head.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        # A compiled model does not notice a hook that came after compiling.
        with _evaluating(model), torch.compiler.set_stance("force_eager"):
            _call(model, x)
            if len(seen) != 1:
                raise ValueError(
                    f"the model's forward pass calls its MC-dropout head {len(seen)} times and not once; "
                    "call `.moments(features)` on the head itself"
                )
            return head.moments(seen[0], samples=samples, estimator=estimator)
    finally:
        handle.remove()


def conventional_moments(model: nn.Module, x: Any, samples: int = 10) -> LogitMoments:
    """Moments from ``samples`` passes through the whole network, one dropout mask each.

    The conventional way that the paper compares its efficient one with; the rest of the model runs in
    the mode it is in. Use :func:`moments` for anything but that comparison.

    Args:
        model: A model with an MC-dropout head whose output is its logits.
        x: A batch, as for ``attach(example=...)``.
        samples: Number of passes, at least 2.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        >>> tuple(conventional_moments(model, torch.ones(5, 4), samples=3).variance.shape)
        (5, 3)
    """
    _needs_two(samples)
    head = _only_head(model)
    kept = head.samples, head.training
    head.samples, head.training = 1, True
    try:
        logits = torch.stack([cast("Tensor", logits_in(_call(model, x))) for _ in range(samples)])
    finally:
        head.samples, head.training = kept
    return _moments_over_samples(at_least_float32(logits))


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, tuple):
        return model(*x)
    return model(x)


def logits_in(output: Any) -> Tensor | LogitMoments:
    """The logits in what a model returns: the output itself, its ``logits``, or its first entry.

    Args:
        output: Logits or moments, an object or a mapping with ``logits`` (transformers), or a tuple that begins
            with them (auxiliary classifiers).

    Example:
        >>> import torch
        >>> logits_in({"logits": torch.zeros(1, 2), "features": torch.zeros(1, 8)})
        tensor([[0., 0.]])
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif isinstance(output, tuple | list) and not isinstance(output, LogitMoments):
        found = getattr(output, "logits", output[0] if output else None)
    elif not isinstance(output, Tensor | LogitMoments):
        found = getattr(output, "logits", None)
    if isinstance(found, Tensor | LogitMoments):
        return found
    raise ValueError(
        f"the model returned a {type(output).__name__} without logits; it must return logits (N, K), an object or a "
        "dict with `logits`, or a tuple that begins with them"
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _only_head(model: nn.Module) -> Head:
    heads = {name: module for name, module in model.named_modules() if isinstance(module, Head)}
    if not heads:
        raise ValueError("the model has no MC-dropout head; call `macc.attach(model)` first")
    if len(heads) > 1:
        raise ValueError(
            f"the model has {len(heads)} MC-dropout heads ({', '.join(heads)}); "
            "use the one you mean by itself: its `.moments(features)`, its `.to_linear()`"
        )
    return next(iter(heads.values()))


def _replace(model: ModelT, old: nn.Module, new: nn.Module) -> ModelT:
    """Put ``new`` wherever ``old`` is registered: one layer may stand under several names."""
    if old is model:
        return cast("ModelT", new)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    return model


def _refuse_wrapped(model: nn.Module) -> None:
    kinds = {base.__name__ for base in type(model).__mro__}
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            "a scripted or traced model cannot be changed; attach to the Python model it was made from"
        )
    if "OptimizedModule" in kinds or getattr(model, "_compiled_call_impl", None) is not None:
        raise ValueError("the model is compiled; attach first: `torch.compile(macc.attach(model))`")
    for wrapper in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
        if wrapper in kinds:
            raise ValueError(
                f"the model is wrapped in {wrapper}; attach first: `{wrapper}(macc.attach(model))`"
            )
    if "FSDPModule" in kinds:
        raise ValueError("the model is sharded; attach first: `fully_shard(macc.attach(model))`")
    if "forward" in vars(model):
        raise ValueError(
            "the model's `forward` was replaced, as accelerate's `prepare` does; attach to the model before that"
        )


def _refuse_layer(layer: nn.Module, name: str) -> None:
    where = f"the layer '{name}'" if name else "the model"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(
            f"{where} is lazy and has no shape yet; run one batch through the model before attaching"
        )
    # Parametrisations, weight norm, spectral norm and pruning all compute `weight` from something else.
    if "weight" not in layer._parameters:
        raise ValueError(
            f"the weight of {where} is computed from other parameters "
            "(a parametrisation, weight norm or pruning); remove that first, "
            "or wrap the layer yourself: `macc.MCDropout(layer)`"
        )
    if type(layer) is not nn.Linear:
        raise ValueError(
            f"{where} is a {type(layer).__name__}, not an nn.Linear, and may compute something else; "
            "wrap it yourself: `macc.MCDropout(layer)`"
        )
    if layer.out_features < 2:
        raise ValueError(
            f"{where} has {layer.out_features} output and so no class-wise confidence; "
            "use two outputs, one per class, and class indices as labels"
        )
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    if any(hooks) or "forward" in vars(layer):
        raise ValueError(
            f"{where} has hooks that replacing it would lose; remove them, attach, and add them again"
        )


def _refuse_owner(owner: nn.Module, name: str) -> None:
    if name.rpartition(".")[2] == "score" and type(owner).__module__.startswith("transformers."):
        raise ValueError(
            f"{type(owner).__name__} applies '{name}' to every token and goes on computing with the logits; "
            "pool the hidden states in a module of your own and end it in an nn.Linear, then attach to that"
        )


def find_classifier(model: nn.Module, layer: str | None, example: Any) -> str:
    """Dotted name of the linear layer that gives the logits; empty where the model is that layer."""
    if isinstance(model, nn.Linear):
        if layer:
            raise ValueError(
                f"the model is itself a linear layer and has none called '{layer}'; leave `layer` out"
            )
        return ""
    # nn.MultiheadAttention reads the weight of its output projection and never calls it as a layer.
    projection = nn.modules.linear.NonDynamicallyQuantizableLinear
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not isinstance(module, projection)
    }
    if not linears:
        raise ValueError(
            "the model has no nn.Linear layer; "
            "put `macc.MCDropout(head)` around the part that maps features to logits"
        )
    if layer is not None:
        if layer not in linears:
            raise ValueError(f"the model has no linear layer called '{layer}'; {_candidates(linears)}")
        found = layer if example is None else _find_by_example(model, linears, example)
        if found != layer:
            raise ValueError(
                f"the output of the model is that of '{found}' and not of '{layer}'; leave one out"
            )
        return layer
    if example is not None:
        return _find_by_example(model, linears, example)
    last: str = list(linears)[-1]
    parent_name, _, own_name = last.rpartition(".")
    parent = model.get_submodule(parent_name)
    # Layers of these names are common inside blocks; one around the block may well be the classifier.
    around = [name.rpartition(".")[0] for name in _named_as_heads(linears) if name != last]
    around = [owner for owner in around if f"{parent_name}.".startswith(f"{owner}." if owner else "")]
    if own_name in HEAD_NAMES and all(owner == parent_name for owner in around):
        return last
    if isinstance(parent, nn.Sequential) and parent[-1] is linears[last] and not around:
        return last
    raise ValueError(f"cannot tell which layer is the classifier; {_candidates(linears)}")


def _find_by_example(model: nn.Module, linears: dict[str, nn.Linear], example: Any) -> str:
    outputs: dict[str, Any] = {}
    handles = [
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: outputs.update({name: output})
        )
        for name, module in linears.items()
    ]
    try:
        with _evaluating(model), torch.no_grad():
            logits = logits_in(_call(model, example))
    finally:
        for handle in handles:
            handle.remove()
    for name, output in outputs.items():
        if output is logits:
            return name
    last = f"'{list(outputs)[-1]}'" if outputs else "any linear layer"
    raise ValueError(
        f"no linear layer's output is the model's output: the forward pass goes on computing after {last} "
        "(a softmax, a pooling over tokens, a mean of two heads, ...); "
        "return the logits of one linear layer as they are, then attach"
    )


def _named_as_heads(linears: Mapping[str, nn.Linear]) -> list[str]:
    """The layers whose own name is that of a classifier, the outermost first."""
    found = [name for name in linears if name.rpartition(".")[2] in HEAD_NAMES]
    return sorted(found, key=lambda name: name.count("."))


def _candidates(linears: Mapping[str, nn.Linear]) -> str:
    likely = dict.fromkeys([*_named_as_heads(linears)[:4], *reversed(linears)])
    names = list(likely)[:8]
    shown = [f"'{name}' ({linears[name].in_features} -> {linears[name].out_features})" for name in names]
    return (
        f"linear layers: {', '.join(shown)}; "
        f"settle it with `macc.attach(model, layer='{names[0]}')` "
        "or `macc.attach(model, example=batch)`"
    )


def _report_dropout_before(model: nn.Module, name: str) -> None:
    parent_name, _, own_name = name.rpartition(".")
    before: nn.Module | None = None
    if name:
        for child_name, child in model.get_submodule(parent_name).named_children():
            if child_name == own_name:
                break
            before = child
    if isinstance(before, nn.modules.dropout._DropoutNd) and before.p > 0:
        warnings.warn(
            f"a Dropout(p={before.p}) is registered right before '{name}': in training the features may be "
            "dropped twice, by it and by the MC-dropout head; set its `p` to 0 to follow the paper",
            UserWarning,
            stacklevel=3,
        )
