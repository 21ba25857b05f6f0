"""Which classifiers of transformers ``macc.attach`` serves: builds each on the meta device and tries.

``python -m benchmarks.transformers_classes`` writes docs/transformers-classes.md. Nothing is downloaded or allocated.
"""

import logging
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto

import macc

PAGE = Path(__file__).parents[1] / "docs" / "transformers-classes.md"
TASKS: dict[str, Any] = {
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
CLASSES = 5


class Outcome(NamedTuple):
    """What came of one class: the layer that was taken, or why not."""

    name: str
    served: bool | None
    text: str


def classes(task: str) -> list[str]:
    """Names of the model classes of a task."""
    names: list[str] = []
    for entry in TASKS[task].values():
        names += [entry] if isinstance(entry, str) else list(entry)
    return sorted(dict.fromkeys(names))


def shallow(config: Any) -> Any:
    """The configuration with few layers, which is all that costs time without memory."""
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for name in (
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "n_layers",
        ):
            if isinstance(getattr(part, name, None), int):
                try:
                    setattr(part, name, min(2, getattr(part, name)))
                except (NotImplementedError, AttributeError, ValueError):
                    continue
    config.num_labels = CLASSES
    heads, width = (getattr(config, name, None) for name in ("num_attention_heads", "hidden_size"))
    each = width // heads if isinstance(heads, int) and isinstance(width, int) else None
    # What some classes leave open by default.
    usual = {
        "head_dim": each,
        "num_key_value_heads": heads,
        "vocab_size": 1000,
    }
    for name, value in {**usual, "default_language": "en_XX"}.items():
        if getattr(config, name, 0) is None:
            setattr(config, name, value)
    if isinstance(getattr(config, "vocab_size", None), int):
        config.vocab_size = min(1000, config.vocab_size)
    if (
        not 0 <= (getattr(config, "pad_token_id", None) or 0) < 1000
        or getattr(config, "pad_token_id", 0) is None
    ):
        config.pad_token_id = 0
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    return config


def build(name: str) -> Any:
    """A model of the class on the meta device, where weights take no memory."""
    kind = getattr(transformers, name)
    with torch.device("meta"):
        return kind(shallow(kind.config_class()))


def batches(model: Any, task: str) -> list[dict[str, torch.Tensor]]:
    """Inputs that may suit the model, to be tried in turn."""
    if task == "sequence":
        ids = torch.ones(2, 8, dtype=torch.long)
        # Without a mask some look for padding in the values; with one, others look at its values.
        return [{"input_ids": ids}, {"input_ids": ids, "attention_mask": ids}]
    size = getattr(model.config, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return [{"pixel_values": torch.zeros(2, getattr(model.config, "num_channels", 3), height, width)}]


def tried(name: str, task: str) -> Outcome:
    """Attach to a model of the class and run it in training."""
    try:
        model = build(name)
    except Exception as error:
        return Outcome(name, None, f"not built: {_short(error)}")
    try:
        macc.attach(model)
    except ValueError as error:
        return Outcome(name, False, _short(error))
    layer = next(where for where, module in model.named_modules() if isinstance(module, macc.MCDropoutLinear))
    reason = ""
    with torch.device("meta"):
        for batch in batches(model, task):
            try:
                output = model.train()(**batch)
            except Exception as error:
                if re.search("LogitMoments|MC-dropout head|tuple indices", str(error)):
                    return Outcome(name, False, "computes with the logits after its last linear layer")
                reason = reason or _short(error)
                continue
            logits = output["logits"] if "logits" in output else output[0]
            if not isinstance(logits, macc.LogitMoments) or tuple(logits.mean.shape) != (2, CLASSES):
                return Outcome(name, False, "returns something else than the output of its last linear layer")
            return Outcome(name, True, f"`{layer}`")
    return Outcome(name, None, f"`{layer}`, attached; not run: {reason}")


def _short(error: Exception) -> str:
    text = re.sub(r"; linear layers: .*", "", " ".join(str(error).split()))
    return text if len(text) <= 160 else f"{text[:157]}…"


def sweep() -> dict[str, list[Outcome]]:
    """What comes of every class of both tasks."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {task: [tried(name, task) for name in classes(task)] for task in TASKS}
    logging.disable(logging.NOTSET)
    return found


def page(found: dict[str, list[Outcome]]) -> str:
    """The page of the documents."""
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    served, refused, open_ = (
        [each for each in every if each.served is answer] for answer in (True, False, None)
    )
    tokens = [each for each in refused if "to every token" in each.text]
    lines = [
        "# Which classifiers of transformers can be attached to",
        "",
        f"Of the {len(every)} sequence and image classifiers of transformers {transformers.__version__}, `macc.attach(model)` "
        f"serves {len(served)} without further arguments: built with few layers and random weights, each returned "
        f"`LogitMoments` in training. {len(refused)} are refused. {len(open_)} could not be tried to the end on torch's meta device, "
        "where weights have no values.",
        "`python -m benchmarks.transformers_classes` writes this page; nothing is downloaded.",
        "",
        "## Served, and the layer that is taken",
        "",
        *(f"- {each.name}: {each.text}" for each in served),
        "",
        "## Refused",
        "",
        "These apply `score` to every token and then pick the logits of one token. Pool the hidden states in a module of your own "
        "and end it in an `nn.Linear`, then attach to that: " + ", ".join(each.name for each in tokens) + ".",
        "",
        *(f"- {each.name}: {each.text}" for each in refused if each not in tokens),
        "",
        "## Not tried to the end",
        "",
        *(f"- {each.name}: {each.text}" for each in open_),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Try all classes and write the page."""
    PAGE.write_text(page(sweep()))


if __name__ == "__main__":
    main()
