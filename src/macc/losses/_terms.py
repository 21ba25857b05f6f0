"""What losses are and how they are added up.

A criterion is one task term of weight 1 plus weighted penalties::

    Focal(gamma=3) + 10 * MACC()

``str(criterion)`` is its text form; :mod:`macc.losses._text` reads it back.
"""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn

from macc.heads import LogitMoments
from macc.losses._checks import Output, check_flag, check_labels, check_logits, check_number, check_targets
from macc.losses._dense import as_rows
from macc.words import documented


class _Summand:
    """``+`` for everything that can stand in a criterion."""

    def __add__(self, other: object) -> "Criterion":
        return add(self, other)

    def __radd__(self, other: object) -> "Criterion":
        return add(other, self)


class Term(_Summand, nn.Module, ABC):
    """A named loss with keyword-only knobs; subclasses give :meth:`measure`."""

    label: ClassVar[str]
    """The paper's name, for tables; the name of the class unless it says otherwise."""
    soft_targets: ClassVar[bool] = False
    """Whether the formula allows class probabilities as labels."""
    needs_variance: ClassVar[bool] = False
    """Whether the formula reads the variance of the logits, which an MC-dropout head gives."""
    independent_labels: ClassVar[bool] = False
    """Whether a task takes each logit as a label of its own, with a sigmoid, not a softmax."""
    shown: ClassVar[tuple[str, ...]] = ()
    """Knobs that are printed even at their default."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "label" not in vars(cls):
            cls.label = cls.__name__
        if cls.__doc__:
            documented(cls)

    @abstractmethod
    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """The term's bare value, a scalar batch mean: no weight, no warm-up."""

    def checked(self, output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean logits ``(N, K)`` in single precision at least, and labels as the term has them."""
        logits = check_logits(output.mean if isinstance(output, LogitMoments) else output)
        return logits, check_labels(labels, logits, soft=None if self.soft_targets else type(self).__name__)

    def checked_labels(self, output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean logits ``(N, K)`` of independent labels, and the labels as numbers like them."""
        logits = check_logits(output.mean if isinstance(output, LogitMoments) else output, classes=False)
        return logits, check_targets(labels, logits, soft=None if self.soft_targets else type(self).__name__)

    def __repr__(self) -> str:
        knobs = []
        for name, knob in inspect.signature(type(self)).parameters.items():
            own = getattr(self, name, knob.default)
            if name in self.shown or (own is not knob.default and own != knob.default):
                knobs.append(f"{name}={_literal(own)}")
        return type(self).__name__ + (f"({', '.join(knobs)})" if knobs else "")


class Task(Term):
    """A task loss: what the classifier is trained for.

    Reads the mean logits; weight 1 in a criterion. ``label``, ``task`` and ``parts`` make a task
    alone a complete criterion.

    Args:
        weight: A weight per class, ``(K,)``; the batch mean then counts each sample by the weight
            of its class, as ``nn.CrossEntropyLoss`` does for class indices.
    """

    weight: Tensor | None

    def __init__(self, *, weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", None if weight is None else class_weight("weight", weight))

    def forward(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> Tensor:
        """The task loss of a batch.

        Args:
            output: Logits ``(N, K)`` or :class:`macc.LogitMoments`; of dense prediction
                ``(N, K, H, W)``.
            labels: Class indices ``(N,)``, or probabilities ``(N, K)`` where the loss allows them;
                of dense prediction ``(N, H, W)`` or ``(N, K, H, W)``.
            ignore_index: The label of samples or pixels to leave out, often 255 or -100; of
                independent labels single ones are left out.
        """
        output, labels = self.rows(output, labels, ignore_index)
        return self.measure(output, labels)

    def rows(self, output: Output, labels: Tensor, ignore_index: int | None) -> tuple[Output, Tensor]:
        """Logits or moments and labels as rows, without what is to be ignored."""
        return as_rows(output, labels, ignore_index, independent=self.independent_labels)

    @property
    def task(self) -> "Task":
        """The task term, which is the loss itself."""
        return self

    def parts(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> dict[str, Tensor]:
        """The value of the one term, by name."""
        output, labels = self.rows(output, labels, ignore_index)
        return {type(self).__name__: self.measure(output, labels)}

    def measured(
        self, output: Output, labels: Tensor, *, ignore_index: int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and :meth:`parts`, from one computation."""
        values = self.parts(output, labels, ignore_index=ignore_index)
        return next(iter(values.values())), values

    @property
    def needs_moments(self) -> bool:
        """Whether the loss needs an MC-dropout head. A task reads the mean logits only."""
        return self.needs_variance

    def weighted_mean(self, values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Mean of ``(N,)`` values by the weights of their classes, or of their soft labels."""
        if self.weight is None:
            return values.mean()
        if len(self.weight) != num_classes:
            raise ValueError(
                f"`weight` must have one entry per class, got {len(self.weight)} for {num_classes} classes"
            )
        weight = self.weight.to(values.dtype)
        row_weight = weight[labels] if labels.ndim == 1 else (labels * weight).sum(dim=1)
        return (row_weight * values).sum() / row_weight.sum()

    def __mul__(self, weight: object) -> NoReturn:
        raise ValueError(f"a task loss has weight 1, got {weight} for {self}; scale the penalties instead")

    __rmul__ = __mul__


def class_weight(name: str, weight: Any, *, each: str = "class", least: int = 2) -> Tensor:
    try:
        values = torch.as_tensor(weight, dtype=torch.float32).detach().clone()
        good = values.ndim == 1 and len(values) >= least and bool(((values >= 0) & values.isfinite()).all())
    except (TypeError, ValueError, RuntimeError):
        good = False
    if not good:
        raise ValueError(f"`{name}` must be one finite, non-negative number per {each}, got {weight!r}")
    return values


class _OwnTask(Task):
    """A user's own module as the task term."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.label = type(module).__name__  # type: ignore[misc]
        own = getattr(module, "independent_labels", isinstance(module, nn.BCEWithLogitsLoss))
        self.independent_labels = own  # type: ignore[misc]

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        value = self.module(output.mean if isinstance(output, LogitMoments) else output, labels)
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"a task must return a scalar batch mean, {self.label} returned {shape}")
        return value

    def parts(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> dict[str, Tensor]:
        output, labels = self.rows(output, labels, ignore_index)
        return {self.label: self.measure(output, labels)}

    def rows(self, output: Output, labels: Tensor, ignore_index: int | None) -> tuple[Output, Tensor]:
        """As those of any task; single ones of independent labels are the module's own matter."""
        return as_rows(output, labels, ignore_index)

    def __repr__(self) -> str:
        return f"<{self.label}>"


class Penalty(Term):
    """An auxiliary term: scaled and added to a task, ``task + w * penalty``.

    Args:
        warmup: Number of training steps over which the term's share rises linearly from 0 to 1. A
            step is a call in train mode with gradients on, so that accumulating gradients over
            ``n`` batches takes ``n`` steps; :func:`count_steps` counts the steps of the optimiser
            instead. The counter is in the state dict of the criterion.
    """

    step: Tensor
    counter: object | None = None
    """Counts the steps of an optimiser (:func:`count_steps`); ``None`` if calls are counted."""

    def __init__(self, *, warmup: int = 0) -> None:
        super().__init__()
        if isinstance(warmup, bool) or not isinstance(warmup, int) or not 0 <= warmup <= 10**12:
            raise ValueError(f"`warmup` must be a whole number of steps, at least 0, got {warmup!r}")
        self.warmup = warmup
        if warmup:
            self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.counter = None  # a copy is not the one that is counted

    def forward(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> Tensor:
        """The penalty of a batch, times its share of the warm-up; see :meth:`Task.forward`."""
        output, labels = as_rows(output, labels, ignore_index)
        return self.faded(self.measure(output, labels))

    def measure_labels(self, output: Output, labels: Tensor) -> Tensor:
        """As :meth:`measure`, beside a task of independent labels, where there is such a form."""
        raise NotImplementedError

    def faded(self, value: Tensor) -> Tensor:
        """A value times its share of the warm-up; counts the call in training, if calls count."""
        if not self.warmup:
            return value
        share = (self.step / self.warmup).clamp(max=1)
        if self.counter is None and self.training and torch.is_grad_enabled():
            self.step.add_(1)
        return value * share.to(value.device)

    def __mul__(self, weight: float) -> "Weighted":
        return Weighted(weight, self)

    __rmul__ = __mul__


class BatchPenalty(Penalty):
    """A penalty made of batch statistics, which are those of the global batch under
    ``torch.distributed``.

    Args:
        warmup: As in :class:`Penalty`.
        sync: Whether to share the statistics across processes. Every process must then evaluate the
            penalty the same number of times.
    """

    def __init__(self, *, warmup: int = 0, sync: bool = True) -> None:
        super().__init__(warmup=warmup)
        self.sync = check_flag("sync", sync)


def count_steps(criterion: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Let the warm-up of penalties count the steps of an optimiser in place of calls in training.

    Use it where gradients are accumulated over several batches, or where the loss is computed more
    than once a step. Called again, the steps of the new optimiser are counted. A run that resumes
    must load the state of the criterion too: where the optimiser has state from earlier steps at
    its first step here and a warm-up stands at 0, a warning says so.

    Args:
        criterion: A criterion, or any module that holds one.
        optimizer: An optimiser of torch, as it was before accelerate wrapped it.

    Example:
        >>> import torch
        >>> from macc import losses
        >>> criterion = losses.CrossEntropy() + losses.MDCA(warmup=500)
        >>> weights = torch.zeros(4, 2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weights], lr=0.1)
        >>> losses.count_steps(criterion, optimizer)
        >>> for _ in range(3):  # three batches make one step
        ...     criterion(torch.ones(8, 4) @ weights, torch.arange(8) % 2).backward()
        >>> optimizer.step()
        >>> int(criterion.penalties[0].penalty.step)
        1
    """
    fading = [module for module in criterion.modules() if isinstance(module, Penalty) and module.warmup]
    counter = object()

    def warn_if_behind(*_: object) -> None:
        first.remove()
        behind = [penalty for penalty in fading if optimizer.state and int(penalty.step) == 0]
        if behind:
            warnings.warn(
                f"the optimiser has taken steps before and the warm-up of {behind[0]} starts at 0; to resume it, "
                "save and load `criterion.state_dict()` beside those of the model and the optimiser",
                UserWarning,
                stacklevel=2,
            )

    def count(*_: object) -> None:
        for penalty in fading:
            if penalty.counter is counter:
                penalty.step.add_(1)

    try:
        optimizer.register_step_post_hook(count)
        first = optimizer.register_step_pre_hook(warn_if_behind)
    except AttributeError:
        raise ValueError(
            f"`optimizer` must be an optimiser of torch, got {type(optimizer).__name__}; "
            "with accelerate, call `count_steps` before `prepare`"
        ) from None
    for penalty in fading:
        penalty.counter = counter


class Weighted(_Summand, nn.Module):
    """A penalty with its weight: ``10 * MACC()``."""

    def __init__(self, weight: float, penalty: Penalty, *, independent_labels: bool = False) -> None:
        super().__init__()
        self.weight = check_number("weight of a penalty", weight, low=0)
        self.penalty = penalty
        self.independent_labels = independent_labels

    def forward(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> Tensor:
        """The weight times the penalty."""
        output, labels = as_rows(output, labels, ignore_index, independent=self.independent_labels)
        return self.weight * self.penalty.faded(self.measure(output, labels))

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """The bare value of the penalty, in its form for classes or for independent labels."""
        measure = self.penalty.measure_labels if self.independent_labels else self.penalty.measure
        return measure(output, labels)

    def __repr__(self) -> str:
        return f"{self.penalty!r}" if self.weight == 1 else f"{_literal(self.weight)}*{self.penalty!r}"


class Criterion(_Summand, nn.Module):
    """One task term plus weighted penalties; made by ``+``.

    The task says what the logits are. Beside a task of independent labels, such as
    ``BinaryCrossEntropy``, a penalty takes its form for these, with sigmoids in place of the
    softmax, and one without such a form is refused.

    Example:
        >>> import torch
        >>> from macc import losses
        >>> criterion = losses.CrossEntropy() + 0.1 * losses.MbLS(margin=10)
        >>> criterion
        CrossEntropy + 0.1*MbLS(margin=10)
        >>> logits, labels = torch.tensor([[12.0, 0.0]]), torch.tensor([1])
        >>> criterion(logits, labels)
        tensor(12.1000)
        >>> criterion.parts(logits, labels)
        {'CrossEntropy': tensor(12.0000), 'MbLS': tensor(1.)}
    """

    def __init__(self, task: Task, *penalties: Weighted) -> None:
        super().__init__()
        self.task = task
        self.penalties = nn.ModuleList(_beside(task, penalty) for penalty in penalties)
        self._left_out_said = False

    def forward(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> Tensor:
        """The total loss of a batch.

        In evaluation (``criterion.eval()``, or gradients disabled) a penalty that needs a variance
        is left out where ``output`` is plain logits, with a warning the first time. In training
        that is an error.

        The arguments are those of :meth:`Task.forward`. Every term sees pixels as rows, a module of
        your own too.
        """
        output, labels = self.task.rows(output, labels, ignore_index)
        total = cast("Tensor", self.task(output, labels))
        for weighted in self._measurable(output):
            total = total + weighted(output, labels)
        return total

    def parts(self, output: Output, labels: Tensor, *, ignore_index: int | None = None) -> dict[str, Tensor]:
        """Each term's bare value by name, before weights and warm-up; for logging.

        Of plain logits in evaluation, a term that needs a variance is left out as in
        :meth:`forward`. It computes every term again. Under ``torch.distributed`` all processes
        must call it, because penalties made of batch statistics share them.
        """
        output, labels = self.task.rows(output, labels, ignore_index)
        values = self.task.parts(output, labels)
        for name, weighted in self._named_penalties(output, values):
            values[name] = weighted.measure(output, labels)
        return values

    def measured(
        self, output: Output, labels: Tensor, *, ignore_index: int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss of :meth:`forward`, and :meth:`parts`, from one computation."""
        output, labels = self.task.rows(output, labels, ignore_index)
        total, values = self.task.measured(output, labels)
        for name, weighted in self._named_penalties(output, values):
            values[name] = weighted.measure(output, labels)
            total = total + weighted.weight * weighted.penalty.faded(values[name])
        return total, values

    def _weighted(self) -> list["Weighted"]:
        return cast("list[Weighted]", list(self.penalties))

    def _measurable(self, output: Output) -> list["Weighted"]:
        """The penalties that count: in evaluation only those that find the variance they need."""
        evaluating = not (self.training and torch.is_grad_enabled())
        if not evaluating or not isinstance(output, Tensor):
            return self._weighted()
        left_out = [w.penalty.label for w in self._weighted() if w.penalty.needs_variance]
        if left_out and not self._left_out_said and not torch.compiler.is_compiling():
            self._left_out_said = True
            warnings.warn(
                f"{' and '.join(left_out)} is left out of the loss of plain logits, which a model gives in "
                "evaluation: they have no variance. Do not compare this value with the training loss; "
                "`criterion.task` is the task term alone",
                UserWarning,
                stacklevel=3,
            )
        return [w for w in self._weighted() if not w.penalty.needs_variance]

    def _named_penalties(self, output: Output, taken: Container[str]) -> Iterator[tuple[str, "Weighted"]]:
        """Each penalty that counts, by a name not among ``taken``, which may grow meanwhile."""
        for weighted in self._measurable(output):
            name = type(weighted.penalty).__name__
            if name in taken:
                name = repr(weighted.penalty)
            while name in taken:
                name += "'"
            yield name, weighted

    @property
    def needs_moments(self) -> bool:
        """Whether a term reads the variance of the logits, which an MC-dropout head gives."""
        return any(weighted.penalty.needs_variance for weighted in self._weighted())

    @property
    def label(self) -> str:
        """The paper's name for tables, for example ``FL+MACC``."""
        return "+".join([self.task.label, *(weighted.penalty.label for weighted in self._weighted())])

    def __repr__(self) -> str:
        return " + ".join(map(repr, [self.task, *self.penalties]))


def _beside(task: Task, weighted: Weighted) -> Weighted:
    """The penalty in the form that goes with the task; another criterion may hold another."""
    if task.independent_labels == weighted.independent_labels:
        return weighted
    penalty = weighted.penalty
    if task.independent_labels and type(penalty).measure_labels is Penalty.measure_labels:
        raise ValueError(
            f"{penalty} is defined for classes that exclude each other and {task} has independent labels; "
            "leave it out, or use a task such as CrossEntropy"
        )
    return Weighted(weighted.weight, penalty, independent_labels=task.independent_labels)


def _terms(operand: object) -> list[nn.Module]:
    if isinstance(operand, Criterion):
        return [operand.task, *operand.penalties]
    if isinstance(operand, Penalty):
        return [Weighted(1, operand)]
    if isinstance(operand, Task | Weighted):
        return [operand]
    if isinstance(operand, nn.Module):
        return [_OwnTask(operand)]
    return []


def add(left: object, right: object) -> "Criterion":
    if not _terms(left) or not _terms(right):
        return cast("Criterion", NotImplemented)  # Python then says which types it cannot add
    terms = [*_terms(left), *_terms(right)]
    tasks = [term for term in terms if isinstance(term, Task)]
    penalties = [term for term in terms if isinstance(term, Weighted)]
    if len(tasks) != 1:
        found = "no task loss" if not tasks else f"{len(tasks)} task losses"
        raise ValueError(
            f"a criterion is one task loss plus penalties, got {found} in {left} + {right}; "
            "write for example CrossEntropy() + 10*MACC()"
        )
    return Criterion(tasks[0], *penalties)


def _literal(value: Any) -> str:
    if isinstance(value, Tensor):
        numbers = value.float().cpu().numpy()  # numpy has no bfloat16
        return f"[{', '.join(np.format_float_positional(v, trim='-') for v in numbers)}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
