"""Putting a head into somebody's model, taking it out, asking the model for moments."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from macc.heads._conv import MCDropoutConv2d, is_pointwise
from macc.heads._modules import Estimator, Head, MCDropout, MCDropoutLinear, check_knobs, needs_two
from macc.heads._moments import LogitMoments, at_least_float32, moments_over_samples
from macc.heads._tokens import TokenScore, no_longer_pick_first, pick_first

ModelT = TypeVar("ModelT", bound=nn.Module)

Layer = nn.Linear | nn.Conv2d

HEAD_NAMES = ("fc", "head", "classifier", "score", "out_proj", "logits", "out")


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

    A last 1x1 convolution, which gives the logits of every pixel, becomes an
    :class:`MCDropoutConv2d`.

    With ``example``, one forward pass in evaluation mode finds the layer whose output *is* the
    model's output. Without it, the last linear layer is taken if its name says that it is the
    classifier (``fc``, ``head``, ``classifier``, ``score``, ``out_proj``, ``logits``, ``out``) or
    if it ends an ``nn.Sequential``, unless a layer outside its block has such a name too. In a
    model of transformers it is the one layer around the base model with ``config.num_labels``
    outputs. ``layer`` names it outright. A 1x1 convolution is taken by the same rules where it is
    registered after every linear layer.

    A dropout layer registered right before the classifier is reported as a warning: features would
    be dropped twice.

    Decoders of transformers apply ``score`` to every token and then pick one. In training the head
    is applied to the features of the token that the model picks.

    A layer with one output (the logit of a binary classifier) and one with an output for each of
    several labels are attached to like any other; :class:`macc.losses.BinaryCrossEntropy` is a loss
    for them.

    Args:
        model: Any classifier that ends in a linear layer or a 1x1 convolution. Attach before
            compiling it or wrapping it for distributed training. A transformers model is then
            called without ``labels=``.
        p: Dropout rate in ``[0, 1)``.
        samples: Number of masks; 1 is ordinary dropout.
        estimator: ``"sampled"`` (the paper's) or ``"analytic"`` (its limit in closed form).
        layer: Dotted name of the layer, as in ``model.named_modules()``.
        example: A batch: what ``model`` is called with; a dict is passed as keywords, a tuple as
            arguments.

    Returns:
        The same model; where the model *is* such a layer, a new head that shares its parameters.

    Example:
        >>> from torch import nn
        >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), p=0.3)
        >>> model[2]
        MCDropoutLinear(in_features=8, out_features=3, bias=True, p=0.3, samples=10, estimator='sampled')
    """
    check_knobs(p, samples, estimator)
    _refuse_wrapped(model)
    heads = [name for name, module in model.named_modules() if isinstance(module, Head)]
    if heads:
        where = (
            f"already has an MC-dropout head at '{heads[0]}'" if heads[0] else "is an MC-dropout head already"
        )
        raise ValueError(f"the model {where}; call `macc.detach(model)` first")
    name = find_classifier(model, layer, example)
    plain = cast("Layer", model.get_submodule(name))
    _refuse_layer(plain, name)
    owner = model.get_submodule(name.rpartition(".")[0])
    _refuse_owner(owner)
    head: Head
    if _scores_tokens(owner, name):
        head = TokenScore.from_linear(plain, p=p, samples=samples, estimator=estimator)  # type: ignore[arg-type]
        pick_first(owner)
    elif isinstance(plain, nn.Linear):
        head = MCDropoutLinear.from_linear(plain, p=p, samples=samples, estimator=estimator)
    else:
        head = MCDropoutConv2d.from_conv(plain, p=p, samples=samples, estimator=estimator)
    _report_dropout_before(model, name)
    return _replace(model, plain, head)


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
    no_longer_pick_first(model)
    if "weight" not in head._parameters:
        raise ValueError(
            "the weight of the head is computed from other parameters (a parametrisation, weight norm or "
            "pruning); remove that before detaching"
        )
    return _replace(
        model,
        head,
        head.to_linear() if isinstance(head, MCDropoutLinear) else cast("MCDropoutConv2d", head).to_conv(),
    )


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
        Two tensors ``(N, K)``, or ``(N, K, H, W)`` of a dense model; ``.certainty`` is the paper's
        ``1 - tanh(variance)``, which does not rank right above wrong predictions; ``.separation``
        and ``.probs`` do.

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
            tokens = isinstance(head, TokenScore)
            head.training = tokens  # then the last call is about the picked token
            _call(model, x)
            if len(seen) != 1 and not tokens:
                raise ValueError(
                    f"the model's forward pass calls its MC-dropout head {len(seen)} times and not once; "
                    "call `.moments(features)` on the head itself"
                )
            return head.moments(seen[-1], samples=samples, estimator=estimator)
    finally:
        handle.remove()


def conventional_moments(model: nn.Module, x: Any, samples: int = 10) -> LogitMoments:
    """Moments from ``samples`` passes through the whole network, one dropout mask each.

    The conventional way that the paper compares its efficient one with; the rest of the model runs
    in the mode it is in. Use :func:`moments` for anything but that comparison.

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
    needs_two(samples)
    head = _only_head(model)
    kept = head.samples, head.training
    head.samples, head.training = 1, True
    try:
        logits = torch.stack([cast("Tensor", logits_in(_call(model, x))) for _ in range(samples)])
    finally:
        head.samples, head.training = kept
    return moments_over_samples(at_least_float32(logits))


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, tuple):
        return model(*x)
    return model(x)


def logits_in(output: Any) -> Tensor | LogitMoments:
    """The logits in what a model returns: itself, its ``logits`` or ``out``, its first entry.

    Args:
        output: Logits or moments, an object or a mapping with ``logits`` (transformers), a mapping
            with ``out`` (torchvision's segmentation), or a tuple that begins with them (auxiliary
            classifiers).

    Example:
        >>> import torch
        >>> logits_in({"logits": torch.zeros(1, 2), "features": torch.zeros(1, 8)})
        tensor([[0., 0.]])
    """
    if isinstance(output, LogitMoments | Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits", output.get("out"))
    elif isinstance(output, tuple | list):
        found = getattr(output, "logits", output[0] if output else None)
    else:
        found = getattr(output, "logits", None)
    if isinstance(found, LogitMoments | Tensor):
        return found
    raise ValueError(
        f"the model returned a {type(output).__name__} without logits; it must return logits (N, K) or (N, K, H, W), "
        "an object or a dict with `logits`, a dict with `out`, or a tuple that begins with them"
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
            "use the one you mean by itself: its `.moments(features)`, its `.to_linear()` or `.to_conv()`"
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
    # Parametrisations, weight norm, spectral norm and pruning all compute `weight` from something
    # else.
    if "weight" not in layer._parameters:
        raise ValueError(
            f"the weight of {where} is computed from other parameters "
            "(a parametrisation, weight norm or pruning); remove that first, "
            "or wrap the layer yourself: `macc.MCDropout(layer)`"
        )
    if type(layer) is nn.Conv2d and not is_pointwise(layer):
        raise ValueError(
            f"{where} is not a 1x1 convolution without stride, padding and groups, {layer}; "
            "wrap it yourself: `macc.MCDropout(layer)`"
        )
    if type(layer) is not nn.Linear and type(layer) is not nn.Conv2d:
        raise ValueError(
            f"{where} is a {type(layer).__name__}, not an nn.Linear or nn.Conv2d, and may compute something else; "
            "wrap it yourself: `macc.MCDropout(layer)`"
        )
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    if any(hooks) or "forward" in vars(layer):
        raise ValueError(
            f"{where} has hooks that replacing it would lose; remove them, attach, and add them again"
        )


def _scores_tokens(owner: nn.Module, name: str) -> bool:
    """Whether a layer is the ``score`` of a model of transformers, applied to every token."""
    return name.rpartition(".")[2] == "score" and type(owner).__module__.startswith("transformers.")


def _refuse_owner(owner: nn.Module) -> None:
    if getattr(owner, "classifier_pooling", None) == "late":
        raise ValueError(
            f"{type(owner).__name__} takes the mean of the logits of all tokens; set `classifier_pooling='mean'` in its "
            "configuration, which takes that of the features"
        )


def _sizes(layer: Layer) -> tuple[int, int]:
    """How many features go in and how many logits come out."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def find_classifier(model: nn.Module, layer: str | None, example: Any) -> str:
    """Dotted name of the layer that gives the logits; empty where the model is that layer."""
    if isinstance(model, Layer):
        if layer:
            raise ValueError(
                f"the model is itself a linear layer and has none called '{layer}'; leave `layer` out"
            )
        return ""
    # nn.MultiheadAttention reads the weight of its output projection and never calls it as a layer.
    projection = nn.modules.linear.NonDynamicallyQuantizableLinear
    layers: dict[str, Layer] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Layer) and not isinstance(module, projection)
    }
    usable = {
        name: found for name, found in layers.items() if isinstance(found, nn.Linear) or is_pointwise(found)
    }
    if not usable:
        raise ValueError(
            "the model has no nn.Linear layer and no 1x1 convolution; "
            "put `macc.MCDropout(head)` around the part that maps features to logits"
        )
    linears = {name: found for name, found in usable.items() if isinstance(found, nn.Linear)}
    if layer is not None:
        if layer not in layers:
            raise ValueError(
                f"the model has no linear layer called '{layer}'; {_candidates(linears or usable)}"
            )
        found = layer if example is None else _find_by_example(model, layers, example)
        if found != layer:
            raise ValueError(
                f"the output of the model is that of '{found}' and not of '{layer}'; leave one out"
            )
        return layer
    if example is not None:
        return _find_by_example(model, layers, example)
    if list(usable)[-1] not in linears:
        dense = _by_name(model, usable)
        if dense is not None:
            return dense
    labelled = _only_one_with_labels(model, linears)
    found_by_name = labelled if labelled is not None else _by_name(model, linears)
    if found_by_name is None:
        raise ValueError(f"cannot tell which layer is the classifier; {_candidates(linears or usable)}")
    return found_by_name


def _by_name(model: nn.Module, layers: Mapping[str, Layer]) -> str | None:
    """The last of the layers, if its name or its place says that it is the classifier."""
    if not layers:
        return None
    last: str = list(layers)[-1]
    parent_name, _, own_name = last.rpartition(".")
    parent = model.get_submodule(parent_name)
    # Layers of these names are common inside blocks; one around the block may well be the
    # classifier.
    around = [name.rpartition(".")[0] for name in _named_as_heads(layers) if name != last]
    around = [owner for owner in around if f"{parent_name}.".startswith(f"{owner}." if owner else "")]
    if own_name in HEAD_NAMES and all(owner == parent_name for owner in around):
        return last
    if isinstance(parent, nn.Sequential) and parent[-1] is layers[last] and not around:
        return last
    return None


def _only_one_with_labels(model: nn.Module, linears: Mapping[str, nn.Linear]) -> str | None:
    """The one layer around a transformers model's body that has an output for each label."""
    labels = getattr(getattr(model, "config", None), "num_labels", None)
    base = getattr(model, "base_model_prefix", None)
    if not isinstance(labels, int) or not isinstance(base, str):
        return None
    found = [
        name
        for name, layer in linears.items()
        if layer.out_features == labels and not (base and name.startswith(f"{base}."))
    ]
    return found[0] if len(found) == 1 else None


def _find_by_example(model: nn.Module, layers: Mapping[str, Layer], example: Any) -> str:
    outputs: dict[str, Any] = {}
    handles = [
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: outputs.update({name: output})
        )
        for name, module in layers.items()
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
        "(a softmax, a pooling over tokens, a mean of two heads, a resizing of the map, ...); "
        "return the logits of one linear layer or 1x1 convolution as they are, then attach"
    )


def _named_as_heads(layers: Mapping[str, Layer]) -> list[str]:
    """The layers whose own name is that of a classifier, the outermost first."""
    found = [name for name in layers if name.rpartition(".")[2] in HEAD_NAMES]
    return sorted(found, key=lambda name: name.count("."))


def _candidates(layers: Mapping[str, Layer]) -> str:
    likely = dict.fromkeys([*_named_as_heads(layers)[:4], *reversed(list(layers))])
    names = list(likely)[:8]
    shown = [f"'{name}' ({' -> '.join(map(str, _sizes(layers[name])))})" for name in names]
    kind = "linear layers" if isinstance(layers[names[0]], nn.Linear) else "1x1 convolutions"
    return (
        f"{kind}: {', '.join(shown)}; "
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
