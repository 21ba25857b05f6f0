"""What a predictor costs over the bare module, and an exported graph over a plain export of the
same network.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._timing import Ratio, best_times
from macc import models, posthoc
from macc.ship import Predictor, export
from macc.ship.files import Trained, rule_for
from macc.training import Recipe
from macc.training.building import rebuilt
from macc.training.inputs import Inputs, Scaling


def _untrained(model: str, shape: tuple[int, ...]) -> Trained:
    """A network with fresh weights and everything that a trained one has."""
    image = len(shape) == 3
    inputs = Inputs(
        dataset="benchmark",
        kind="image" if image else "features",
        shape=shape,
        dtype="uint8" if image else "float32",
        classes=tuple(map(str, range(10))),
        normalisation=Scaling(mean=(0.5,) * shape[0], std=(0.25,) * shape[0]),
    )
    recipe = Recipe(
        dataset="benchmark",
        model=model,
        loss="CrossEntropy + MACC",
        epochs=1,
        batch_size=1,
        optimiser={"name": "sgd", "lr": 0.1},
    ).resolved()
    torch.manual_seed(0)
    logits, labels = 5 * torch.eye(10).repeat(50, 1), torch.arange(500) % 10
    calibrator = posthoc.Temperature(10, 1.5)
    return Trained(
        recipe=recipe,
        inputs=inputs,
        weights=rebuilt(recipe, inputs).state_dict(),
        calibrator=calibrator,
        logits=logits,
        labels=labels,
        metrics={},
        rule=rule_for(calibrator, logits, labels),
        version="",
        source=Path("benchmark"),
    )


def _bare(trained: Trained) -> nn.Module:
    model = models.build(trained.recipe.model, num_classes=10, in_channels=trained.inputs.shape[0])
    model.load_state_dict(dict(trained.weights))
    if len(trained.inputs.shape) == 3:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.eval()


def predictors(repeats: int = 200) -> Iterator[Ratio]:
    """Raw inputs to answers, over the module alone on inputs that are prepared already."""
    bytes_ = torch.randint(256, (256, 3, 32, 32)).to(torch.uint8)
    for name, model, raw in (
        ("2048 features, mlp", "mlp", torch.randn(256, 2048)),
        ("32-pixel images, ResNet-20", "resnet20", bytes_),
    ):
        trained = _untrained(model, tuple(raw.shape[1:]))
        prepared = raw.float()
        if raw.ndim == 4:
            prepared = prepared.contiguous(memory_format=torch.channels_last)
        base, whole = best_times(
            partial(_forward, _bare(trained), prepared), partial(Predictor(trained), raw), repeats=repeats
        )
        yield Ratio(f"256 {name}: predictor over the bare module", whole / base, at_most=1.05)


@torch.no_grad()
def _forward(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs)  # type: ignore[no-any-return]


def exported(repeats: int = 100) -> Iterator[Ratio]:
    """ResNet-20 in onnxruntime: with normalisation, calibrator, certainty and acceptance, over
    logits alone.
    """
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    trained = _untrained("resnet20", (3, 32, 32))
    raw = torch.randint(256, (64, 3, 32, 32)).to(torch.uint8)
    program = torch.export.export(
        _bare(trained), (raw.float(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
    )
    plain: Any = torch.onnx.export(program, dynamo=True, input_names=["inputs"], verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        whole = export(trained, Path(folder) / "whole.onnx").path.read_bytes()
    calls = [
        partial(runtime.InferenceSession(graph, options).run, None, {"inputs": inputs.numpy()})
        for graph, inputs in ((plain.model_proto.SerializeToString(), raw.float()), (whole, raw))
    ]
    base, answers = best_times(*calls, repeats=repeats)
    yield Ratio("ResNet-20, batch 64: ONNX with certainty over a plain export", answers / base, at_most=1.05)


def cases() -> Iterator[Ratio]:
    """All of them."""
    yield from predictors()
    yield from exported()
