"""Which classifiers of transformers ``macc.attach`` serves: builds each with a tiny configuration
and trains a step.

``python -m benchmarks.transformers_classes`` writes docs/transformers-classes.md. Nothing is
downloaded.
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
from macc import losses

PAGE = Path(__file__).parents[1] / "docs" / "transformers-classes.md"
TASKS: dict[str, Any] = {
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
CLASSES = 5


# Sizes that make a model small; those that a class does not have are left alone.
SMALL = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "n_embd", "embedding_size", "emb_dim", "d_latents"), 32
    ),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "d_inner"), 64
    ),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_self_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "num_latents", "rotary_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("num_blocks", "num_self_attends_per_block", "num_cross_attention_heads"), 1),
    **dict.fromkeys(("max_position_embeddings", "image_size"), 64),
}
_PART = {
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "num_hidden_layers": 2, "vocab_size": 1000, "layer_types": ["full_attention"] * 2,
}  # fmt: skip
_HYBRID = {
    "hidden_size": 32, "num_attention_heads": 4, "n_mamba_heads": 8, "num_hidden_layers": 2,
    "layers_block_type": ["hybrid", "hybrid"],
}  # fmt: skip
# What the defaults of a class leave open, or what has to fit together.
OWN: dict[str, dict[str, Any]] = {
    "CohereCompassTextForSequenceClassification": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "DeepseekV2ForSequenceClassification": {
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 64,
    },
    "Mistral4ForSequenceClassification": {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "head_dim": 8},
    "PerceiverForImageClassificationConvProcessing": {"num_cross_attention_heads": 1},
    "PerceiverForImageClassificationFourier": {"num_cross_attention_heads": 1},
    "ReformerForSequenceClassification": {
        "axial_pos_shape": (2, 4),
        "axial_pos_embds_dim": (16, 16),
        "hidden_size": 32,
    },
    "T5GemmaForSequenceClassification": {"encoder": _PART, "decoder": _PART},
    "Zamba2ForSequenceClassification": _HYBRID,
    "ZambaForSequenceClassification": _HYBRID,
}
# A model of more weights is not run.
MOST_WEIGHTS = 150_000_000


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


def parts_of(config: Any) -> list[Any]:
    """A configuration and those inside it."""
    inside = ("text_config", "vision_config", "encoder", "decoder")
    found = [getattr(config, name, None) for name in inside]
    return [config, *(each for part in found if hasattr(part, "to_dict") for each in parts_of(part))]


def configured(name: str, *, small: bool) -> Any:
    """A configuration of few layers and few words, and of few features where that is asked for."""
    config = getattr(transformers, name).config_class(**OWN.get(name, {}))
    for part in parts_of(config):
        layers = (
            "num_hidden_layers",
            "n_layer",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "n_layers",
        )
        wanted = dict.fromkeys(layers, 2) | {"vocab_size": 1000} | (SMALL if small else {})
        for key, value in wanted.items():
            now = getattr(part, key, None)
            if isinstance(now, int) and now > value:
                try:
                    setattr(part, key, value)
                except (NotImplementedError, AttributeError, ValueError):
                    continue
    config.num_labels = CLASSES
    heads, width = (getattr(config, key, None) for key in ("num_attention_heads", "hidden_size"))
    each = width // heads if isinstance(heads, int) and isinstance(width, int) else None
    # What some classes leave open by default.
    usual: dict[str, Any] = {
        "head_dim": each,
        "num_key_value_heads": heads,
        "vocab_size": 1000,
        "default_language": "en_XX",
    }
    for key, value in usual.items():
        if getattr(config, key, 0) is None:
            setattr(config, key, value)
    for part in parts_of(config):
        for key, value in (("pad_token_id", 0), ("eos_token_id", 2), ("decoder_start_token_id", 0)):
            token = getattr(part, key, None)
            if (token is None and key != "eos_token_id") or (
                isinstance(token, int) and not 0 <= token < 1000
            ):
                setattr(part, key, value)
    return config


def batches(model: Any, task: str) -> list[dict[str, Any]]:
    """Inputs that may suit the model, to be tried in turn."""
    config = model.config
    if task == "sequence":
        ids = torch.full((2, 8), 5)
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int):
            ids[:, -1] = end
        # Without a mask some look for padding in the values; with one, others look at its values.
        masked = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        # The cache of models of several kinds of layers wants layers that few have.
        return [{"input_ids": ids}, masked, {**masked, "use_cache": False}]
    if type(model).__name__.startswith("ImageGPT"):  # pixels are words
        return [{"input_ids": torch.full((2, 8), 5)}]
    if type(model).__name__.startswith("Siglip2"):
        numbers = config.vision_config.num_channels * config.vision_config.patch_size**2
        return [
            {
                "pixel_values": torch.randn(2, 16, numbers),
                "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
                "spatial_shapes": torch.full((2, 2), 4),
            }
        ]
    size = getattr(config, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return [{"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), height, width)}]


def weightless(name: str) -> Any:
    """A model of the class on the meta device, where weights take no memory."""
    with torch.device("meta"):
        return getattr(transformers, name)(configured(name, small=False))


def taken(model: Any) -> str:
    """The layer that an attached model has as its head."""
    return next(
        str(where) for where, module in model.named_modules() if isinstance(module, macc.MCDropoutLinear)
    )


def tried(name: str, task: str) -> Outcome:
    """Attach to a model of the class and train it for a step."""
    kind = getattr(transformers, name)
    try:
        model = weightless(name)
    except ImportError as error:
        library = re.search(r"requires the (\w+) library", str(error))
        return Outcome(
            name, None, f"needs {library[1] if library else 'a library'}, which is not installed here"
        )
    except Exception as error:
        return Outcome(name, None, f"not built: {_short(error)}")
    try:
        macc.attach(model)
    except ValueError as error:
        unclear = str(error).startswith("cannot tell")
        return with_example(name, task) if unclear else Outcome(name, False, _short(error))
    layer = taken(model)
    reason = ""
    for small in (True, False):
        try:
            with torch.device("meta"):
                weights = sum(each.numel() for each in kind(configured(name, small=small)).parameters())
        except Exception as error:
            reason = reason or _short(error)
            continue
        if weights > MOST_WEIGHTS:
            reason = reason or f"{weights // 10**6} million weights"
            continue
        torch.manual_seed(0)
        model = macc.attach(kind(configured(name, small=small)))
        for batch in batches(model, task):
            try:
                return Outcome(name, True, f"`{layer}`") if step(model, batch) else _other(name)
            except Exception as error:
                if re.search("LogitMoments|MC-dropout head|tuple indices", str(error)):
                    return Outcome(name, False, "computes with the logits after its last linear layer")
                reason = reason or _short(error)
    return Outcome(name, None, f"`{layer}`, attached; not run: {reason}")


def with_example(name: str, task: str) -> Outcome:
    """Let a batch say which layer gives the logits, where names do not."""
    reason = ""
    for small in (True, False):
        try:
            model = getattr(transformers, name)(configured(name, small=small))
            batch = batches(model, task)[0]
            macc.attach(model, example=batch)
            return Outcome(name, True, "with `example=batch`") if step(model, batch) else _other(name)
        except Exception as error:
            if str(error).startswith("no linear layer's output"):
                return Outcome(name, False, str(error).partition(" (")[0])
            reason = reason or _short(error)
    return Outcome(name, False, f"cannot tell which layer is the classifier; with `example=batch`: {reason}")


def step(model: Any, batch: dict[str, Any]) -> bool:
    """Forward, backward with MACC, and evaluation; whether the model returns what its head does."""
    criterion = losses.CrossEntropy() + losses.MACC()
    output = model.train()(**batch)
    logits = output["logits"] if "logits" in output else output[0]
    if not isinstance(logits, macc.LogitMoments) or tuple(logits.mean.shape) != (2, CLASSES):
        return False
    criterion(logits, torch.tensor([0, 1])).backward()
    head = next(module for module in model.modules() if isinstance(module, macc.MCDropoutLinear))
    gradient = head.weight.grad
    if gradient is None or not bool(gradient.isfinite().all() and gradient.any()):
        raise ValueError("the head got no gradient")
    if sum(each.grad is not None for each in model.parameters()) < 3:
        raise ValueError("the body got no gradient")
    with torch.no_grad():
        output = model.eval()(**batch)
    plain = output["logits"] if "logits" in output else output[0]
    return isinstance(plain, torch.Tensor) and bool(plain.isfinite().all())


def _other(name: str) -> Outcome:
    return Outcome(name, False, "returns something else than the output of its last linear layer")


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
    lines = [
        "# Which classifiers of transformers can be attached to",
        "",
        f"Of the {len(every)} sequence and image classifiers of transformers {transformers.__version__}, `macc.attach(model)` "
        f"serves {len(served)} without further arguments: with a tiny configuration and random weights, each returned "
        "`LogitMoments` in training, got gradients of `CrossEntropy() + MACC()` and returned plain logits in evaluation. "
        f"{len(refused)} are refused. {len(open_)} could not be run.",
        "`python -m benchmarks.transformers_classes` writes this page; nothing is downloaded.",
        "",
        "## Served, and the layer that is taken",
        "",
        *(f"- {each.name}: {each.text}" for each in served),
        "",
        "## Refused",
        "",
        *(f"- {each.name}: {each.text}" for each in refused),
        "",
        "## Not run",
        "",
        *(f"- {each.name}: {each.text}" for each in open_),
    ]
    return "\n".join(lines) + "\n"


def listed(text: str) -> set[str]:
    """The classes that a page names."""
    return set(re.findall(r"\b\w+For(?:Sequence|Image)Classification\w*", text))


def main() -> None:
    """Try all classes and write the page."""
    PAGE.write_text(page(sweep()))


if __name__ == "__main__":
    main()
