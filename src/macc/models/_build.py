"""Models by name."""

import difflib
import inspect

from torch import nn


def build(name: str, *, num_classes: int, in_channels: int = 3, pretrained: str | None = None) -> nn.Module:
    """A model of this namespace by its name.

    Args:
        name: For example ``"resnet56"``.
        num_classes: Number of outputs, at least 2.
        in_channels: Channels of the input images.
        pretrained: Path of weights to start from; no model that is here has any yet.

    Example:
        >>> build("resnet20", num_classes=10).fc
        Linear(in_features=64, out_features=10, bias=True)
    """
    from macc import models

    known = {k: v for k, v in vars(models).items() if inspect.isfunction(v) and v is not build}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
        raise ValueError(f"no model is called {name!r}; {cure}")
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2, got {num_classes}")
    if pretrained is not None:
        raise ValueError(
            f"{name} has no pretrained weights to load, got pretrained={pretrained!r}; leave it out"
        )
    model = known[name](num_classes=num_classes, in_channels=in_channels)
    assert isinstance(model, nn.Module)  # noqa: S101 - the namespace's own contract
    return model
