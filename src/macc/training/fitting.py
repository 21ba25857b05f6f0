"""``fit``: a recipe, data and a model become a finished run, however often interrupted."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import filter_trackers, get_available_trackers
from safetensors.torch import load_file
from torch import Tensor, nn

from macc import metrics
from macc.data import Splits
from macc.io.json import write_json
from macc.io.tensors import write_tensors
from macc.io.writing import full_disk_explained, remove_leftovers, write_bytes
from macc.posthoc import Temperature
from macc.training import checkpoints, engine, frozen
from macc.training import loading as recipes
from macc.training._interrupts import StopRequest
from macc.training._memory import full_memory_explained
from macc.training.building import Tensors, model_for, splits_for
from macc.training.calibrating import fitted_to
from macc.training.display import Display
from macc.training.engine import Learner
from macc.training.inputs import FILE as INPUTS
from macc.training.inputs import Inputs
from macc.training.randomness import kept_generators
from macc.training.recipe import HeadSettings, Recipe, Selection
from macc.training.record import CHECKPOINT_SECONDS, Recorder, chance, weights_path
from macc.training.restoring import restore
from macc.training.runs import (
    Busy,
    Run,
    differences,
    environment,
    locked,
    run_hash,
    run_path,
    weights_read,
    write_rows,
)
from macc.training.selection import chosen_epoch

RESAMPLES = 1000
"""Bootstrap resamples behind the intervals of ``metrics.json``."""


def fit(
    recipe: Recipe | str | Path,
    *,
    model: nn.Module | None = None,
    data: Splits | Mapping[str, Tensors] | None = None,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    scale: str = "full",
    display: Display | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    resamples: int | None = None,
    also: Sequence[Selection] = (),
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Run:
    """Train a recipe to its end, from wherever an earlier start left it.

    A run that is finished is found by the hash of recipe, data, version and the weight file it
    started from, and returned as it is. A run that was broken off resumes from its last checkpoint
    and ends as if nothing had happened.

    Args:
        recipe: A recipe, or the name or path of one.
        model: A module of your own, changed in place: it gets the head the recipe asks for and ends
            with the selected weights, in evaluation mode. Its initial weights are part of the run's
            hash.
        data: Data of your own: ``Splits``, or
            ``{"train": (inputs, labels), "val": ..., "test": ...}``.
        out: The folder of run folders.
        root: The folder with data files, for a data set by name.
        verify: Compare published files with their checksums before they are opened.; that they
            were not is noted in the run's ``environment.json``.
        scale: Of a recipe given by name or path.
        display: Hears how far it is; `macc train` gives one that shows it.
        checkpoint_seconds: Time after which a checkpoint is also written within an epoch.
        resamples: Behind the intervals of ``metrics.json``, 1000 where not given; 100 are quicker
            and rougher.
        also: Other rules of selection. Where one selects an epoch that none before it does, what it
            selects is left as the finished run that the recipe with this ``selection`` gives,
            without a second training.
        on_epoch: Called with the row of every epoch that is done, as in ``history.jsonl``; what it
            raises stops the run, which can be gone on from.

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
    goal = recipe.resolved()
    if goal.stages and model is not None:
        raise goal.complaint(
            "stages",
            "a model of your own is trained in one stage; give the recipe the name of a model instead",
        )
    recipe = goal.final()
    torch.set_flush_denormal(True)
    accelerator = engine.accelerator_for(recipe)
    shown = display is not None
    display = display if display is not None and accelerator.is_main_process else Display()
    splits = splits_for(goal, data, root, verify=verify)
    digest = splits.digest()
    key = run_hash(goal, digest, model)
    run = Run(run_path(out, goal, key))
    if goal.stages and not engine.agreed(accelerator, run.finished):
        display.say(f"stage {len(goal.stages)} of {len(goal.stages) + 1}")
        before = fit(
            goal.earlier(),
            data=data,
            out=out,
            root=root,
            verify=verify,
            display=display if shown else None,
            checkpoint_seconds=checkpoint_seconds,
            resamples=resamples,
        )
        recipe = recipe.model_copy(update={"pretrained": str(before.path / "best.safetensors")})
        display.say(f"stage {len(goal.stages) + 1} of {len(goal.stages) + 1}")
    others = [goal.model_copy(update={"selection": rule}) for rule in also]
    twins = [(other, run_hash(other, digest, model)) for other in others]  # of the weights before training
    with ExitStack() as stack:
        stack.enter_context(kept_generators())
        stack.enter_context(full_disk_explained(run.path))
        stack.enter_context(full_memory_explained())
        stop = stack.enter_context(StopRequest())
        if shown:
            stack.enter_context(_warnings_shown(display))
        # A finished run is only read, whoever holds it.
        if not engine.agreed(accelerator, run.finished):
            _lock(stack, run.path, accelerator)
        fresh = bool(goal.stages) and goal.stages[-1].fresh_classifier
        whole = model_for(recipe, splits, model, fresh_classifier=fresh)
        inputs = Inputs.of(splits, dataset=recipe.dataset, model=whole).to_dict()
        if accelerator.is_main_process and not (run.path / INPUTS).is_file():
            write_json(run.path / INPUTS, inputs)
        if not run.finished:
            recorder = Recorder(
                run=run,
                key=key,
                display=display,
                stop=stop,
                chance=chance(splits),
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
            if accelerator.is_main_process:
                remove_leftovers(run.path, below=True)
                write_bytes(run.path / "recipe.yaml", goal.to_yaml().encode())
            learner = _train(recipe, whole, splits, accelerator, recorder, here)
            count = RESAMPLES if resamples is None else resamples
            left = {chosen_epoch(learner.history, recipe.selection)}
            for twin, twin_key in twins:
                epoch = chosen_epoch(learner.history, twin.selection)
                if epoch not in left:
                    left.add(epoch)
                    _leave_twin(
                        learner, whole, run, twin, Run(run_path(out, twin, twin_key)), twin_key, count
                    )
            _finish(learner, whole, run, run, recipe, count)
            epoch = chosen_epoch(learner.history, recipe.selection)
            display.say(f"weights of epoch {epoch} ({recipe.selection})")
            _say_how_calibrated(display, run)
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
    """Put a learner to its newest checkpoint that is not damaged, and give the folder."""
    found = checkpoints.complete(recorder.run.path / "checkpoint")
    for path in found:
        try:
            checkpoint = checkpoints.read(path, run=recorder.key, processes=learner.accelerator.num_processes)
            try:
                restore(learner, checkpoint)
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
    """What is trained on what: on fixed features of a frozen backbone, its classifier."""
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
    """The first lines of a run, and of one that resumes."""
    device, processes = learner.accelerator.device.type, learner.accelerator.num_processes
    head = "no MC-dropout head"
    if isinstance(recipe.head, HeadSettings):
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
        display.say(f"resuming after epoch {learner.epoch}{within}")
        changed = differences(run.environment, here)
        if changed:
            display.say(f"the result may differ in its last bits: {'; '.join(changed)}")


def _say_how_calibrated(display: Display, run: Run) -> None:
    calibrator = run.calibrator
    if calibrator is None:
        return
    what = type(calibrator).__name__
    if isinstance(calibrator, Temperature):
        what = f"temperature {calibrator.temperature:.3g}"
    display.say(f"calibrated on the validation set: {what}")
    for note in calibrator.notes:
        display.say(f"warning: {note}")


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
    # Only now is the folder known; and accelerate would drop a tracker that is not installed with a
    # warning.
    accelerator.log_with = filter_trackers(list(recipe.trackers), str(run.path))
    accelerator.project_configuration.set_directories(str(run.path))
    accelerator.init_trackers("tracker", config={"loss": recipe.loss, "seed": recipe.seed})
    try:
        yield
    finally:
        accelerator.end_training()


def _finish(
    learner: Learner, whole: nn.Module, trained: Run, run: Run, recipe: Recipe, resamples: int
) -> None:
    """The selected weights, their predictions of validation and test, calibrator, metrics."""
    learner.accelerator.wait_for_everyone()  # for the main process to have written the last weights
    kept = weights_path(trained, chosen_epoch(learner.history, recipe.selection))
    best = run.path / "best.safetensors"
    main = learner.accelerator.is_main_process
    if kept.is_file():
        checkpoints.load_module(learner.model, load_file(kept), kept)
    else:
        # Killed after the weights had got their last name, and before the metrics had theirs.
        checkpoints.load_module(whole, run.weights(), best)
    learner.accelerator.wait_for_everyone()
    if main:
        write_tensors(best, whole.state_dict())
    found = {
        split: (engine.predicted_logits(learner, split), learner.data.parts()[split].labels.cpu())
        for split in ("val", "test")
    }
    if not main:
        return
    measured: dict[str, Any] = {}
    for split, (logits, labels) in found.items():
        run.write_predictions(split, logits=logits, labels=labels)
        measured[split] = measure(logits, labels, resamples, from_logits=True)
    if recipe.calibrate != "none":
        calibrator = fitted_to(*found["val"], recipe.calibrate, learner.data.classes)
        calibrator.save(run.path / "calibrator.json", classes=learner.data.classes)
        logits, labels = found["test"]
        measured["calibrated"] = {"test": measure(calibrator(logits.double()), labels, resamples)}
    # Not afterwards: nobody tidies up a finished run.
    shutil.rmtree(run.path / "candidates", ignore_errors=True)
    write_json(run.path / "metrics.json", measured)


def _leave_twin(
    learner: Learner, whole: nn.Module, run: Run, recipe: Recipe, twin: Run, key: str, resamples: int
) -> None:
    """The run that another rule of selection gives, if its epoch's weights were kept."""
    epoch = chosen_epoch(learner.history, recipe.selection)
    if twin.finished or not weights_path(run, epoch).is_file():
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
            shutil.copyfile(run.path / INPUTS, twin.path / INPUTS)
            write_rows(twin.path / "history.jsonl", learner.history)
            if recipe.epoch_predictions:
                epochs = Path("predictions") / "epochs"
                shutil.copytree(run.path / epochs, twin.path / epochs, dirs_exist_ok=True)
        _finish(learner, whole, run, twin, recipe, resamples)


def measure(scores: Tensor, labels: Tensor, resamples: int, *, from_logits: bool = False) -> dict[str, Any]:
    """``{metric: {value, low, high}}``, every metric there is."""
    found = metrics.evaluate(scores, labels, from_logits=from_logits, resamples=resamples)
    return dict(json.loads(found.to_json()))
