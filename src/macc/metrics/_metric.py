"""A metric is a value: its name, how it is written, which end is better, how it is measured."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from macc.metrics.inputs import predictions
from macc.tables import Unit
from macc.words import did_you_mean, documented

if TYPE_CHECKING:
    from macc.metrics.intervals import Sampled
    from macc.metrics.sums import Sums

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Metric(Generic[P]):
    """One metric; it is called as the function that was declared as it.

    The namespace :mod:`macc.metrics` is the registry. Whatever lists, prints or tests metrics goes
    through :func:`registry`, so a new one is one declaration and one import line.

    Args:
        function: Its value, from probabilities and labels.
        label: What people read.
        unit: How its values are written.
        better: Which end is good.
        sample: The metric with its resamples, from the draws of one set of predictions.
        streamed: Its value from the sums that are kept of a stream, if these are enough; ``sample``
            can then do with their draws too. None where the sums lack what it needs.
        of: What it needs beyond probabilities and labels, if anything.
        floored: Whether chance alone makes it positive, as it does calibration errors: it has a
            noise floor.
        prominence: 0 where even the narrowest table has it, 1 where every other one does, 2 where
            tables of a few metrics have it, 3 otherwise.
        all_classes: Whether its sample reads the probabilities of all classes, which are then kept
            from the one pass.
        independent: Whether its interval rests on every sample being independent, as pixels of an
            image are not.
        of_answers: Whether it can measure answers, of which a confidence is known and no
            probability of every class.
        of_labels: Whether it can measure each of several independent labels, which is one of two
            classes.
        part_of_above: Whether tables show it as a part of the metric above it.
        top_label: Whether it is about the predicted class alone, which two classes have beside the
            positive one.
        short: What headings of columns and axes call it, if not by its label.
    """

    function: Callable[P, float] = field(repr=False)
    label: str
    unit: Unit
    better: Literal["lower", "higher"]
    sample: "Callable[[Any], Sampled]" = field(repr=False)
    streamed: "Callable[[Sums], float | None] | None" = field(default=None, repr=False)
    of: Literal["any", "two classes", "certainty"] = "any"
    floored: bool = False
    prominence: Literal[0, 1, 2, 3] = 3
    all_classes: bool = False
    independent: bool = False
    of_answers: bool = False
    of_labels: bool = False
    part_of_above: bool = False
    top_label: bool = False
    short: str = ""

    def __post_init__(self) -> None:
        # What help, documentation and doctest look for in a function.
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            object.__setattr__(self, name, getattr(self.function, name))
        object.__setattr__(self, "__wrapped__", self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> float:
        """The value; see the function."""
        for name in kwargs.keys() - self._parameters.keys():
            kinds = {each.kind for each in self._parameters.values()}
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                options = list(self._parameters)[2:]
                raise TypeError(f"{self.name}() has no option {name!r}; {did_you_mean(name, options)}")
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.name

    @cached_property
    def _parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.function).parameters)

    @property
    def name(self) -> str:
        """The key in JSON files, histories and columns, and in ``macc check --max-NAME``."""
        return self.function.__name__

    @property
    def noun(self) -> str:
        """What it is called by itself, in headings of columns, on axes and in sentences."""
        if not self.part_of_above:
            return self.short or self.label
        names = list(registry())
        before = [registry()[name] for name in names[: names.index(self.name)]]
        whole = next(each for each in reversed(before) if not each.part_of_above)
        return f"{whole.noun}, {self.label}"

    @property
    def phrase(self) -> str:
        """What sentences call it.

        Example:
            >>> from macc import metrics
            >>> metrics.ece.phrase, metrics.positive_ece.phrase
            ('ECE', 'ECE of the positive class')
        """
        return self.noun.replace(", positive class", " of the positive class")

    @property
    def streams(self) -> bool:
        """Whether it can be computed from sums, without all samples in memory."""
        return self.streamed is not None

    @property
    def heading(self) -> str:
        """The noun with its unit, for columns and axes."""
        return f"{self.noun} {self.unit.symbol}".strip()

    def title(self, *, two_classes: bool = False) -> str:
        """What tables call it."""
        label = f"  {self.label}" if self.part_of_above else self.label
        return f"{label}, top label" if two_classes and self.top_label else label

    def value(self, probs: Any, labels: Any, **options: Any) -> float:
        """The value, with those of the options that this metric knows."""
        given = {key: value for key, value in options.items() if key in self._parameters}
        return self.function(probs, labels, **given)


def metric(
    label: str,
    unit: Unit,
    better: Literal["lower", "higher"],
    sample: "Callable[[Any], Sampled]",
    **more: Any,
) -> Callable[[Callable[P, float]], Metric[P]]:
    """Declare a function of probabilities and labels as a :class:`Metric`, whose arguments these
    are.

    Example:
        >>> from macc import metrics
        >>> metrics.ece
        Metric(label='ECE', unit=Unit(symbol='%', scale=100, digits=2), better='lower', of='any', ...)
    """

    def declare(function: Callable[P, float]) -> Metric[P]:
        return Metric(reads_inputs(function), label, unit, better, sample, **more)

    return declare


def reads_inputs(function: F) -> F:
    """Show the options of :func:`predictions` in the signature and the docstring of a function that
    passes them on as :class:`ReadAs`.

    Example:
        >>> from macc import metrics
        >>> list(inspect.signature(metrics.aurc).parameters)
        ['probs', 'labels', 'from_logits', 'normalise', 'weights']
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(own) < len(signature.parameters):
        read = inspect.signature(predictions).parameters.values()
        options = [each for each in read if each.kind is each.KEYWORD_ONLY]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *options])
    return documented(function)


def registry() -> dict[str, Metric[Any]]:
    """Every metric by name, in the order of printed tables and of the namespace's imports.

    Example:
        >>> list(registry())[:3]
        ['accuracy', 'nll', 'refinement']
    """
    from macc import metrics

    return {value.name: value for value in vars(metrics).values() if isinstance(value, Metric)}


def headline() -> dict[str, Metric[Any]]:
    """The metrics that every table has and every history keeps.

    Example:
        >>> list(headline())
        ['accuracy', 'nll', 'refinement', 'ece', 'sce']
    """
    return {name: each for name, each in registry().items() if each.prominence <= 1 and each.of == "any"}


def headline_errors() -> dict[str, Metric[Any]]:
    """The headline metrics that are calibration errors.

    Example:
        >>> list(headline_errors())
        ['ece', 'sce']
    """
    return {name: each for name, each in headline().items() if each.floored}


def headline_error(measured: Collection[str]) -> str:
    """The calibration error that verdicts are about, or the first metric where none was measured.

    Of two classes it is the error of the positive one: the errors of both cancel in the top label.

    Args:
        measured: Names of metrics.

    Example:
        >>> headline_error(["accuracy", "ece", "sce"]), headline_error(["ece", "positive_ece"])
        ('ece', 'positive_ece')
    """
    errors = [
        each for name, each in registry().items() if name in measured and each.floored and not each.prominence
    ]
    errors.sort(key=lambda each: each.of != "two classes")
    return errors[0].name if errors else next(iter(measured))


def metrics_of(num_classes: int, *, certainty: bool = False) -> dict[str, Metric[Any]]:
    """The metrics that predictions of so many classes have.

    Args:
        num_classes: Number of classes.
        certainty: Whether the certainty of the predictions is known.
    """
    there = (
        {"any"} | ({"two classes"} if num_classes == 2 else set()) | ({"certainty"} if certainty else set())
    )
    return {name: metric for name, metric in registry().items() if metric.of in there}
