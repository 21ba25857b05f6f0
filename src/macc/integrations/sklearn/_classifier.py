"""A network that scikit-learn can train, search over and save."""

import copy
import threading
import warnings
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from macc import losses, metrics, models, posthoc
from macc.heads import Estimator, attach
from macc.integrations.sklearn._weights import rows_by_weight

Floats = npt.NDArray[np.float64]

# Fewer validation samples than this say neither when to stop nor how to calibrate.
_LEAST_VALIDATION = 10
_PREDICTED_ROWS = 8192
# Dropout draws from torch's global generator: two fits in one process would disturb each other.
_ONE_FIT_AT_A_TIME = threading.RLock()


class MACCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network for tables and embeddings whose confidence can be trusted.

    It trains with Adam on the CPU. A part of the samples is held out: it decides when to stop, by
    the refinement of the predictions (their negative log-likelihood after the best temperature),
    and it fits the calibrator. Ctrl-C ends the training, keeps the best epoch so far and warns.

    Weights of samples and classes decide how often a sample is drawn, in training and in the
    held-out part: a sample of weight 2 counts like two samples. Probabilities are then those of the
    weighted population.

    Args:
        loss: A criterion, or its text: ``"Focal(gamma=2) + MACC"``.
        hidden: Sizes of the hidden layers; ``()`` is a linear classifier, for embeddings.
        p: Dropout rate of the head; used where the loss needs the variance of the logits.
        samples: Number of dropout masks of the head.
        estimator: ``"sampled"`` or ``"analytic"``, see :func:`macc.attach`.
        standardise: Bring each feature to mean 0 and variance 1 first.
        learning_rate: Of Adam.
        weight_decay: Of AdamW.
        batch_size: Samples in a training step.
        max_iter: Most epochs.
        patience: Stop after this many epochs without better refinement.
        validation_fraction: Share of the samples that is held out; 0 trains for ``max_iter``
            epochs, without calibrator.
        calibrator: Name of a calibrator of :mod:`macc.posthoc`, ``"auto"`` to choose by
            cross-validation, or None.
        class_weight: ``"balanced"``, or a weight for each class.
        random_state: Seed, or a generator of numpy.

    Attributes:
        classes_: The labels of the classes.
        model_: The trained network, a ``torch.nn.Module`` in evaluation mode.
        calibrator_: What maps its logits to probabilities, or None.
        history_: One dict an epoch: ``loss`` and, with a held-out part, ``refinement``.
        n_iter_: How many epochs were trained.
        best_iter_: The epoch whose weights were kept, from 1.
        n_features_in_: Number of features.
        feature_names_in_: Their names, where ``X`` is a data frame.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = MACCClassifier(random_state=0).fit(X, y)
        >>> classifier.score(X, y) > 0.9
        True
    """

    def __init__(
        self,
        loss: str | nn.Module = "CrossEntropy + MACC",
        *,
        hidden: Sequence[int] = (128,),
        p: float = 0.2,
        samples: int = 10,
        estimator: Estimator = "sampled",
        standardise: bool = True,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        batch_size: int = 64,
        max_iter: int = 100,
        patience: int = 20,
        validation_fraction: float = 0.15,
        calibrator: str | None = "temperature",
        class_weight: str | dict[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.loss = loss
        self.hidden = hidden
        self.p = p
        self.samples = samples
        self.estimator = estimator
        self.standardise = standardise
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.calibrator = calibrator
        self.class_weight = class_weight
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MACCClassifier":
        """Train on features ``X`` of shape (N, D) and labels ``y`` of any type."""
        self._check_knobs()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]  # weight 0 is not there
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes, got {len(self.classes_)} class"
            )
        weight = weight * compute_sample_weight(self.class_weight, y)
        draw = check_random_state(self.random_state)
        with _ONE_FIT_AT_A_TIME, torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.randint(2**31))
            self._train(X, labels, weight, draw)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes, in the order of ``classes_``, (N, K)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        logits = _logits(self.model_, torch.from_numpy(np.require(X, requirements=["C", "W"])))
        probs = logits.softmax(1) if self.calibrator_ is None else self.calibrator_(logits)
        return np.asarray(probs.numpy())

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each row."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])

    def _check_knobs(self) -> None:
        """Refuse what would end in an error of torch, or after the training."""
        if not isinstance(self.loss, str | nn.Module):
            raise ValueError(f"`loss` must be a criterion or its text, got {self.loss!r}")
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Iterable):
            raise ValueError(
                f"`hidden` must have the size of each hidden layer, as in (128,), got {self.hidden!r}"
            )
        for name in ("batch_size", "max_iter", "patience"):
            _check_whole(name, getattr(self, name))
        for size in self.hidden:
            _check_whole("hidden", size)
        numbers = {
            # Not the next number after 0: where denormals are flushed, that equals 0.
            "learning_rate": (np.finfo(float).tiny, np.inf, "be a number above 0"),
            "weight_decay": (0, np.inf, "be a number of at least 0"),
            "validation_fraction": (0, 1, "lie in [0, 1)"),
        }
        for name, (least, end, limits) in numbers.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < end:
                raise ValueError(f"`{name}` must {limits}, got {value!r}")
        if self.calibrator not in (None, "auto"):
            posthoc.by_name(self.calibrator)

    def _train(self, X: Floats, labels: npt.NDArray[Any], weight: Floats, draw: Any) -> None:
        criterion = losses.parse(self.loss) if isinstance(self.loss, str) else copy.deepcopy(self.loss)
        if isinstance(criterion, losses.Task | losses.Criterion) and criterion.task.independent_labels:
            raise ValueError(
                f"`loss` {criterion} is for independent labels and this classifier has one class a sample; "
                "use CrossEntropy or Focal"
            )
        body = models.mlp(num_classes=len(self.classes_), in_channels=X.shape[1], hidden=tuple(self.hidden))
        if getattr(criterion, "needs_moments", False):
            body = attach(body, p=self.p, samples=self.samples, estimator=self.estimator)
        before = _Standardised(X) if self.standardise else nn.Identity()
        inputs, targets = before(torch.from_numpy(X)).float(), torch.from_numpy(labels)
        held = _held_out(labels, self.validation_fraction, draw)
        rows, counted = np.flatnonzero(~held), np.flatnonzero(held)
        counted = counted[rows_by_weight(weight[counted], draw)]
        val_inputs, val_targets = inputs[counted], targets[counted]
        optimiser = torch.optim.AdamW(
            body.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        self.history_: list[dict[str, float]] = []
        least, kept, self.best_iter_ = np.inf, {}, 0
        try:
            while len(self.history_) < self.max_iter and len(self.history_) - self.best_iter_ < self.patience:
                chosen = draw.permutation(rows[rows_by_weight(weight[rows], draw)])
                batches = torch.split(torch.from_numpy(chosen), self.batch_size)
                measured = {"loss": _epoch(body.train(), criterion, optimiser, inputs, targets, batches)}
                epoch = len(self.history_) + 1
                score = -float(epoch)  # without a held-out part the last epoch is the best
                if len(counted):
                    score = measured["refinement"] = metrics.refinement(
                        _logits(body.eval(), val_inputs), val_targets, from_logits=True
                    )
                if score < least:
                    least, kept, self.best_iter_ = score, copy.deepcopy(body.state_dict()), epoch
                self.history_.append(measured)
        except KeyboardInterrupt:
            if not kept:
                raise
            warnings.warn(
                f"training was interrupted after {len(self.history_)} of {self.max_iter} epochs; the weights of epoch "
                f"{self.best_iter_}, the best so far, are kept",
                stacklevel=3,
            )
        body.load_state_dict(kept)
        self.n_iter_ = len(self.history_)
        self.calibrator_ = self._calibrator(_logits(body.eval(), val_inputs), val_targets)
        # In float64 the probabilities of a row do not depend on the rows beside it.
        self.model_ = nn.Sequential(before, body).double().eval()

    def _calibrator(self, logits: Tensor, labels: Tensor) -> posthoc.Calibrator | None:
        if self.calibrator is None or not len(labels):
            return None
        logits, labels = _and_one_error(logits, labels)
        if self.calibrator == "auto":
            return posthoc.best(logits, labels).calibrator
        kind: Any = posthoc.by_name(self.calibrator)
        return cast("posthoc.Calibrator", kind.fit(logits, labels))


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}")


class _Standardised(nn.Module):
    """Each feature at mean 0 and variance 1, by the samples given here."""

    mean: Tensor
    scale: Tensor

    def __init__(self, samples: Floats) -> None:
        super().__init__()
        scale = samples.std(0)
        self.register_buffer("mean", torch.from_numpy(samples.mean(0)))
        self.register_buffer("scale", torch.from_numpy(np.where(scale > 0, scale, 1.0)))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.scale


def _held_out(
    labels: npt.NDArray[Any], fraction: float, draw: np.random.RandomState
) -> npt.NDArray[np.bool_]:
    """Which samples to hold out: this share of each class, none where they would be too few."""
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == label))
        held[rows[: min(round(fraction * len(rows)), len(rows) - 1)]] = True
    if fraction and held.sum() < _LEAST_VALIDATION:
        held[:] = False
        warnings.warn(
            f"{len(labels)} samples are too few to hold out a share of {fraction:g}: the training ends after `max_iter` "
            "epochs and the probabilities are not calibrated; `validation_fraction=0` says that this is meant",
            stacklevel=5,
        )
    return held


def _epoch(
    model: nn.Module,
    criterion: nn.Module,
    optimiser: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[Tensor],
) -> float:
    """One pass over the batches; the mean loss."""
    total, count = 0.0, 0
    for batch in batches:
        loss = criterion(model(inputs[batch]), targets[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total, count = total + float(loss.detach()) * len(batch), count + len(batch)
    return total / count


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(part) for part in torch.split(inputs, _PREDICTED_ROWS)])


def _and_one_error(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The samples, and one of typical confidence that is wrong.

    Few held-out samples may have no errors, and then ask for certainty. As with Laplace's rule of
    succession, the one error that is added says that n right answers do not make the next one
    certain.
    """
    top = logits.topk(2, dim=1)
    typical = (top.values[:, 0] - top.values[:, 1]).median(0).indices
    return torch.cat([logits, logits[typical][None]]), torch.cat([labels, top.indices[typical, 1:]])
