"""Models by name."""

import inspect
from collections.abc import Callable

from torch import Tensor, nn

from macc.models._weights import load_weights
from macc.models.hub import from_hub
from macc.words import did_you_mean


def known() -> dict[str, Callable[..., nn.Module]]:
    """Every network of this namespace, by name: the functions that take ``num_classes``.

    Example:
        >>> "resnet56" in known()
        True
    """
    from macc import models

    return {
        name: value
        for name, value in vars(models).items()
        if inspect.isfunction(value)
        and value is not build
        and "num_classes" in inspect.signature(value).parameters
    }


def build(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    pretrained: str | None = None,
    vocabulary: int | None = None,
    vectors: Tensor | None = None,
) -> nn.Module:
    """A model by its name.

    Args:
        name: A network of this namespace, for example ``"resnet56"``; or one of another library:
            ``"hf:NAME"`` (transformers: a local folder or a name on the hub, with its weights;
            ``"hf:PATH/config.json"``, ``"hf:deit-tiny-patch16-224"`` or
            ``"hf:deit-tiny-patch4-32"`` with fresh ones), ``"timm:NAME"`` or ``"torchvision:NAME"``
            (fresh).
        num_classes: Number of outputs, at least 2.
        in_channels: Channels of the input images; the number of input values for ``mlp`` and
            ``linear``; not used for text.
        pretrained: A file of weights to start from, ``.safetensors`` or ``.pth``, for any network;
            for ``timm:`` also ``"hub"``. A classifier of another number of classes in it is left
            out, with a warning.
        vocabulary: For text: the number of token ids; other networks do not use it.
        vectors: For text: word vectors ``(vocabulary, D)`` to start from; other networks do not use
            them.

    Example:
        >>> build("resnet20", num_classes=10).fc
        Linear(in_features=64, out_features=10, bias=True)
    """
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2, got {num_classes}")
    if in_channels < 1:
        raise ValueError(f"`in_channels` must be at least 1, got {in_channels}")
    if ":" in name:
        return from_hub(name, num_classes=num_classes, in_channels=in_channels, pretrained=pretrained)
    networks = known()
    if name not in networks:
        raise ValueError(f"no model is called {name!r}; {did_you_mean(name, sorted(networks))}")
    network = networks[name]
    offered = {"in_channels": in_channels, "vocabulary": vocabulary, "vectors": vectors}
    taken = inspect.signature(network).parameters
    options = {key: value for key, value in offered.items() if key in taken and value is not None}
    model = network(num_classes=num_classes, **options)
    if pretrained is not None:
        load_weights(model, pretrained)
    return model
