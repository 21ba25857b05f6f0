"""Networks of other libraries: ``"hf:NAME"``, ``"timm:NAME"``, ``"torchvision:NAME"``.

The libraries are imported only here and only when asked for. Weights come from safetensors or files
of plain tensors; code from the hub is never run.
"""

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from macc.models._weights import load_weights, read_weights

# DeiT-Tiny is a small ViT, trained differently; at 32 pixels it needs patches of 4 to have as many
# to look at.
_DEIT_TINY = {
    "hidden_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 3,
    "intermediate_size": 768,
}
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "deit-tiny-patch16-224": {**_DEIT_TINY, "image_size": 224, "patch_size": 16},
    "deit-tiny-patch4-32": {**_DEIT_TINY, "image_size": 32, "patch_size": 4},
}


class HubModel(nn.Module):
    """A transformers classifier that is called like any other: a batch in, logits out.

    Args:
        model: The transformers model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def configuration(self) -> dict[str, Any]:
        """What :func:`from_configuration` builds the same network from, as what JSON can hold."""
        return dict(json.loads(self.model.config.to_json_string(use_diff=False)))  # type: ignore[operator, union-attr]

    def forward(self, inputs: Any) -> Tensor:
        """Maps images, token ids ``(N, L)`` or a dict of inputs to logits ``(N, K)``."""
        if not isinstance(inputs, Tensor):
            output = self.model(**inputs)
        elif inputs.is_floating_point():
            output = self.model(pixel_values=inputs)
        else:
            padding = getattr(self.model.config, "pad_token_id", None)
            mask = torch.ones_like(inputs) if padding is None else (inputs != padding).long()
            output = self.model(input_ids=inputs, attention_mask=mask)
        return output.logits  # type: ignore[no-any-return]


def from_hub(name: str, *, num_classes: int, in_channels: int, pretrained: str | None) -> nn.Module:
    """The network of another library that ``library:NAME`` means; see :func:`macc.models.build`."""
    library, _, rest = name.partition(":")
    if library not in LIBRARIES:
        raise ValueError(
            f"no library is called {library!r} in {name!r}; there are {', '.join(sorted(LIBRARIES))}"
        )
    if not rest:
        raise ValueError(f"{name!r} names no network; write {library}:NAME")
    return LIBRARIES[library](rest, num_classes, in_channels, pretrained)


def from_configuration(configuration: Mapping[str, Any], *, num_classes: int) -> HubModel:
    """A transformers network with fresh weights, from its :attr:`HubModel.configuration` and
    nothing else.

    Args:
        configuration: Plain values.
        num_classes: How many classes it must have.
    """
    transformers = _import("transformers")
    # A configuration can name code to fetch: of the network, of its attention, of its quantisation.
    refused = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config")
    values = {key: value for key, value in configuration.items() if key not in refused}
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
            model = _factory(transformers, config, "configuration").from_config(
                config, trust_remote_code=False
            )
    except Exception as error:  # whatever transformers makes of a damaged configuration
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"transformers cannot build a network from its configuration ({reason})") from error
    if config.num_labels != num_classes:
        raise ValueError(f"the configuration has {config.num_labels} classes, and there are {num_classes}")
    return HubModel(model)


# The build of torchvision has to be that of the installed torch, and timm needs torchvision. No
# extra could name them without taking another torch along.
_BESIDE_TORCH = f"the torchvision that belongs to torch {torch.__version__}; https://pytorch.org has a table"
_INSTALL = {
    "transformers": "pip install 'macc-torch[transformers]'",
    "torchvision": f"install {_BESIDE_TORCH}",
    "timm": f"pip install timm, after {_BESIDE_TORCH}",
}


def _import(library: str) -> Any:
    name = library.partition(".")[0]
    try:
        return importlib.import_module(library)
    except ImportError as error:
        cure = _INSTALL.get(name, _INSTALL["transformers"])
        raise ValueError(f"{name} is needed for this network: {cure} ({error})") from error
    except RuntimeError as error:
        # A torchvision built for another torch fails like this, and timm with it.
        raise ValueError(
            f"{name} is installed and does not import beside torch {torch.__version__} ({error}); "
            "install the versions that belong together"
        ) from error


def _from_transformers(name: str, num_classes: int, in_channels: int, pretrained: str | None) -> nn.Module:
    transformers = _import("transformers")
    weights = None if pretrained is None else read_weights(pretrained)
    fresh = name in CONFIGURATIONS or name.endswith(".json")
    try:
        with _quiet(transformers):
            if name in CONFIGURATIONS:
                config = transformers.ViTConfig(**CONFIGURATIONS[name], num_labels=num_classes)
            else:
                config = transformers.AutoConfig.from_pretrained(
                    name, num_labels=num_classes, trust_remote_code=False
                )
            if fresh and weights is None:
                config.num_channels = in_channels
                model = _factory(transformers, config, name).from_config(config, trust_remote_code=False)
            else:
                _check_channels(config, name, in_channels)
                model = _with_weights(_factory(transformers, config, name), config, name, weights)
    except ValueError:
        raise
    except Exception as error:  # whatever transformers makes of a damaged configuration
        raise ValueError(
            f"hf:{name} cannot be read ({' '.join(str(error).split())[:200]}); give a folder with config.json and "
            "model.safetensors, a name on the hub that has them, a config.json for fresh weights, "
            f"or one of {', '.join(CONFIGURATIONS)}"
        ) from error
    if hasattr(model, "score"):
        raise ValueError(
            f"hf:{name} classifies every token and picks one afterwards, so its last layer has no features "
            "of the whole input; choose a network that pools first, such as BERT or RoBERTa"
        )
    return HubModel(model)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's own bars and report: what a user must know is a warning of ours."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_channels(config: Any, name: str, in_channels: int) -> None:
    wanted = getattr(config, "num_channels", in_channels)
    if wanted != in_channels:
        raise ValueError(
            f"the weights of hf:{name} take {wanted} channels, got in_channels={in_channels}; "
            "convert the images, or start fresh from its config.json"
        )


def _factory(transformers: Any, config: Any, name: str) -> Any:
    for factory in (
        transformers.AutoModelForImageClassification,
        transformers.AutoModelForSequenceClassification,
    ):
        if type(config) in factory._model_mapping:
            return factory
    raise ValueError(f"hf:{name} is a {config.model_type}, for which transformers has no classifier")


def _with_weights(factory: Any, config: Any, name: str, weights: dict[str, Tensor] | None) -> Any:
    """A model with its own weights or those given; older names of its layers are known."""
    if weights is not None and all(key.startswith("model.") for key in weights):
        weights = {key.removeprefix("model."): value for key, value in weights.items()}  # saved by a HubModel
    kind = factory._model_mapping[type(config)]
    model, info = kind.from_pretrained(
        name if weights is None else None,
        config=config,
        state_dict=weights,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    fresh = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    body = sorted(key for key in fresh if key.startswith(f"{model.base_model_prefix}."))
    if body:
        raise ValueError(
            f"the weights for hf:{name} do not fit its configuration: {', '.join(body[:3])} "
            f"{'are' if len(body) > 1 else 'is'} missing or of another shape"
        )
    if fresh:
        warnings.warn(
            f"the weights for hf:{name} are not for {config.num_labels} classes: its classifier starts fresh",
            UserWarning,
            stacklevel=5,
        )
    return model


def _from_timm(name: str, num_classes: int, in_channels: int, pretrained: str | None) -> nn.Module:
    timm = _import("timm")
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=False, num_classes=num_classes, in_chans=in_channels
        )
    except RuntimeError as error:
        raise ValueError(f"timm has no network {name!r} ({error}); `timm.list_models()` names all") from error
    if pretrained == "hub":
        pretrained = _from_timm_hub(timm, name)
    if pretrained is not None:
        load_weights(model, pretrained)
    return model


def _from_timm_hub(timm: Any, name: str) -> str:
    hub = _import("huggingface_hub")
    repository = timm.get_pretrained_cfg(name).hf_hub_id
    if not repository:
        raise ValueError(f"timm knows no weights on the hub for {name!r}; give a file: pretrained=PATH")
    try:
        return str(hub.hf_hub_download(repository, "model.safetensors"))
    except OSError as error:
        raise ValueError(
            f"{repository} has no model.safetensors that can be fetched ({error}); give a file: pretrained=PATH"
        ) from error


def _from_torchvision(name: str, num_classes: int, in_channels: int, pretrained: str | None) -> nn.Module:
    models = _import("torchvision.models")
    if in_channels != 3:
        raise ValueError(f"torchvision's networks take images of 3 channels, got in_channels={in_channels}")
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes)
    except ValueError as error:
        raise ValueError(
            f"torchvision has no network {name!r}; `torchvision.models.list_models()` names all"
        ) from error
    if pretrained is not None:
        load_weights(model, pretrained)
    return model


LIBRARIES: dict[str, Callable[[str, int, int, str | None], nn.Module]] = {
    "hf": _from_transformers,
    "timm": _from_timm,
    "torchvision": _from_torchvision,
}
