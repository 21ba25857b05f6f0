"""The training loop on accelerate: epochs of steps, validation after each, everything else around
it.

Everything that decides the result is in the recipe; what a step sees is a function of (seed, epoch,
rank) and of the weights before it, so that a run can be broken off and taken up anywhere.
"""

import copy
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, Protocol, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor, distributed, nn

from macc import losses, metrics
from macc.data import Batches, Splits
from macc.heads import LogitMoments, logits_in
from macc.training._batch_norm import share_batch_norm
from macc.training._bf16 import ensure_bf16_runs
from macc.training.optimisation import build_optimiser, learning_rate
from macc.training.randomness import derived_seed, seed_everything
from macc.training.recipe import Recipe, criterion_of
from macc.training.runs import SPREAD

CHECK_EVERY = 25
"""Steps between looks at the values of the loss. A look makes an accelerator wait."""

Row = dict[str, Any]


def accelerator_for(recipe: Recipe) -> Accelerator:
    """The accelerator of this process: device, precision and the other processes."""
    on_cpu = not torch.accelerator.is_available()
    if recipe.precision == "fp16" and on_cpu:
        raise recipe.complaint("precision", "fp16 needs an accelerator and there is none; write bf16 or fp32")
    if recipe.precision == "bf16" and on_cpu:
        ensure_bf16_runs()
    # Precision belongs to a process in accelerate; here it belongs to a recipe, and one process may
    # train many.
    AcceleratorState._reset_state()
    precision = "no" if recipe.precision == "fp32" else recipe.precision
    return Accelerator(cpu=on_cpu, mixed_precision=precision)


def end_process(code: int) -> NoReturn:
    """End this process; at once, if it trained together with others.

    The threads of gloo outlive their process group. Python that takes itself apart around them is
    now and then aborted, after all its work is done, and the launcher reports a failure.
    """
    if distributed.is_available() and distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class Classifier(nn.Module):
    """A model seen as a function from inputs to logits or moments.

    accelerate changes the ``forward`` of what it prepares, to compute in half precision; it changes
    this one, so that the model inside predicts in float32 however it is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor | LogitMoments:
        """Logits ``(N, K)``, or their moments while an MC-dropout head trains."""
        return logits_in(self.model(inputs))


@dataclass(kw_only=True)
class Learner:
    """What is trained, on what, and how far it is."""

    recipe: Recipe
    data: Splits
    model: nn.Module
    criterion: losses.Criterion | losses.Task
    accelerator: Accelerator
    optimiser: torch.optim.Optimizer
    prepared: nn.Module
    epoch: int = 0
    step: int = 0
    history: list[Row] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    unread: list[Tensor] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)

    @property
    def batches_of_epoch(self) -> Batches:
        """The training batches of the epoch that is under way, this process's share of each."""
        self._shuffle.manual_seed(derived_seed(self.recipe.seed, self.epoch + 1, "batches"))
        return self._train_batches

    @cached_property
    def _shuffle(self) -> torch.Generator:
        return torch.Generator()

    @cached_property
    def _train_batches(self) -> Batches:
        """One for all epochs, because it prepares all images when it is first read."""
        return self.data.batches(
            "train",
            batch_size=self.recipe.batch_size,
            generator=self._shuffle,
            device=self.accelerator.device,
            drop_last=self.recipe.drop_last,
            rank=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
        )

    @property
    def images(self) -> bool:
        """Whether inputs are images, which are computed with channels last."""
        return self.data.train.inputs.ndim == 4


def learner_for(recipe: Recipe, model: nn.Module, data: Splits, accelerator: Accelerator) -> Learner:
    """Put model, loss and optimiser where they are trained.

    Args:
        recipe: A resolved recipe.
        model: The model, its head attached, its backbone frozen if it is to be.
        data: What it is trained on.
        accelerator: Of this process.
    """
    processes = accelerator.num_processes
    if recipe.batch_size % (processes * recipe.accumulate):
        raise recipe.complaint(
            "batch_size",
            f"{recipe.batch_size} cannot be shared by {processes} processes in {recipe.accumulate} "
            f"parts each; choose a multiple of {processes * recipe.accumulate}",
        )
    if recipe.drop_last and len(data.train) < recipe.batch_size:
        raise recipe.complaint(
            "batch_size",
            f"{recipe.batch_size} is more than the {len(data.train)} training samples; "
            "lower it or write drop_last: false",
        )
    criterion = copy.deepcopy(criterion_of(recipe.loss))
    if recipe.class_weight == "balanced":
        counts = data.train.counts(data.num_classes)
        if not bool(counts.all()):
            absent = data.classes[int((counts == 0).nonzero()[0])]
            raise recipe.complaint(
                "class_weight", f"class {absent!r} has no training sample to weigh; write class_weight: none"
            )
        criterion.task.weight = counts.sum() / (len(counts) * counts.float())
    criterion.to(accelerator.device)
    place(model, data, accelerator.device)
    if processes > 1 and accelerator.device.type == "cpu":
        share_batch_norm(model)
    elif processes > 1 and accelerator.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise recipe.complaint("model", "it has no parameter to train: all are frozen")
    optimiser = build_optimiser(recipe, trained)
    losses.count_steps(criterion, optimiser)
    prepared, wrapped = accelerator.prepare(Classifier(model), optimiser)
    if recipe.compile:
        _compile(recipe, prepared, accelerator.device)
    _check_output(recipe, model, data, accelerator.device)
    return Learner(
        recipe=recipe,
        data=data,
        model=model,
        criterion=criterion,
        accelerator=accelerator,
        optimiser=wrapped,
        prepared=prepared,
    )


def _compile(recipe: Recipe, prepared: nn.Module, device: torch.device) -> None:
    """Let the compiler have what is trained, if there is one, as a small trial shows.

    What is compiled depends on nothing but the shape of a batch: with shapes that the compiler may
    generalise, what it makes would depend on the batches seen before, and a run that resumes has
    not seen them.
    """
    torch.compiler.reset()  # what is kept of earlier trainings in this process counts towards a limit
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(2, device=device))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise recipe.complaint(
            "compile",
            f"torch.compile does not work here ({reason}); install a C++ compiler, or write compile: false",
        ) from error
    prepared.compile(dynamic=False)  # in place: weights keep their names


def place(model: nn.Module, data: Splits, device: torch.device) -> None:
    """Put a model where and how it computes: images with channels last."""
    model.to(device)
    if data.train.inputs.ndim == 4:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _check_output(recipe: Recipe, model: nn.Module, data: Splits, device: torch.device) -> None:
    """One evaluation of one sample: does the model give one logit a class?"""
    inputs, _ = next(iter(data.batches("val", batch_size=1, device=device)))
    model.eval()
    with torch.no_grad():
        logits = logits_in(model(inputs))
    shape = tuple(cast("Tensor", logits).shape)
    if shape != (1, data.num_classes):
        cure = "use one output per class and class indices as labels" if shape[-1] == 1 else "match them"
        raise recipe.complaint(
            "model",
            f"it gives outputs of shape {shape} for one sample and {data.name} has "
            f"{data.num_classes} classes; {cure}",
        )


class Watcher(Protocol):
    """What the loop tells while it runs."""

    def step(self, learner: Learner, steps: int) -> None:
        """A step of an epoch of ``steps`` is done; may raise to stop."""

    def epoch(self, learner: Learner) -> None:
        """An epoch is done and validated; its row is the last of the history."""


def train(learner: Learner, watcher: Watcher) -> None:
    """Train from where the learner is to the last epoch."""
    while learner.epoch < learner.recipe.epochs:
        started = time.perf_counter()
        if learner.step == 0:
            seed_everything(learner.recipe.seed, learner.epoch + 1, learner.accelerator.process_index)
            learner.sums = {}
        lr = _train_epoch(learner, watcher)
        means = _means(learner)
        learner.epoch, learner.step = learner.epoch + 1, 0
        row: Row = {
            "epoch": learner.epoch,
            "lr": lr,
            "seconds": round(time.perf_counter() - started, 3),
            **means,
            **validated(learner),
        }
        learner.history.append(row)
        watcher.epoch(learner)


def _train_epoch(learner: Learner, watcher: Watcher) -> float:
    """The steps that are left of an epoch; the learning rate of its last."""
    batches = learner.batches_of_epoch
    steps = len(batches)
    learner.prepared.train()
    learner.criterion.train()
    for inputs, labels in batches.epoch(skip=learner.step):
        lr = learning_rate(learner.recipe, learner.epoch * steps + learner.step, steps)
        for group in learner.optimiser.param_groups:
            group["lr"] = lr
        learner.unread.append(take_step(learner, inputs, labels))
        learner.step += 1
        if len(learner.unread) == CHECK_EVERY or learner.step == steps:
            read_losses(learner)
        watcher.step(learner, steps)
    return learning_rate(learner.recipe, (learner.epoch + 1) * steps - 1, steps)


def take_step(learner: Learner, inputs: Tensor, labels: Tensor) -> Tensor:
    """One step of the optimiser; the loss and its terms, still on the device."""
    recipe, accelerator = learner.recipe, learner.accelerator
    if learner.images:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    count = recipe.accumulate
    values: Tensor | None = None
    for index, (some, targets) in enumerate(_micro_batches(inputs, labels, count)):
        last = index == count - 1
        with nullcontext() if last else accelerator.no_sync(learner.prepared):
            output = learner.prepared(some)
            total, parts = _measured(learner, output, targets)
            accelerator.backward(total / count if count > 1 else total)
        if isinstance(output, LogitMoments):
            parts = {**parts, SPREAD: output.variance.float().mean()}
        learner.terms = ["loss", *parts]
        found = torch.stack([total.detach(), *(part.detach() for part in parts.values())])
        values = found if values is None else values + found
    if recipe.clip is not None:
        accelerator.clip_grad_norm_(learner.prepared.parameters(), recipe.clip)
    learner.optimiser.step()
    learner.optimiser.zero_grad()
    assert values is not None  # noqa: S101 - a recipe accumulates at least one part
    return values / count if count > 1 else values


def _measured(
    learner: Learner, output: Tensor | LogitMoments, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its terms; on the CPU losses refuse logits that are not finite."""
    try:
        return learner.criterion.measured(output, labels)
    except ValueError:
        values = output if isinstance(output, LogitMoments) else (output,)
        if all(bool(value.isfinite().all()) for value in values):
            raise
        raise ValueError(
            f"the logits are not finite at step {learner.step + 1} of epoch {learner.epoch + 1}; "
            f"{_before(learner)}; {_remedy(learner)}"
        ) from None


def _before(learner: Learner) -> str:
    """The terms of the last step that had any; of those already read, only the means are known."""
    if learner.unread:
        return (
            f"the step before it had {_shown(zip(learner.terms, learner.unread[-1].tolist(), strict=True))}"
        )
    if learner.sums:
        means = ((name, total / learner.step) for name, total in learner.sums.items())
        return f"the steps before it had on average {_shown(means)}"
    return "it is the first step of the epoch"


def _shown(values: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values)


def _micro_batches(inputs: Tensor, labels: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    if count == 1:
        yield inputs, labels
    else:
        yield from zip(inputs.tensor_split(count), labels.tensor_split(count), strict=True)


def read_losses(learner: Learner) -> None:
    """Add the values of the steps not read yet, one by one; stop at one that is not finite."""
    if not learner.unread:
        return
    rows = torch.stack(learner.unread).double().tolist()
    learner.unread = []
    for index, values in enumerate(rows):
        if not all(map(math.isfinite, values)):
            raise ValueError(_not_finite(learner, learner.step - len(rows) + index + 1, values))
        for name, value in zip(learner.terms, values, strict=True):
            learner.sums[name] = learner.sums.get(name, 0.0) + value


def _not_finite(learner: Learner, step: int, values: Sequence[float]) -> str:
    shown = _shown(zip(learner.terms, values, strict=True))
    return f"the loss is not finite at step {step} of epoch {learner.epoch + 1}: {shown}; {_remedy(learner)}"


def _remedy(learner: Learner) -> str:
    remedies = ["a smaller optimiser.lr"]
    if learner.recipe.clip is None:
        remedies.append("clip: 1")
    if learner.recipe.precision == "fp16":
        remedies.append("precision: bf16")
    if isinstance(learner.criterion, losses.Criterion):
        remedies.append("a smaller weight or a warm-up of the penalty")
    return f"try {', or '.join(remedies)}, or look for inputs that are not finite"


def _means(learner: Learner) -> dict[str, float]:
    """Mean of the loss and of each term over the steps of the epoch and over the processes."""
    names = list(learner.sums)
    means = torch.tensor([learner.sums[name] for name in names], dtype=torch.float64) / learner.step
    if learner.accelerator.num_processes > 1:
        # On an accelerator without float64 a mean of float32 is all there is.
        here = means.to(learner.accelerator.device, torch.float32)
        means = learner.accelerator.reduce(here, reduction="mean").cpu().double()
    return {f"train/{name}": value for name, value in zip(names, means.tolist(), strict=True)}


def validated(learner: Learner) -> dict[str, float]:
    """The headline metrics on the validation split, for a row of the history."""
    logits = predicted_logits(learner, "val")
    if not bool(logits.isfinite().all()):
        raise ValueError(
            f"the validation logits are not finite after epoch {learner.epoch}; try a smaller optimiser.lr"
        )
    labels = learner.data.val.labels.cpu()
    return {
        f"val/{name}": metric.value(logits, labels, from_logits=True)
        for name, metric in metrics.headline().items()
    }


def predicted_logits(learner: Learner, part: str) -> Tensor:
    """Float32 logits ``(N, K)`` of a part, on the CPU of every process, which share the work."""
    accelerator, count = learner.accelerator, len(learner.data.parts()[part])
    if accelerator.num_processes == 1:
        return predict(
            learner.model,
            learner.data,
            part,
            batch_size=learner.recipe.eval_batch_size,
            device=accelerator.device,
        )
    for buffer in learner.model.buffers():
        # Batch-norm statistics are those of rank 0, as in its checkpoints.
        torch.distributed.broadcast(buffer, 0)
    rows = math.ceil(count / accelerator.num_processes)
    mine = torch.split(torch.arange(count), rows)
    logits = torch.zeros(rows, learner.data.num_classes)
    if accelerator.process_index < len(mine):
        found = predict(
            learner.model,
            learner.data,
            part,
            batch_size=learner.recipe.eval_batch_size,
            device=accelerator.device,
            rows=mine[accelerator.process_index],
        )
        logits[: len(found)] = found
    gathered = cast("Tensor", accelerator.gather(logits.to(accelerator.device)))
    return gathered[:count].cpu()


def predict(
    model: nn.Module,
    data: Splits,
    part: str,
    *,
    batch_size: int,
    device: torch.device | str,
    rows: Tensor | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Logits ``(N, K)`` of a part in float32 and evaluation mode, on the CPU.

    Args:
        model: The model, with or without a head.
        data: Where the part is.
        part: Its name.
        batch_size: Samples at once.
        device: Where the model is.
        rows: Indices of the samples wanted; all by default.
        change: Applied to every prepared batch of inputs.
        on_batch: Called after every batch.
    """
    batches = data.batches(part, batch_size=batch_size, device=device)
    if rows is not None:
        batches = type(batches)(
            part=batches.part.take(rows),
            batch_size=batch_size,
            normalisation=batches.normalisation,
            device=device,
        )
    model.eval()
    found = []
    with torch.inference_mode():
        for inputs, _ in batches:
            if inputs.ndim == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            logits = logits_in(model(inputs if change is None else change(inputs)))
            found.append(cast("Tensor", logits).float().cpu())
            if on_batch is not None:
                on_batch()
    return torch.cat(found)


def agreed(accelerator: Accelerator, value: Any) -> Any:
    """What the main process says, on every process."""
    if accelerator.num_processes == 1:
        return value
    return broadcast_object_list([value])[0]
