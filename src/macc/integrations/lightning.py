"""For Lightning: a callback that measures calibration and fits a calibrator at the end."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macc import posthoc
from macc.heads import LogitMoments
from macc.metrics import Calibration, headline
from macc.words import documented

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ValueError(
        f"macc.integrations.lightning needs lightning ({error}); install it with: pip install 'macc-torch[lightning]'"
    ) from error


@documented
class Calibrate(Callback):
    """Log streaming calibration metrics of each validation epoch, and fit a calibrator when
    training ends.

    ``val_accuracy``, ``val_nll``, ``val_ece`` and ``val_sce`` are those of all samples of all
    processes, from sums in memory of bins times classes, so that
    ``ModelCheckpoint(monitor="val_nll")`` and early stopping can use them. The calibrator is fitted
    to the logits of the last validation epoch, which are kept until then; after
    ``trainer.validate(…)`` it is fitted to the logits of that, so that
    ``trainer.validate(ckpt_path="best")`` fits it to the best weights.

    ``validation_step`` has to return a dict with ``logits`` and ``labels``; for anything else say
    with ``read`` where they are.

    Args:
        num_classes: Number of classes K.
        method: Name of a calibrator of :mod:`macc.posthoc`, ``"auto"`` to choose by
            cross-validation, or None.
        path: File to save the calibrator to, as JSON; :func:`macc.posthoc.load` reads it.
        read: A function of what ``validation_step`` returned and of the batch that gives logits and
            labels.
        prefix: What the names of logged metrics begin with.

    Attributes:
        calibrator: The fitted calibrator; None before.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        bins: int = 15,
        method: str | None = "temperature",
        path: Path | str | None = None,
        read: Callable[[Any, Any], tuple[Any, Tensor]] | None = None,
        prefix: str = "val_",
    ) -> None:
        if method is not None and method != "auto":
            posthoc.by_name(method)  # a wrong name is an error now, and not after training
        self.method = method
        self.path = path
        self.prefix = prefix
        self.calibrator: posthoc.Calibrator | None = None
        self._read = read or _read
        self._metrics = Calibration(num_classes, bins, from_logits=True)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """Forget the epoch before."""
        self._metrics.reset()
        self._kept.clear()

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002
        dataloader_idx: int = 0,
    ) -> None:
        """Take in a batch; of several validation sets the first one counts."""
        if trainer.sanity_checking or dataloader_idx:
            return
        logits, labels = self._read(outputs, batch)
        if isinstance(logits, LogitMoments):
            logits = logits.mean
        self._metrics.update(logits.detach().float(), labels)
        if self.method is not None:
            self._kept.append((logits.detach().float().cpu(), labels.cpu()))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics."""
        if trainer.sanity_checking:
            return
        found = self._metrics.compute()  # of all processes
        pl_module.log_dict({f"{self.prefix}{name}": found[name] for name in headline() if name in found})

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Fit the calibrator, outside of training."""
        if not trainer.sanity_checking and trainer.state.fn == "validate":
            self._fit(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Fit the calibrator to the last validation epoch."""
        self._fit(trainer)

    def _fit(self, trainer: Any) -> None:
        if self.method is None:
            return
        logits, labels = _of_all_processes(self._kept)
        self._kept.clear()
        if not len(labels):
            raise ValueError(
                "there was no validation epoch to fit a calibrator to; give `fit` validation data, or `Calibrate(method=None)`"
            )
        kind: Any = None if self.method == "auto" else posthoc.by_name(self.method)
        self.calibrator = kind.fit(logits, labels) if kind else posthoc.best(logits, labels).calibrator
        if self.path is not None and trainer.is_global_zero:
            self.calibrator.save(self.path)


def _read(outputs: Any, _: Any) -> tuple[Any, Tensor]:
    if isinstance(outputs, Mapping) and {"logits", "labels"} <= set(outputs):
        return outputs["logits"], outputs["labels"]
    raise ValueError(
        f"`validation_step` returned {_kind(outputs)}; return a dict with `logits` and `labels`, or pass "
        "`Calibrate(read=lambda outputs, batch: (logits, labels))`"
    )


def _kind(outputs: Any) -> str:
    if isinstance(outputs, Mapping):
        return f"a dict of {', '.join(map(str, outputs)) or 'nothing'}"
    return "nothing" if outputs is None else f"a {type(outputs).__name__}"


def _of_all_processes(kept: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Logits and labels of all processes, in order of rank; the same on each."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        parts: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(parts, kept)
        kept = [batch for part in parts for batch in part]
    if not kept:
        return torch.empty(0, 2), torch.empty(0, dtype=torch.long)
    logits, labels = zip(*kept, strict=True)
    return torch.cat(logits), torch.cat(labels)
