"""Models that nobody trained, with everything that a trained one has: for tests of what ships
them.
"""

from pathlib import Path

import torch

from macc import __version__, posthoc
from macc.ship.files import Trained, rule_for
from macc.training import Recipe
from macc.training.building import rebuilt
from macc.training.inputs import Inputs


def inputs_for(shape, *, classes=3, **more):
    kind = {1: "features", 3: "image"}[len(shape)]
    values = {"dataset": "made_up", "kind": kind, "dtype": "uint8" if kind == "image" else "float32"}
    return Inputs(**{**values, "shape": shape, "classes": [f"class {k}" for k in range(classes)], **more})


def made_up(model="mlp", inputs=None, *, loss="CrossEntropy + MACC", calibrator=None, **settings) -> Trained:
    """A model with fresh weights, 200 validation logits that are mostly right, and a calibrator."""
    inputs = inputs_for((5,)) if inputs is None else inputs
    recipe = Recipe(
        dataset=inputs.dataset,
        model=model,
        loss=loss,
        epochs=1,
        batch_size=8,
        optimiser={"name": "sgd", "lr": 0.1},
        **settings,
    ).resolved()
    generator = torch.Generator().manual_seed(0)
    size = inputs.num_classes
    labels = torch.randint(size, (200,), generator=generator)
    logits = torch.randn(200, size, generator=generator) + 4 * torch.eye(size)[labels]
    if calibrator is None:
        calibrator = posthoc.Temperature(size, 1.5)
    return Trained(
        recipe=recipe,
        inputs=inputs,
        weights=rebuilt(recipe, inputs).state_dict(),
        calibrator=calibrator,
        logits=logits,
        labels=labels,
        metrics={"val": {}, "test": {"accuracy": {"value": 0.9, "low": 0.85, "high": 0.94}}},
        rule=rule_for(calibrator, logits, labels),
        version=__version__,
        source=Path("made-up"),
    )
