"""A frozen backbone runs over the data once; its classifier is trained on what came out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from macc.data import Part, Splits
from macc.models.classifier import classifier_name, trained_name

CACHE_BYTES = 8 * 2**30


def why_not_cached(data: Splits, model: nn.Module, *, freeze_bn: bool) -> str | None:
    """Why features of a frozen backbone change by epoch or do not fit; ``None`` if neither."""
    if not freeze_bn:
        return "its batch-norm statistics move (freeze_bn: false)"
    if trained_name(model) != classifier_name(model):
        return "more than its last layer is trained"
    if data.augmentation is not None:
        return f"{data.name} is augmented at random"
    size = 4 * _width(model) * sum(len(part) for part in (data.train, data.val, data.test))
    if size > CACHE_BYTES:
        return f"its features need {size / 1e9:.0f} GB of memory"
    return None


def _width(model: nn.Module) -> int:
    classifier = model.get_submodule(classifier_name(model))
    return int(getattr(classifier, "in_features", 0))


def classifier_of(model: nn.Module) -> nn.Module:
    """The layer that is trained."""
    return model.get_submodule(classifier_name(model))


def cached_features(
    model: nn.Module,
    data: Splits,
    *,
    shifts: Sequence[str] = (),
    batch_size: int,
    device: torch.device | str,
    on_batch: Callable[[], None] | None = None,
) -> Splits:
    """The data as the classifier sees them, from one pass; of ``shifts`` the named."""
    seen: list[Tensor] = []
    handle = classifier_of(model).register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].float().cpu())
    )
    model.eval()
    parts = {}
    try:
        for name in ("train", "val", "test", *shifts):
            seen.clear()
            with torch.inference_mode():
                for inputs, _ in data.batches(name, batch_size=batch_size, device=device):
                    model(inputs)
                    if on_batch is not None:
                        on_batch()
            parts[name] = Part(inputs=torch.cat(seen), labels=data.parts()[name].labels)
    finally:
        handle.remove()
    return replace(
        data,
        kind="features",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        shifts={name: parts[name] for name in shifts},
        normalisation=None,
        augmentation=None,
    )
