"""Weights from files, without letting them run anything, and without a silent mismatch."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macc.models.classifier import classifier_name, trained_name
from macc.words import shown


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Fill ``model`` from a ``.safetensors`` or ``.pth`` file of tensors.

    Every tensor must be there and fit; only the classifier may be missing or of another number of
    classes. It then starts fresh, and a warning says so.
    """
    file = Path(path)
    found, own = read_weights(file), model.state_dict()
    head = trained_name(model)
    # Files written before torch counted batches lack the counter, and nothing depends on it.
    absent = [key for key in own if key not in found and not key.endswith("num_batches_tracked")]
    # A weight without its bias is no classifier.
    layers = {
        key.rpartition(".")[0]
        for key in own
        if key in absent or (key in found and found[key].shape != own[key].shape)
    }
    fresh = [key for key in own if key.startswith(f"{head}.") and key.rpartition(".")[0] in layers]
    missing = [key for key in absent if key not in fresh]
    unknown = [key for key in found if key not in own and not (fresh and key.startswith(f"{head}."))]
    unlike = [
        f"{key} is {tuple(found[key].shape)} and should be {tuple(own[key].shape)}"
        for key in own
        if key in found
        and found[key].shape != own[key].shape
        # The number of classes is the first size.
        and (key not in fresh or found[key].shape[1:] != own[key].shape[1:])
    ]
    problems = [
        f"{len(keys)} tensors {what} ({', '.join(shown(key, 100) for key in keys[:3])}{', ...' if len(keys) > 3 else ''})"
        for keys, what in ((missing, "are missing"), (unknown, "are unknown"), (unlike, "do not fit"))
        if keys
    ]
    if problems:
        raise ValueError(
            f"{file} holds the weights of another network than {type(model).__name__}: {'; '.join(problems)}"
        )
    model.load_state_dict({key: value for key, value in found.items() if key not in fresh}, strict=False)
    if fresh:
        classes = len(own[f"{classifier_name(model)}.weight"])
        lacking = [key for key in fresh if key in absent]
        if not lacking:
            reason = f"has {len(found[fresh[0]])} classes, this model has {classes}"
        elif not any(key in found for key in fresh):
            reason = f"has no such classifier, this model has {classes}"
        else:
            reason = f"lacks {lacking[0]}"
        warnings.warn(
            f"{file.name} {reason}: its classifier '{head}' starts fresh",
            UserWarning,
            stacklevel=4,
        )


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file, by name; files that hold anything else are refused."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no weight file {file}")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged or no .safetensors file ({shown(error)})") from error
    if file.suffix not in (".pth", ".pt", ".bin"):
        raise ValueError(f"{file} must be a .safetensors, .pth, .pt or .bin file of weights")
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{file} is damaged, or holds more than tensors and could run code; save `model.state_dict()` alone"
        ) from None
    # A damaged file makes torch raise what it likes.
    except Exception as error:
        raise ValueError(
            f"{file} is damaged or cut ({shown(' '.join(str(error).split()) or type(error).__name__)})"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{file} holds no state dict; save `model.state_dict()`")
    # What DistributedDataParallel puts before every name.
    return {str(key).removeprefix("module."): value for key, value in content.items()}
