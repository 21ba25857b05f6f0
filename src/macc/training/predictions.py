"""Predictions of finished runs: other data, noise, moments, and several runs together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from macc import data as datasets
from macc import heads
from macc.data import Part, Splits
from macc.io.arrays import write_arrays
from macc.io.writing import full_disk_explained
from macc.training import checkpoints, engine
from macc.training._memory import full_memory_explained
from macc.training.building import Tensors, build_model, splits_for, with_head
from macc.training.randomness import derived_seed, kept_generators, seed_everything
from macc.training.recipe import Recipe, Subset
from macc.training.runs import Run
from macc.words import slug

NOISE_LEVELS = 10
BISECTIONS = 12
MOMENT_SAMPLES = 10


def predict(
    run: Run,
    *,
    data: str | Splits | None = None,
    model: nn.Module | None = None,
    trained_on: Splits | Mapping[str, Tensors] | None = None,
    moments: bool = False,
    perturb: bool = False,
    passes: int | None = None,
    out: str | PathLike[str] | None = None,
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    on_part: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the logits of a finished run for more data.

    Without ``data`` and ``perturb``, validation and test are predicted again, which is of use with
    ``moments``.

    Args:
        run: A finished run.
        data: A data set, by name or loaded: its shifted test sets are predicted, and its test set
            where it is not the run's own. Inputs are normalised as in training, and of each part as
            many samples are used as the run's recipe used of its own test set. Files of your own
            (``arrays:PATH``, ``folder:PATH``) on which the run was not trained are predicted whole,
            in their order: their test split, all samples without one.
        model: The model of a run that was trained on a module of your own.
        trained_on: The data of a run that was trained on data of your own, as :func:`fit` got them.
        moments: Add mean and variance of the logits under dropout; needs an MC-dropout head.
        perturb: Predict the validation split under Gaussian input noise of ten levels, chosen so
            that accuracy falls in equal steps from the clean one to chance; post-hoc calibrators
            fitted on these hold under shift.
        passes: Write the test split as ``test-<passes>-passes.npz`` instead: the logarithm of its
            probabilities, averaged over this many whole passes with the head's dropout on; needs an
            MC-dropout head.
        out: A folder in place of the run's ``predictions``.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
        on_part: Called with the name of each part before it is predicted.

    Returns:
        The files written.

    Reference:
        Tomani et al., *Post-hoc Uncertainty Calibration for Domain Drift Scenarios*, CVPR 2021
        (``perturb``).
    """
    recipe = run.recipe
    try:
        own = splits_for(recipe, trained_on, root, verify=verify)
    except ValueError as error:
        if trained_on is not None:
            raise
        raise ValueError(f"{error} (data of your own are given as `trained_on`)") from error
    if run.environment.get("data_sha256") != own.digest():
        raise ValueError(
            f"{recipe.dataset} is not what {run.path} was trained on: its hash differs; give the folder with the "
            "same files, or train again"
        )
    device = engine.accelerator_for(recipe).device
    network = build_model(recipe.final(), own) if model is None else with_head(recipe, model)
    engine.place(network, own, device)
    checkpoints.load_module(network, run.weights(), run.path / "best.safetensors")
    if (moments or passes) and not any(isinstance(module, heads.Head) for module in network.modules()):
        raise ValueError(
            f"{run.path} has no MC-dropout head, so its logits have no moments; train it with "
            "--set head.p=0.2, or leave out --moments"
        )
    folder = run.path / "predictions" if out is None else Path(out)
    size = recipe.eval_batch_size
    written = []

    def write(name: str, arrays: dict[str, Tensor]) -> None:
        path = folder / f"{name}.npz"
        write_arrays(path, {key: value.numpy() for key, value in arrays.items()})
        written.append(path)

    with kept_generators(), full_disk_explained(folder), full_memory_explained():
        if passes is not None:
            seed_everything(recipe.seed, "passes", passes)
            logits = _averaged(network, own, size, device, passes)
            write(f"test-{passes}-passes", {"logits": logits, "labels": own.test.labels.cpu()})
            return written
        for name, splits, part in _parts(recipe, own, data, root, perturb=perturb, verify=verify):
            if on_part is not None:
                on_part(name)
            arrays = {
                "logits": engine.predict(network, splits, part, batch_size=size, device=device),
                "labels": splits.parts()[part].labels.cpu(),
            }
            if moments:
                seed_everything(recipe.seed, "moments", part)
                arrays |= _moments(network, splits, part, size, device)
            write(name, arrays)
        if perturb:
            for level, arrays in enumerate(_perturbed(network, own, size, device), start=1):
                name = f"val/gaussian-{level}"
                if on_part is not None:
                    on_part(name)
                if moments:
                    seed_everything(recipe.seed, "moments", name)
                    arrays |= _moments(network, own, "val", size, device, _noise(arrays["noise"].item()))
                write(name, arrays)
    return written


def _parts(
    recipe: Recipe,
    own: Splits,
    data: str | Splits | None,
    root: str | PathLike[str] | None,
    *,
    perturb: bool,
    verify: bool = True,
) -> list[tuple[str, Splits, str]]:
    """What to predict: file name, data set, part."""
    if data is None:
        return [] if perturb else [("val", own, "val"), ("test", own, "test")]
    limit = recipe.subset
    if isinstance(data, str):
        known = _place(data, root) == _place(recipe.dataset, root)
        given = datasets.load(data, root=root, verify=verify, cut=known)
        if ":" in data and not known:
            limit = Subset()
    else:
        given = data
    if given.classes != own.classes:
        raise ValueError(
            f"{given.name} has the classes {', '.join(given.classes[:3])}, …, the run was trained on "
            f"{', '.join(own.classes[:3])}, …; they must be the same"
        )
    if own.vocabulary is not None and (given.vocabulary or 0) > own.vocabulary:
        raise ValueError(
            f"{given.name} has token ids below {given.vocabulary}, the run was trained on ids below {own.vocabulary}; "
            "give texts in the ids of its training, rare words as one of them"
        )
    # A data set that brings a normalisation of its own was fitted to another training split.
    given = replace(
        given,
        normalisation=own.normalisation,
        augmentation=None,
        test=_cut(given.test, limit),
        shifts={name: _cut(part, limit) for name, part in given.shifts.items()},
    )
    # Corrupted sets bring the clean test images along, which are predicted already.
    parts = list(given.shifts) + ([] if _same(given.test, own.test) else ["test"])
    if not parts:
        raise ValueError(f"{given.name} is what the run was trained on and has no shifted test set")
    folder = slug(given.name)
    return [(f"{folder}/{part}", given, part) for part in parts]


def _place(name: str, root: str | PathLike[str] | None) -> tuple[str, Path]:
    """What kind of files a data set is read from, and where a user's own are."""
    kind, _, path = name.partition(":")
    return kind, Path(root or "", path).expanduser().resolve()


def _same(one: Part, other: Part) -> bool:
    return torch.equal(one.labels, other.labels) and torch.equal(one.inputs, other.inputs)


def _cut(part: Part, subset: Subset) -> Part:
    """As many test samples as the run used of its own."""
    if subset.test is None or subset.test >= len(part):
        return part
    return part.subset(subset.test, seed=subset.seed)


def _moments(
    network: nn.Module,
    splits: Splits,
    part: str,
    batch_size: int,
    device: torch.device,
    change: Callable[[Tensor], Tensor] = lambda inputs: inputs,
) -> dict[str, Tensor]:
    """Mean and variance of the logits under dropout."""
    with torch.inference_mode():
        rows = [
            heads.moments(network, change(inputs), samples=MOMENT_SAMPLES)
            for inputs, _ in splits.batches(part, batch_size=batch_size, device=device)
        ]
    return {
        "mean": torch.cat([row.mean.cpu() for row in rows]),
        "variance": torch.cat([row.variance.cpu() for row in rows]),
    }


def _averaged(network: nn.Module, data: Splits, batch_size: int, device: torch.device, passes: int) -> Tensor:
    """The logarithm of probabilities averaged over whole passes with dropout on."""
    network.eval()
    (head,) = (module for module in network.modules() if isinstance(module, heads.Head))
    head.samples, head.training = 1, True
    found = []
    with torch.inference_mode():
        for inputs, _ in data.batches("test", batch_size=batch_size, device=device):
            logits = torch.stack([cast("Tensor", heads.logits_in(network(inputs))) for _ in range(passes)])
            found.append((logits.float().log_softmax(dim=2).logsumexp(dim=0) - math.log(passes)).cpu())
    return torch.cat(found)


def _noise(sd: float) -> Callable[[Tensor], Tensor]:
    """Adds Gaussian noise to batches, to the same ones the same."""
    generator = torch.Generator().manual_seed(derived_seed("perturb"))
    return lambda inputs: inputs + sd * torch.randn(inputs.shape, generator=generator).to(inputs.device)


def _perturbed(network: nn.Module, data: Splits, batch_size: int, device: torch.device) -> Any:
    """Validation logits under ten levels of noise, even steps of accuracy down to chance."""
    if data.kind == "tokens":
        raise ValueError("--perturb adds Gaussian noise to inputs, and tokens are no numbers; leave it out")
    labels = data.val.labels.cpu()

    def noisy(sd: float) -> Tensor:
        return engine.predict(network, data, "val", batch_size=batch_size, device=device, change=_noise(sd))

    def accuracy(logits: Tensor) -> float:
        return float((logits.argmax(dim=1) == labels).double().mean())

    clean, chance = accuracy(noisy(0.0)), 1 / data.num_classes
    lowest = 0.0
    for level in range(1, NOISE_LEVELS + 1):
        wanted = clean + (chance - clean) * level / NOISE_LEVELS
        low, high = lowest, max(1.0, 2 * lowest)
        while accuracy(noisy(high)) > wanted and high < 1e3:
            low, high = high, 2 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if accuracy(noisy(middle)) > wanted:
                low = middle
            else:
                high = middle
        lowest = high
        yield {"logits": noisy(high), "labels": labels, "noise": torch.tensor(high)}


def ensemble(runs: Sequence[Run], out: str | PathLike[str], *, split: str = "test") -> Path:
    """Average the probabilities of several runs on one split.

    Args:
        runs: Finished runs on the same data.
        out: The ``.npz`` to write: ``labels``, and as ``logits`` the logarithm of the mean
            probabilities, whose softmax they are.
        split: Which of their predictions.

    Returns:
        The file written.
    """
    if len(runs) < 2:
        raise ValueError(f"an ensemble needs at least two runs, got {len(runs)}")
    path = Path(out)
    if path.suffix != ".npz":
        raise ValueError(
            f"the predictions of an ensemble are an .npz file, got {path}; write for example ensemble.npz"
        )
    total: Tensor | None = None
    labels = cast("Tensor", None)
    for run in runs:
        logits, own = run.predictions(split)
        if total is None:
            total, labels = torch.zeros_like(logits, dtype=torch.float64), own
        if logits.shape != total.shape or not torch.equal(own, labels):
            raise ValueError(
                f"{run.path} and {runs[0].path} differ in the labels of {split!r}; "
                "an ensemble needs runs on the same data in the same order"
            )
        total += logits.double().softmax(dim=1)
    probs = cast("Tensor", total) / len(runs)
    tiny = torch.finfo(torch.float64).tiny
    with full_disk_explained(path):
        write_arrays(path, {"logits": probs.clamp(min=tiny).log().numpy(), "labels": labels.numpy()})
    return path
