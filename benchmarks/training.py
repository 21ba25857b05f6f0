"""The training engine: against a loop as research code writes it, and against its own tensor work
alone.
"""

import os
from collections.abc import Callable, Iterator

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import macc
from benchmarks._timing import Ratio, best_times
from macc import models
from macc.data import Augmentation, Normalisation, Part, Splits
from macc.training import Recipe, engine
from macc.training._bf16 import LIMIT, ensure_bf16_runs, names_tiles
from macc.training.engine import Learner
from macc.training.randomness import derived_seed
from macc.training.recipe import HeadSettings

BATCH = 128
NORMALISATION = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def cifar_like(train: int, val: int = 128) -> Splits:
    """Random images of CIFAR's shape, with its preparation."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> Part:
        return Part(
            inputs=torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator),
            labels=torch.randint(10, (count,), generator=generator),
        )

    return Splits(
        name="random images",
        kind="image",
        classes=tuple("0123456789"),
        train=part(train),
        val=part(val),
        test=part(val),
        normalisation=NORMALISATION,
        augmentation=Augmentation(pad=4, flip=True),
    )


def _recipe(precision: str) -> Recipe:
    return Recipe.model_validate(
        {
            "dataset": "random",
            "model": "resnet20",
            "loss": "CrossEntropy",
            "epochs": 10_000,
            "batch_size": BATCH,
            "optimiser": {"name": "sgd", "lr": 0.1, "weight_decay": 5e-4},
            "precision": precision,
        }
    ).resolved()


class _Unwatched:
    """The engine without files: what is timed here is computing."""

    def step(self, learner: Learner, steps: int) -> None:
        """Nothing."""

    def epoch(self, learner: Learner) -> None:
        """Nothing."""


def _engine_epoch(splits: Splits, precision: str) -> Learner:
    recipe = _recipe(precision)
    torch.manual_seed(0)
    model = models.build("resnet20", num_classes=10)
    return engine.learner_for(recipe, model, splits, engine.accelerator_for(recipe))


class _Images(Dataset[tuple[Tensor, int]]):
    """One image at a time, padded, cropped, mirrored and normalised one at a time."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.mean = torch.tensor(NORMALISATION.mean).view(3, 1, 1)
        self.std = torch.tensor(NORMALISATION.std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.part.inputs[index].float() / 255
        padded = F.pad(image, (4, 4, 4, 4))
        top, left = int(torch.randint(9, ())), int(torch.randint(9, ()))
        image = padded[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, int(self.part.labels[index])


def against_research_code(repeats: int = 3, images: int = 1280) -> Iterator[Ratio]:
    """Images per second of an epoch with its validation, against a plain fp32 loop over a
    DataLoader.

    How much bf16 gives depends on the processor: much with matrix tiles (AMX), little or nothing
    without, so that it is held to its limit only where the processor executes them.
    """
    splits = cifar_like(images)
    half, full = (_epoch_of(_engine_epoch(splits, precision)) for precision in ("bf16", "fp32"))

    torch.manual_seed(0)
    model = models.build("resnet20", num_classes=10)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    train = DataLoader(
        _Images(splits.train),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        persistent_workers=True,
    )
    val = DataLoader(_Images(splits.val), batch_size=100, num_workers=2, persistent_workers=True)

    def theirs() -> None:
        model.train()
        running = 0.0
        for x, y in train:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            running += loss.item()
        model.eval()
        with torch.no_grad():
            for x, y in val:
                (model(x).argmax(1) == y).sum().item()

    fast, single, slow = best_times(half, full, theirs, repeats=repeats)
    loop = f"a DataLoader loop (fp32), {images / slow:.0f} images/s"
    yield Ratio(
        f"ResNet-20, CIFAR-sized: engine (bf16), {images / fast:.0f} images/s, over {loop}",
        slow / fast,
        at_least=2.2 if names_tiles() and LIMIT not in os.environ else None,
    )
    yield Ratio(
        f"ResNet-20, CIFAR-sized: engine (fp32), {images / single:.0f} images/s, over {loop}",
        slow / single,
        at_least=1.6,
    )


def _epoch_of(learner: Learner) -> Callable[[], None]:
    """An epoch of training and its validation."""

    def epoch() -> None:
        engine._train_epoch(learner, _Unwatched())
        learner.step, learner.sums = 0, {}
        engine.validated(learner)

    return epoch


def overhead(repeats: int = 5, images: int = 640) -> Iterator[Ratio]:
    """An epoch of the engine over a bare loop that does the same tensor work."""
    splits = cifar_like(images)
    for precision in ("fp32", "bf16"):
        learner = _engine_epoch(splits, precision)

        def ours(learner: Learner = learner) -> None:
            engine._train_epoch(learner, _Unwatched())
            learner.step, learner.sums = 0, {}

        torch.manual_seed(0)
        model = models.build("resnet20", num_classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

        def bare(
            model: nn.Module = model,
            optimiser: torch.optim.Optimizer = optimiser,
            half: bool = precision == "bf16",
        ) -> None:
            generator = torch.Generator().manual_seed(derived_seed(0, 1, "batches"))
            model.train()
            for x, y in splits.batches("train", batch_size=BATCH, generator=generator, drop_last=True):
                x = x.contiguous(memory_format=torch.channels_last)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                    logits = model(x)
                F.cross_entropy(logits.float(), y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                optimiser.zero_grad()

        engine_time, bare_time = best_times(ours, bare, repeats=repeats)
        yield Ratio(
            f"ResNet-20, {precision}: engine over a bare loop with the same tensor work",
            engine_time / bare_time,
            at_most=1.05,
        )


def memory(epochs: int = 50, settled: int = 10) -> Iterator[Ratio]:
    """Resident memory of the process after many epochs, over that after a few."""
    splits = cifar_like(256)
    recipe = _recipe("fp32").model_copy(update={"loss": "Focal(gamma=3) + 10*MACC", "head": HeadSettings()})
    model = macc.attach(models.build("small_cnn", num_classes=10))
    epoch = _epoch_of(engine.learner_for(recipe, model, splits, engine.accelerator_for(recipe)))
    process, after = psutil.Process(), []
    for _ in range(epochs):
        epoch()
        after.append(process.memory_info().rss)
    yield Ratio(
        f"memory after {epochs} epochs over that after {settled}",
        after[-1] / after[settled - 1],
        at_most=1.02,
    )


def cases() -> Iterator[Ratio]:
    """Every claim of this file."""
    # Before torch asks the processor: it does so once, and not every machine executes what it
    # names.
    ensure_bf16_runs()
    yield from against_research_code()
    yield from overhead()
    yield from memory()
