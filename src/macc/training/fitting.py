"""``fit``: a recipe, data and a model become a finished run folder, however often it is interrupted."""

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import filter_trackers, get_available_trackers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from macc import data as datasets
from macc import heads, losses, metrics, models
from macc.data import Part, Splits
from macc.data._splits import Kind, vocabulary
from macc.io.json import write_json
from macc.io.tensors import write_tensors
from macc.io.writing import full_disk_explained, remove_leftovers, write_bytes
from macc.training import checkpoints, engine, frozen
from macc.training import recipe as recipes
from macc.training._interrupts import Interrupted, StopRequest
from macc.training._memory import full_memory_explained
from macc.training._randomness import kept_generators, seed_everything
from macc.training.engine import Learner
from macc.training.progress import Display, display_for
from macc.training.recipe import Head, Recipe, Selection
from macc.training.runs import (
    Busy,
    Run,
    append_row,
    differences,
    environment,
    locked,
    run_hash,
    run_path,
    weights_read,
    write_rows,
)
from macc.training.selection import at_chance, candidate_epochs, chosen_epoch

CHECKPOINT_SECONDS = 600.0
AGREE_EVERY = 50
"""Steps after which several processes ask each other whether to write a checkpoint."""

RESAMPLES = 1000
"""Bootstrap resamples behind the intervals of ``metrics.json``."""

Tensors = tuple[Tensor, Tensor]


def fit(
    recipe: Recipe | str | Path,
    *,
    model: nn.Module | None = None,
    data: Splits | Mapping[str, Tensors] | None = None,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    scale: str = "full",
    show: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    resamples: int | None = None,
    also: Sequence[Selection] = (),
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Run:
    """Train a recipe to its end, from wherever an earlier start left it.

    A run that is finished is found by the hash of recipe, data, version and the weight file it started from, and
    returned as it is. A run that was broken off goes on from its last checkpoint and ends as if nothing had
    happened.

    Args:
        recipe: A recipe, or the name or path of one.
        model: A module of your own, changed in place: it gets the head the recipe asks for and ends with the
            selected weights, in evaluation mode. Its initial weights are part of the run's hash.
        data: Data of your own: ``Splits``, or ``{"train": (inputs, labels), "val": ..., "test": ...}``.
        out: The folder of run folders.
        root: The folder with data files, for a data set by name.
        verify: Compare published files with their checksums before they are opened.; that they
            were not is noted in the run's ``environment.json``.
        scale: Of a recipe given by name or path.
        show: Tell on standard output how far it is.
        checkpoint_seconds: Time after which a checkpoint is also written within an epoch.
        resamples: Behind the intervals of ``metrics.json``, 1000 where not given; 100 are quicker and rougher.
        also: Other rules of selection. Where one selects another epoch, what it selects is left as the finished
            run that the recipe with this ``selection`` gives, without a second training.
        on_epoch: Called with the row of every epoch that is done, as in ``history.jsonl``; what it raises
            stops the run, which can be gone on from.

    Returns:
        The finished run.

    Raises:
        ValueError: For whatever a user can cure.
        KeyboardInterrupt: If SIGINT or SIGTERM came; the run folder can be gone on from.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from macc import training
        >>> recipe = training.Recipe(dataset="mine", model="mine", loss="CrossEntropy + MACC", epochs=2,
        ...                          batch_size=16, optimiser={"name": "adam", "lr": 0.01})
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> x, y = torch.randn(96, 4), torch.arange(96) % 3
        >>> parts = {"train": (x[:64], y[:64]), "val": (x[64:80], y[64:80]), "test": (x[80:], y[80:])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = training.fit(recipe, model=nn.Sequential(nn.Linear(4, 3)), data=parts, out=folder)
        ...     [row["epoch"] for row in run.history]
        [1, 2]
    """
    if not isinstance(recipe, Recipe):
        recipe = recipes.load(recipe, scale=scale)
    recipe = recipe.resolved()
    torch.set_flush_denormal(True)
    accelerator = engine.accelerator_for(recipe)
    display = display_for(show and accelerator.is_main_process)
    splits = splits_for(recipe, data, root, verify=verify)
    digest = splits.digest()
    key = run_hash(recipe, digest, model)
    run = Run(run_path(out, recipe, key))
    others = [recipe.model_copy(update={"selection": rule}) for rule in also]
    twins = [(other, run_hash(other, digest, model)) for other in others]  # of the weights before training
    with ExitStack() as stack:
        stack.enter_context(kept_generators())
        stack.enter_context(full_disk_explained(run.path))
        stack.enter_context(full_memory_explained())
        stop = stack.enter_context(StopRequest())
        if show:
            stack.enter_context(_warnings_shown(display))
        # A finished run is only read, whoever holds it.
        if not engine.agreed(accelerator, run.finished):
            _lock(stack, run.path, accelerator)
        whole = _model(recipe, splits, model)
        if not run.finished:
            recorder = Recorder(
                run=run,
                key=key,
                display=display,
                stop=stop,
                chance=_chance(splits),
                checkpoint_seconds=checkpoint_seconds,
                rules=(recipe.selection, *also),
                on_epoch=on_epoch,
            )
            here = environment(
                device=accelerator.device,
                processes=accelerator.num_processes,
                data_digest=digest,
                key=key,
                weights=weights_read(recipe) if model is None else None,
                verified=verify,
            )
            learner = _train(recipe, whole, splits, accelerator, recorder, here)
            count = RESAMPLES if resamples is None else resamples
            for twin, twin_key in twins:
                _leave_twin(learner, whole, run, twin, Run(run_path(out, twin, twin_key)), twin_key, count)
            _finish(learner, whole, run, run, recipe.selection, count)
            if accelerator.is_main_process:
                shutil.rmtree(run.path / "candidates", ignore_errors=True)
            epoch = chosen_epoch(learner.history, recipe.selection)
            display.say(f"weights of epoch {epoch} ({recipe.selection})")
        elif model is not None:
            checkpoints.load_module(whole, run.weights(), run.path / "best.safetensors")
            whole.to(accelerator.device)
        else:
            display.say(f"{run.path} is finished already; nothing to train")
        whole.eval()
    return run


@contextmanager
def _warnings_shown(display: Display) -> Iterator[None]:
    """What the losses warn of, said like everything else."""

    def say(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UserWarning):  # the rest are for programmers
            display.say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def splits_for(
    recipe: Recipe,
    data: Splits | Mapping[str, Tensors] | None,
    root: str | PathLike[str] | None,
    *,
    verify: bool = True,
) -> Splits:
    """The data of a recipe, cut down as it says."""
    if data is None:
        try:
            splits = datasets.load(recipe.dataset, root=root, verify=verify)
        except ValueError as error:
            raise recipe.complaint("dataset", str(error)) from error
    elif isinstance(data, Splits):
        splits = data
    else:
        splits = _own_splits(recipe.dataset, data)
    subset = recipe.subset
    try:
        splits = splits.subset(train=subset.train, val=subset.val, test=subset.test, seed=subset.seed)
    except ValueError as error:
        raise recipe.complaint("subset", str(error)) from error
    unknown = [name for name in recipe.epoch_predictions if name not in splits.parts()]
    if unknown:
        raise recipe.complaint(
            "epoch_predictions",
            f"{splits.name} has no split {unknown[0]!r}; there are {', '.join(splits.parts())}",
        )
    return splits


def _own_splits(name: str, data: Mapping[str, Tensors]) -> Splits:
    missing = {"train", "val", "test"} - set(data)
    if missing:
        raise ValueError(
            f"`data` must have train, val and test as (inputs, labels), {min(missing)!r} is missing; "
            "selection needs val, and test is only read at the end"
        )
    parts = {key: Part(inputs=inputs, labels=labels) for key, (inputs, labels) in data.items()}
    inputs = parts["train"].inputs
    highest = max(int(part.labels.max()) for part in parts.values())
    kind: Kind = "image" if inputs.ndim == 4 else "features" if inputs.is_floating_point() else "tokens"
    return Splits(
        name=name,
        kind=kind,
        vocabulary=vocabulary(parts.values()) if kind == "tokens" else None,
        classes=tuple(str(k) for k in range(highest + 1)),
        train=parts.pop("train"),
        val=parts.pop("val"),
        test=parts.pop("test"),
        shifts=parts,
    )


def _model(recipe: Recipe, data: Splits, model: nn.Module | None) -> nn.Module:
    """The model to train, with its head, its backbone frozen if the recipe says so."""
    model = build_model(recipe, data) if model is None else with_head(recipe, model)
    if losses.parse(recipe.loss).needs_moments and not _has_head(model):
        raise recipe.complaint("head", f"{recipe.loss!r} needs an MC-dropout head; write head: auto")
    if recipe.freeze == "backbone":
        models.freeze(model, bn=recipe.freeze_bn)
    return model


def build_model(recipe: Recipe, data: Splits) -> nn.Module:
    """The recipe's model with its head, freshly initialised from its seed."""
    if recipe.pretrained not in (None, "hub") and not Path(recipe.pretrained).expanduser().is_file():
        raise recipe.complaint(
            "pretrained",
            f"there is no weight file {recipe.pretrained}; put it there, say where it is with "
            "--set pretrained=PATH, or start fresh with --set pretrained=null",
        )
    flat = recipe.model in ("mlp", "linear") or data.kind != "image"
    with kept_generators():
        seed_everything(recipe.seed, "model")
        try:
            model = models.build(
                recipe.model,
                num_classes=data.num_classes,
                in_channels=math.prod(data.shape) if flat else data.shape[0],
                pretrained=recipe.pretrained,
                vocabulary=data.vocabulary,
                vectors=data.vectors,
            )
        except ValueError as error:
            raise recipe.complaint("model", str(error)) from error
    if recipe.image_size is not None:
        model.register_forward_pre_hook(_resize_to(recipe.image_size))
    if recipe.text_length is not None:
        if data.kind != "tokens":
            raise recipe.complaint("text_length", f"{recipe.dataset} has no texts; leave it out")
        model.register_forward_pre_hook(_last_words(recipe.text_length))
    return with_head(recipe, model)


def _resize_to(size: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Images enter the model at ``size`` pixels; a hook, so that parameters keep their names."""

    def resize(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        if inputs[0].shape[-2:] == (size, size):
            return inputs
        return (F.interpolate(inputs[0], size=(size, size), mode="bicubic", antialias=True),)

    return resize


def _last_words(count: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Texts enter the model with their last words; they are padded in front."""
    return lambda _, inputs: (inputs[0][:, -count:],)


def with_head(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The model with the head a recipe asks for, put onto it unless it has one."""
    head = recipe.head
    if not isinstance(head, Head) or _has_head(model):
        return model
    return heads.attach(model, p=head.p, samples=head.samples, estimator=head.estimator)


def _has_head(model: nn.Module) -> bool:
    return any(isinstance(module, heads.Head) for module in model.modules())


def _lock(stack: ExitStack, path: Path, accelerator: Accelerator) -> None:
    """The main process takes the folder; the others hear whether it could."""
    refused: Exception | None = None
    if accelerator.is_main_process:
        try:
            stack.enter_context(locked(path))
        except (ValueError, OSError) as error:
            refused = error
    refused = engine.agreed(accelerator, refused)
    if refused is not None:
        raise refused


def _train(
    recipe: Recipe,
    whole: nn.Module,
    data: Splits,
    accelerator: Accelerator,
    recorder: "Recorder",
    here: Mapping[str, Any],
) -> Learner:
    main, run, display = accelerator.is_main_process, recorder.run, recorder.display
    if main:
        remove_leftovers(run.path, below=True)
        write_bytes(run.path / "recipe.yaml", recipe.to_yaml().encode())
    trained, seen = _cached_if_frozen(recipe, whole, data, accelerator, display)
    learner = engine.learner_for(recipe, trained, seen, accelerator)
    accelerator.wait_for_everyone()
    last = _resume(learner, recorder)
    if main:
        checkpoints.remove_others(run.path / "checkpoint", last)
        _say_where(display, recipe, run, learner, here)
        write_rows(run.path / "history.jsonl", learner.history)
    with _trackers(recipe, run, accelerator), _showing(display, learner):
        engine.train(learner, recorder)
    return learner


def _resume(learner: Learner, recorder: "Recorder") -> Path | None:
    """Put a learner to where its newest checkpoint left it, or an older one where that is damaged; its folder."""
    found = checkpoints.complete(recorder.run.path / "checkpoint")
    for path in found:
        try:
            checkpoint = checkpoints.read(path, run=recorder.key, processes=learner.accelerator.num_processes)
            try:
                engine.restore(learner, checkpoint)
            except ValueError as error:
                raise checkpoints.Damaged(path, str(error)) from error
        except checkpoints.Damaged as error:
            if path == found[-1]:
                raise
            recorder.display.say(f"{path} is damaged: {error.reason}; an older checkpoint is used")
        else:
            return path
    return None


def _cached_if_frozen(
    recipe: Recipe, whole: nn.Module, data: Splits, accelerator: Accelerator, display: Display
) -> tuple[nn.Module, Splits]:
    """What is trained on what: the classifier on the features of a frozen backbone, where these are fixed."""
    if recipe.freeze != "backbone":
        return whole, data
    reason = frozen.why_not_cached(data, whole, freeze_bn=recipe.freeze_bn)
    if reason is not None:
        display.say(f"the frozen backbone runs in every step: {reason}")
        return whole, data
    display.say(
        f"running the frozen backbone once over {len(data.train) + len(data.val) + len(data.test)} samples"
    )
    whole.to(accelerator.device)
    features = frozen.cached_features(
        whole,
        data,
        shifts=[name for name in recipe.epoch_predictions if name in data.shifts],
        batch_size=recipe.eval_batch_size,
        device=accelerator.device,
    )
    return frozen.classifier_of(whole), features


def _say_where(display: Display, recipe: Recipe, run: Run, learner: Learner, here: Mapping[str, Any]) -> None:
    """The first lines of a run, and of one that goes on."""
    device, processes = learner.accelerator.device.type, learner.accelerator.num_processes
    head = "no MC-dropout head"
    if isinstance(recipe.head, Head):
        head = f"MC-dropout head: p {recipe.head.p:g}, {recipe.head.samples} samples, {recipe.head.estimator}"
    data = learner.data
    sizes = f"{len(data.train)} samples to train, {len(data.val)} to validate, {len(data.test)} to test"
    shared = f", {processes} processes" if processes > 1 else ""
    display.say(f"{recipe.label}: {recipe.loss}; {head}")
    display.say(f"{sizes}; {recipe.epochs} epochs on {device}, {recipe.precision}{shared}; in {run.path}")
    path = run.path / "environment.json"
    if not path.is_file():
        write_json(path, here)
    elif learner.epoch or learner.step:
        within = f" and {learner.step} steps" if learner.step else ""
        display.say(f"going on after epoch {learner.epoch}{within}")
        changed = differences(run.environment, here)
        if changed:
            display.say(f"the result may differ in its last bits: {'; '.join(changed)}")


def _chance(data: Splits) -> float:
    return float(data.val.counts(data.num_classes).max()) / len(data.val)


@contextmanager
def _showing(display: Display, learner: Learner) -> Iterator[None]:
    steps = len(learner.batches_of_epoch)
    display.begin(epochs=learner.recipe.epochs, steps=steps, done=learner.epoch * steps + learner.step)
    try:
        yield
    finally:
        display.end()


@contextmanager
def _trackers(recipe: Recipe, run: Run, accelerator: Accelerator) -> Iterator[None]:
    """The trackers that accelerate has, where the recipe names some."""
    if not recipe.trackers:
        yield
        return
    present = {tracker.value for tracker in get_available_trackers()}
    for name in recipe.trackers:
        if name not in present:
            raise recipe.complaint(
                "trackers", f"{name} is not installed; pip install {name}, or leave it out"
            )
    # Only now is the folder known; and accelerate would drop a tracker that is not installed with a warning.
    accelerator.log_with = filter_trackers(list(recipe.trackers), str(run.path))
    accelerator.project_configuration.set_directories(str(run.path))
    accelerator.init_trackers("tracker", config={"loss": recipe.loss, "seed": recipe.seed})
    try:
        yield
    finally:
        accelerator.end_training()


@dataclass(kw_only=True)
class Recorder:
    """Writes what training leaves behind: rows, weights that may be chosen, checkpoints, predictions."""

    run: Run
    key: str
    display: Display
    stop: StopRequest
    chance: float
    checkpoint_seconds: float
    rules: Sequence[Selection]
    """The selections whose epochs are kept."""
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None
    written: float = field(default_factory=time.monotonic)
    warned: bool = False

    def step(self, learner: Learner, steps: int) -> None:
        """Show it; within an epoch, stop if asked to and write a checkpoint when one is due."""
        self.display.step(learner.epoch * steps + learner.step)
        if learner.step == steps:
            return
        number, due = self.stop.number, time.monotonic() - self.written >= self.checkpoint_seconds
        if learner.accelerator.num_processes > 1:
            if learner.step % AGREE_EVERY:
                return
            number, due = engine.agreed(learner.accelerator, (number, due))
        if due or number is not None:
            self._checkpoint(learner)
        if number is not None:
            self._say_goodbye(learner, number)

    def epoch(self, learner: Learner) -> None:
        """Write everything an epoch leaves; the checkpoint first, so that a row stands for one."""
        history = learner.history
        row, epoch = history[-1], learner.epoch
        for split in learner.recipe.epoch_predictions:
            logits = engine.predicted_logits(learner, split)
            if learner.accelerator.is_main_process:
                labels = learner.data.parts()[split].labels
                self.run.write_predictions(f"epochs/{split}-{epoch}", logits=logits, labels=labels)
        if learner.recipe.trackers:
            learner.accelerator.log({k: v for k, v in row.items() if k != "epoch"}, step=epoch)
        candidates: set[int] = set().union(*(candidate_epochs(history, rule) for rule in self.rules))
        if learner.accelerator.is_main_process and epoch in candidates:
            write_tensors(weights_path(self.run, epoch), learner.model.state_dict())
        self._checkpoint(learner)
        if learner.accelerator.is_main_process:
            append_row(self.run.path / "history.jsonl", row)
            # Only now: a run that goes on from the checkpoint before needs the weights chosen then.
            for path in (self.run.path / "candidates").iterdir():
                if path.stem not in map(str, candidates):
                    path.unlink()
        self.display.epoch(row)
        self._say_if_at_chance(learner)
        if self.on_epoch is not None:
            self.on_epoch(row)
        number = engine.agreed(learner.accelerator, self.stop.number)
        if number is not None and epoch < learner.recipe.epochs:
            self._say_goodbye(learner, number)

    def _checkpoint(self, learner: Learner) -> None:
        engine.read_losses(learner)
        unfinished = engine.unfinished_epoch(learner) if learner.step else []
        if learner.accelerator.is_main_process:
            scaler = learner.accelerator.scaler
            checkpoints.save(
                checkpoints.Checkpoint(
                    run=self.key,
                    epoch=learner.epoch,
                    step=learner.step,
                    processes=learner.accelerator.num_processes,
                    history=learner.history,
                    model=learner.model.state_dict(),
                    criterion=learner.criterion.state_dict(),
                    optimiser=learner.optimiser.state_dict()["state"],
                    scaler=scaler.state_dict() if scaler is not None else {},
                    unfinished=unfinished,
                ),
                self.run.path / "checkpoint",
            )
        self.written = time.monotonic()

    def _say_goodbye(self, learner: Learner, number: int) -> None:
        within = f" and {learner.step} steps of the next" if learner.step else ""
        if not learner.accelerator.is_main_process:
            raise Interrupted("", number)
        raise Interrupted(
            f"stopped after {learner.epoch} of {learner.recipe.epochs} epochs{within}; "
            f"the same command goes on from there ({self.run.path})",
            number,
        )

    def _say_if_at_chance(self, learner: Learner) -> None:
        if self.warned:
            return
        steps = len(learner.batches_of_epoch)
        warmups = [m.warmup for m in learner.criterion.modules() if isinstance(m, losses.Penalty)]
        after = math.ceil(max(warmups, default=0) / steps)
        if at_chance(learner.history, self.chance, len(learner.data.val), after=after):
            self.warned = True
            accuracy = 100 * learner.history[-1]["val/accuracy"]
            self.display.say(
                f"validation accuracy is at chance ({accuracy:.1f} %; always naming the largest class gives "
                f"{100 * self.chance:.1f} %): the network has collapsed or learns nothing; {_cure(learner)}"
            )


def _cure(learner: Learner) -> str:
    if learner.criterion.needs_moments:
        return "give MACC a longer warm-up or a smaller weight, or lower head.p or optimiser.lr"
    return "lower optimiser.lr, or look at the labels"


def weights_path(run: Run, epoch: int) -> Path:
    """The weights of an epoch that may still be chosen."""
    return run.path / "candidates" / f"{epoch}.safetensors"


def _finish(
    learner: Learner, whole: nn.Module, trained: Run, run: Run, rule: Selection, resamples: int
) -> None:
    """The weights a rule selects, the predictions of validation and test with them, and the metrics of those."""
    learner.accelerator.wait_for_everyone()  # for the main process to have written the last weights
    kept, best = weights_path(trained, chosen_epoch(learner.history, rule)), run.path / "best.safetensors"
    main = learner.accelerator.is_main_process
    if kept.is_file():
        checkpoints.load_module(learner.model, load_file(kept), kept)
    else:
        # Killed after the weights had got their last name.
        checkpoints.load_module(whole, run.weights(), best)
    learner.accelerator.wait_for_everyone()
    if main:
        write_tensors(best, whole.state_dict())
    measured = {}
    for split in ("val", "test"):
        logits, labels = engine.predicted_logits(learner, split), learner.data.parts()[split].labels.cpu()
        if main:
            run.write_predictions(split, logits=logits, labels=labels)
            measured[split] = measure(logits, labels, resamples)
    if main:
        write_json(run.path / "metrics.json", measured)


def _leave_twin(
    learner: Learner, whole: nn.Module, run: Run, recipe: Recipe, twin: Run, key: str, resamples: int
) -> None:
    """The run that another rule of selection gives, unless it is the same epoch's or its weights were not kept."""
    epoch = chosen_epoch(learner.history, recipe.selection)
    same = epoch == chosen_epoch(learner.history, learner.recipe.selection)
    if same or twin.finished or not weights_path(run, epoch).is_file():
        return
    with ExitStack() as stack:
        try:
            _lock(stack, twin.path, learner.accelerator)
        except Busy:
            return
        if learner.accelerator.is_main_process:
            remove_leftovers(twin.path, below=True)
            write_bytes(twin.path / "recipe.yaml", recipe.to_yaml().encode())
            write_json(twin.path / "environment.json", {**run.environment, "run_sha256": key})
            write_rows(twin.path / "history.jsonl", learner.history)
            if recipe.epoch_predictions:
                epochs = Path("predictions") / "epochs"
                shutil.copytree(run.path / epochs, twin.path / epochs, dirs_exist_ok=True)
        _finish(learner, whole, run, twin, recipe.selection, resamples)


def measure(logits: Tensor, labels: Tensor, resamples: int) -> dict[str, Any]:
    """``{metric: {value, low, high}}``, every metric there is."""
    return dict(json.loads(metrics.evaluate(logits, labels, from_logits=True, resamples=resamples).to_json()))
