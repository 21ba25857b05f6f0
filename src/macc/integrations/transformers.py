"""For the Trainer of transformers: a criterion as its loss, and calibration among its metrics."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from macc.heads import LogitMoments, logits_in
from macc.losses import BatchPenalty, Criterion, Penalty, parse
from macc.metrics import evaluate, evaluate_labels, headline
from macc.metrics.intervals import Estimate
from macc.metrics.labels import of_label
from macc.words import documented

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ValueError(
        f"macc.integrations.transformers needs transformers ({error}); install it with: "
        "pip install 'macc-torch[transformers]'"
    ) from error


def loss(criterion: nn.Module | str, *, penalty_batch: int | None = None) -> "TrainerLoss":
    """A criterion as ``compute_loss_func`` of a Trainer.

    The Trainer adds up the losses of accumulated batches, and the mean of each is weighted by its
    share of the samples. A penalty made of batch statistics, such as MACC, sees one batch of
    ``per_device_train_batch_size`` samples on each process, and never all that are accumulated;
    class means over few samples are mostly noise. With ``penalty_batch`` it sees that many samples
    of each process: the current batch and the latest ones before it, which count without a
    gradient.

    Args:
        criterion: A criterion of :mod:`macc.losses` or its text, or any module of logits and
            labels.
        penalty_batch: Number of samples that batch statistics are made of; one batch by default.

    Returns:
        The function. It is a callback too: in ``callbacks=[…]`` of the Trainer it lets warm-ups
        count steps of the optimiser, also where training resumes.

    Example:
        >>> from macc import losses
        >>> from macc.integrations import transformers
        >>> compute = transformers.loss(losses.CrossEntropy() + losses.MACC(warmup=500), penalty_batch=64)
        >>> # Trainer(model=macc.attach(model), compute_loss_func=compute, callbacks=[compute], …)
    """
    return TrainerLoss(parse(criterion) if isinstance(criterion, str) else criterion, penalty_batch)


class TrainerLoss(TrainerCallback):
    """What :func:`loss` makes."""

    def __init__(self, criterion: nn.Module, penalty_batch: int | None = None) -> None:
        if penalty_batch is not None:
            if isinstance(penalty_batch, bool) or not isinstance(penalty_batch, int) or penalty_batch < 1:
                raise ValueError(f"`penalty_batch` must be a whole number of samples, got {penalty_batch!r}")
            if not isinstance(criterion, Criterion) or not any(map(_of_batches, _penalties(criterion))):
                raise ValueError(
                    f"`penalty_batch` is for penalties made of batch statistics, such as MACC, and {criterion} has none"
                )
        self.criterion = criterion
        self.penalty_batch = penalty_batch
        self._before: deque[tuple[Tensor | LogitMoments, Tensor]] = deque()

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The loss of a batch; with ``num_items_in_batch``, its share of that of the step."""
        logits = logits_in(outputs)
        if labels is None:
            raise ValueError("the batch has no `labels`; name them with `label_names` of TrainingArguments")
        if self.penalty_batch is not None and torch.is_grad_enabled():
            mean = self._over_more(cast("Criterion", self.criterion), logits, labels)
        else:
            mean = self.criterion(logits, labels)
        # Counted as the Trainer counts: many labels are as many items, and -100 is none.
        return mean if num_items_in_batch is None else mean * labels.ne(-100).sum() / num_items_in_batch

    def _over_more(self, criterion: Criterion, logits: Tensor | LogitMoments, labels: Tensor) -> Tensor:
        """The criterion, with batch statistics of this batch and those before it."""
        parts = [(logits, labels), *self._before]
        joined = _joined([each for each, _ in parts]), torch.cat([each for _, each in parts])
        rows = len(joined[1])
        total = cast("Tensor", criterion.task(logits, labels))
        for weighted in cast("Iterable[Any]", criterion.penalties):
            if not _of_batches(weighted.penalty):
                total = total + weighted(logits, labels)
                continue
            value = weighted(*joined)
            # Of this batch's samples alone, the gradient is a share of what all samples together
            # would have.
            total = total + value.detach() + (value - value.detach()) * (rows / len(labels))
        self._before.appendleft((_detached(logits), labels))
        # What is kept, with a next batch like this one, makes at most the number asked for.
        while sum(len(each) for _, each in self._before) + len(labels) > cast("int", self.penalty_batch):
            self._before.pop()
        return total

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Warm-ups follow the Trainer from here on."""
        self._before.clear()
        for penalty in _penalties(self.criterion):
            penalty.counter = self

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the Trainer's names
        """Set warm-ups to the step that the Trainer is at, which it restores when it resumes."""
        for penalty in _penalties(self.criterion):
            if penalty.warmup:
                penalty.step.fill_(state.global_step)


def _penalties(criterion: nn.Module) -> list[Penalty]:
    return [module for module in criterion.modules() if isinstance(module, Penalty)]


def _of_batches(penalty: nn.Module) -> bool:
    return isinstance(penalty, BatchPenalty)


def _joined(parts: list[Tensor | LogitMoments]) -> Tensor | LogitMoments:
    if isinstance(parts[0], LogitMoments):
        return LogitMoments(*(torch.cat(each) for each in zip(*parts, strict=True)))
    return torch.cat(cast("list[Tensor]", parts))


def _detached(logits: Tensor | LogitMoments) -> Tensor | LogitMoments:
    return (
        LogitMoments(*(each.detach() for each in logits))
        if isinstance(logits, LogitMoments)
        else logits.detach()
    )


@documented
def metrics(
    names: Iterable[str] | None = None, *, bins: int = 15, intervals: bool = True
) -> Callable[[Any], dict[str, float]]:
    """Metrics of the logits as ``compute_metrics`` of a Trainer.

    Where labels are a 0 or 1 for each logit, or there is one logit, they are those of
    :func:`macc.metrics.evaluate_labels`, as means over labels.

    Args:
        names: Names of metrics of :mod:`macc.metrics`; the headline ones by default, and of labels
            ``nll``, ``brier`` and ``ece``.
        intervals: Whether to give the ends of 95 % intervals too, as ``ece_low`` and ``ece_high``.

    Returns:
        A function of what the Trainer predicts.

    Example:
        >>> import numpy as np
        >>> compute = metrics(["accuracy", "ece"], intervals=False)
        >>> compute((np.array([[4.0, 0.0], [0.0, 4.0]]), np.array([0, 1])))["accuracy"]
        1.0
    """
    asked = [names] if isinstance(names, str) else None if names is None else list(names)

    def compute(prediction: Any) -> dict[str, float]:
        scores, labels, *_ = prediction
        # Models that return more than logits return a tuple, and the logits first.
        logits = scores[0] if isinstance(scores, tuple | list) else scores
        given, truth = np.asarray(logits), np.asarray(labels)
        estimates: dict[str, Estimate]
        if given.ndim == 2 and (truth.ndim == 2 or given.shape[1] == 1):
            of_labels = evaluate_labels(given, truth, metrics=asked, bins=bins, from_logits=True)
            wanted = (
                [name.removeprefix("positive_") for name in of_labels.metrics] if asked is None else asked
            )
            estimates = {name: of_labels[of_label(name)] for name in wanted}
        else:
            wanted = list(headline()) if asked is None else asked
            report = evaluate(given, truth, metrics=wanted, bins=bins, from_logits=True)
            estimates = {name: report[name] for name in wanted}
        found: dict[str, float] = {}
        for name, estimate in estimates.items():
            found[name] = estimate.value
            if intervals:
                found |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return found

    return compute
