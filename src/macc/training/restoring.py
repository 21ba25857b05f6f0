"""A learner put to where a checkpoint left it, and what one within an epoch keeps."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from macc import metrics
from macc.training.checkpoints import Checkpoint, load_module
from macc.training.engine import Learner
from macc.training.optimisation import build_optimiser
from macc.training.randomness import generator_states, restore_generators


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a learner to where a checkpoint left it.

    Raises:
        ValueError: If the checkpoint does not fit what is trained; the learner is then in no state
            to train.
    """
    steps, epochs = len(learner.batches_of_epoch), learner.recipe.epochs
    if checkpoint.epoch + (checkpoint.step > 0) > epochs or checkpoint.step >= steps:
        raise ValueError(f"it is after the last of {epochs} epochs of {steps} steps")
    missing = [
        f"val/{name}"
        for name in metrics.headline()
        if any(f"val/{name}" not in row for row in checkpoint.history)
    ]
    if missing:
        raise ValueError(f"its history lacks {missing[0]!r}")
    load_module(learner.model, checkpoint.model, "model.safetensors")
    load_module(learner.criterion, checkpoint.criterion, "criterion.safetensors")
    groups = learner.optimiser.state_dict()["param_groups"]
    _check_optimiser_state(learner, checkpoint.optimiser)
    learner.optimiser.load_state_dict({"state": dict(checkpoint.optimiser), "param_groups": groups})
    scaler = learner.accelerator.scaler
    if set(checkpoint.scaler) != set({} if scaler is None else scaler.state_dict()):
        raise ValueError("the state of its gradient scaler is that of another precision")
    if scaler is not None:
        scaler.load_state_dict(dict(checkpoint.scaler))
    learner.epoch, learner.step = checkpoint.epoch, checkpoint.step
    learner.history = list(checkpoint.history)
    if checkpoint.unfinished:
        mine = checkpoint.unfinished[learner.accelerator.process_index]
        learner.sums = dict(mine["sums"])
        if "loss" not in learner.sums:
            raise ValueError("its unfinished epoch has no loss")
        try:
            restore_generators(mine["generators"])
        except (RuntimeError, TypeError, ValueError, OverflowError, IndexError):
            raise ValueError("the states of its random generators are none") from None


def _check_optimiser_state(learner: Learner, state: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse a state that the optimiser would not have made: it fails late, or silently."""
    one = nn.Parameter(torch.zeros(2))
    one.grad = torch.zeros(2)
    example = build_optimiser(learner.recipe, [one])
    example.step()
    own = example.state[one]
    parameters = [parameter for group in learner.optimiser.param_groups for parameter in group["params"]]
    for index, values in state.items():
        if index >= len(parameters) or set(values) != set(own):
            raise ValueError(f"the state of its optimiser for parameter {index} is that of another optimiser")
        for name, value in values.items():
            like = own[name]
            shape = parameters[index].shape if isinstance(like, Tensor) and like.ndim else torch.Size()
            if isinstance(value, Tensor) != isinstance(like, Tensor) or (
                isinstance(value, Tensor) and value.shape != shape
            ):
                raise ValueError(f"{name!r} of its optimiser does not fit parameter {index}")


def unfinished_epoch(learner: Learner) -> list[dict[str, Any]]:
    """What each process has to get back to go on within an epoch, on every process."""
    mine = {"sums": learner.sums, "generators": generator_states()}
    if learner.accelerator.num_processes == 1:
        return [mine]
    return cast("list[dict[str, Any]]", gather_object([mine]))
