"""The state of a monitor: a small file that batches are added to and machines can merge."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from macc.io.json import read_json
from macc.io.writing import write_whole
from macc.metrics.correctness import claimed
from macc.metrics.inputs import Array, predictions, score_rows
from macc.monitor.betting import Alarm, Evidence, interval_of_mean
from macc.monitor.times import moment, seconds
from macc.monitor.windows import Window
from macc.words import documented, listed, quoted, shown

Floats: TypeAlias = npt.NDArray[np.float64]

_FORMAT = 1
_LARGEST_FILE = 2**28
MISSING = -1
"""What stands for a label that is not there yet."""


@dataclass(frozen=True)
class Settings:
    """What all rows of a monitor share; ``low`` and ``high`` limit accuracy minus confidence."""

    num_classes: int
    classes: tuple[str, ...] | None = None
    model: str | None = None
    window: float = 86400.0
    alpha: float = 0.01
    tolerance: float = 0.01
    baseline: str | None = None
    """What tells the validation set from others, where there is one."""
    low: float = -0.01
    high: float = 0.01
    streams: int = 1

    @property
    def limit(self) -> float:
        """The wealth that raises the alarm; a baseline's limits take half of alpha."""
        return (1 if self.baseline is None else 2) / self.alpha

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(
                f"alpha must lie between 0 and 1, got {self.alpha}; 0.01 is one false alarm in 100 lives"
            )
        if not self.window > 0:
            raise ValueError(f"the window must be longer than 0, got {self.window} seconds")
        if self.streams < 1:
            raise ValueError(f"there must be at least one stream, got {self.streams}")
        Evidence(self.low, self.high)


@dataclass
class Stream:
    """The rows of one machine."""

    evidence: Evidence
    batches: dict[str, str] = field(default_factory=dict)
    """The ids of the batches that were counted, and what distinguishes their contents."""
    windows: dict[float, Window] = field(default_factory=dict)
    last_time: float = -math.inf
    alarm: Alarm | None = None

    def to_dict(self) -> dict[str, Any]:
        """The stream as what JSON can hold."""
        return {
            "batches": self.batches,
            "last_time": None if math.isinf(self.last_time) else self.last_time,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "evidence": self.evidence.to_dict(),
            "windows": {repr(start): window.to_dict() for start, window in sorted(self.windows.items())},
        }

    @classmethod
    def from_dict(cls, content: Any, settings: Settings) -> "Stream":
        """The stream that :meth:`to_dict` described."""
        if not isinstance(content, dict) or not isinstance(content.get("batches"), dict):
            raise ValueError("a stream must list its batches")
        windows = content.get("windows")
        if not isinstance(windows, dict):
            raise ValueError("a stream must have windows")
        found = cls(
            Evidence.from_dict(content.get("evidence"), settings.low, settings.high),
            {str(name): str(mark) for name, mark in content["batches"].items()},
            {float(start): Window.from_dict(window) for start, window in windows.items()},
        )
        last = content.get("last_time")
        found.last_time = -math.inf if last is None else float(last)
        alarm = content.get("alarm")
        found.alarm = None if alarm is None else Alarm(**alarm)
        return found


class Monitor:
    """Confidence, accuracy and calibration over time, and an alarm; see
    :mod:`macc.monitor.betting`.

    Args:
        num_classes: Number of classes K.
        classes: Their names.
        model: What the model is called; states of other models are refused.
        window: How long a window of time is, in seconds or as ``"1d"``.
        alpha: The probability of a false alarm over the whole life.
        tolerance: By how much confidence may be wrong on average without an alarm; 0.01 by default,
            or 0 with a baseline.
        baseline: Correctness minus confidence ``(N,)`` of a validation set: the alarm is then
            raised where the mean is another one than there. Half of alpha is spent on what the
            validation set leaves open.
        streams: How many machines have states that are to be merged.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.dirichlet([0.3, 0.3, 0.3], 4000)
        >>> labels = (probs.cumsum(1) < rng.random((4000, 1))).sum(1)
        >>> labels[3000:] = rng.integers(0, 3, 1000)  # something breaks
        >>> monitor = Monitor(3, window="1h")
        >>> monitor.update(probs, labels, np.arange(4000.0), batch="monday")
        >>> monitor.alarm.direction, monitor.alarm.row, monitor.alarm.change_row
        ('less often right than it says', 3041, 3002)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        classes: "list[str] | None" = None,
        model: str | None = None,
        window: float | str = "1d",
        alpha: float = 0.01,
        tolerance: float | None = None,
        baseline: Floats | None = None,
        streams: int = 1,
    ):
        wide = tolerance if tolerance is not None else 0.01 if baseline is None else 0.0
        if not 0 <= wide < 1:
            raise ValueError(f"tolerance must be at least 0 and below 1, got {wide}")
        low, high, mark = 0.0, 0.0, None
        if baseline is not None:
            known = np.ascontiguousarray(baseline, dtype=np.float64)
            low, high = interval_of_mean(known, alpha / 2)
            mark = sha256(known.tobytes()).hexdigest()[:16]
        self.settings = Settings(
            num_classes,
            None if classes is None else tuple(classes),
            model,
            seconds(window) if isinstance(window, str) else float(window),
            alpha,
            wide,
            mark,
            max(-0.999, low - wide),
            min(0.999, high + wide),
            streams,
        )
        self.streams: dict[str, Stream] = {}

    @documented
    def update(
        self,
        probs: Array,
        labels: Array,
        times: Array,
        *,
        batch: str,
        mark: str = "",
        stream: str = "main",
        late: bool = False,
        from_logits: bool = False,
        normalise: bool = False,
        answers: bool = False,
    ) -> None:
        """Count a batch of rows, in the order of their times.

        Args:
            labels: Class indices ``(N,)``, or -1 where the label is not there yet.
            times: When the rows happened ``(N,)``, in seconds since 1970.
            batch: The id of the batch. One that was counted before is refused.
            mark: What tells the content of the batch from others, such as a checksum.
            stream: The machine it comes from.
            late: The rows were counted before without labels, and now have them.
            answers: ``probs`` is the confidence ``(N,)`` of answers, and ``labels`` says which were
                right.
        """
        adding = self.begin(batch, mark=mark, stream=stream, late=late)
        adding.rows(probs, labels, times, from_logits=from_logits, normalise=normalise, answers=answers)
        adding.finish()

    def begin(self, batch: str, *, mark: str = "", stream: str = "main", late: bool = False) -> "Adding":
        """Begin a batch whose rows come in parts; nothing counts before it is finished."""
        self.check_new(batch, mark, stream)
        return Adding(self, batch, mark, stream, late)

    def counted(self, batch: str, mark: str, stream: str) -> bool:
        """Whether this very batch was counted; two of one id, or one of two, are refused."""
        known = self.streams[stream].batches if stream in self.streams else {}
        if batch in known:
            if known[batch] != mark:
                raise ValueError(
                    f"the batch {quoted(batch)} was counted before with another content; give it another id"
                )
            return True
        same = next((name for name, each in known.items() if mark and each == mark), None)
        if same is not None:
            raise ValueError(
                f"the batch {quoted(batch)} was counted before as {quoted(same)}; it is not counted twice"
            )
        return False

    def check_new(self, batch: str, mark: str, stream: str) -> None:
        """Refuse a batch that was counted before, and more streams than were planned."""
        if self.counted(batch, mark, stream):
            raise ValueError(f"the batch {quoted(batch)} was counted before")
        if stream not in self.streams and len(self.streams) >= self.settings.streams:
            raise ValueError(
                f"the monitor was made for {self.settings.streams} stream(s), {listed(list(self.streams))}, and "
                f"{quoted(stream)} is another one; make it with more streams"
            )

    @property
    def limit(self) -> float:
        """The logarithm of the wealth of one stream at which the alarm is raised."""
        return math.log(self.settings.streams * self.settings.limit)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the wealth; the alarm is raised at ``log(settings.limit)``."""
        if not self.streams:
            return 0.0
        each = [stream.evidence.log_wealth() for stream in self.streams.values()]
        return float(np.logaddexp.reduce(each) - math.log(self.settings.streams))

    @property
    def alarm(self) -> Alarm | None:
        """The alarm that was raised first; once raised it stays."""
        raised = [stream.alarm for stream in self.streams.values() if stream.alarm is not None]
        if raised:
            return min(raised, key=lambda alarm: alarm.time)
        if self.log_evidence < math.log(self.settings.limit):
            return None
        # No stream alone, but all of them together: what the richest one says.
        richest = max(self.streams.values(), key=lambda stream: stream.evidence.log_wealth())
        return richest.evidence.now(richest.last_time)

    def windows(self) -> dict[float, Window]:
        """All windows by the time they begin, those of all streams together."""
        found: dict[float, Window] = {}
        for stream in self.streams.values():
            for start, window in stream.windows.items():
                found.setdefault(start, Window()).add(window)
        return dict(sorted(found.items()))

    def total(self) -> Window:
        """The whole life as one window."""
        whole = Window()
        for window in self.windows().values():
            whole.add(window)
        return whole

    def merge(self, other: "Monitor") -> None:
        """Take over the streams of another state of the same monitor; what both have counts once.

        Of a stream that both have, one must go on where the other ended.
        """
        if self.settings != other.settings:
            name = next(
                item.name
                for item in fields(Settings)
                if getattr(self.settings, item.name) != getattr(other.settings, item.name)
            )
            raise ValueError(
                f"these are states of other monitors: {name} is {shown(getattr(self.settings, name), 60)} in one and "
                f"{shown(getattr(other.settings, name), 60)} in the other; make all of them anew with the same settings"
            )
        merged = dict(self.streams)
        for name, theirs in other.streams.items():
            mine = merged.get(name)
            if mine is None or _continues(theirs.batches, mine.batches):
                merged[name] = theirs
            elif not _continues(mine.batches, theirs.batches):
                raise ValueError(
                    f"both states have batches of the stream {quoted(name)} that the other has not; give each machine a "
                    "stream of its own"
                )
        if len(merged) > self.settings.streams:
            raise ValueError(
                f"together they have {len(merged)} streams, and the monitor was made for {self.settings.streams}"
            )
        self.streams = merged

    def __str__(self) -> str:
        from macc.monitor.report import summary  # reports are made of monitors and know them

        return summary(self)

    def _repr_html_(self) -> str:
        from macc.monitor.report import as_html

        return as_html(self)

    def save(self, path: Path | str) -> None:
        """Write the state as JSON, whole or not at all."""
        with write_whole(Path(path)) as file:
            file.write(json.dumps(self.to_dict(), allow_nan=False).encode() + b"\n")

    def to_dict(self) -> dict[str, Any]:
        """The state as what JSON can hold."""
        return {
            "macc_monitor": _FORMAT,
            **asdict(self.settings),
            "by_stream": {name: stream.to_dict() for name, stream in self.streams.items()},
        }

    @classmethod
    def load(cls, path: Path | str) -> "Monitor":
        """Read a state; nothing in the file can run code."""
        path = Path(path)
        content = read_json(path, "the state of a monitor", largest=_LARGEST_FILE)
        try:
            return cls._from_dict(content)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{shown(path)} is not the state of a monitor: {shown(error)}") from None

    @classmethod
    def _from_dict(cls, content: Any) -> "Monitor":
        if not isinstance(content, dict) or content.get("macc_monitor") != _FORMAT:
            raise ValueError(f"it does not say 'macc_monitor': {_FORMAT}")
        given: Mapping[str, Any] = content
        names = [item.name for item in fields(Settings)]
        missing = [name for name in (*names, "by_stream") if name not in given]
        if missing:
            raise ValueError(f"it lacks {missing[0]!r}")
        values = {name: given[name] for name in names}
        values["classes"] = None if values["classes"] is None else tuple(map(str, values["classes"]))
        if type(values["num_classes"]) is not int:
            raise ValueError(f"the number of classes cannot be {values['num_classes']!r}")
        found = cls.__new__(cls)
        found.settings = Settings(**values)
        found.streams = {
            str(name): Stream.from_dict(each, found.settings) for name, each in given["by_stream"].items()
        }
        return found


class Adding:
    """A batch that is being read; the monitor changes when it is finished, and not before."""

    def __init__(self, monitor: Monitor, batch: str, mark: str, stream: str, late: bool):
        self.monitor, self.batch, self.mark, self.name, self.late = monitor, batch, mark, stream, late
        settings = monitor.settings
        # A copy: what is read of a batch that turns out to be bad must leave nothing behind.
        known = monitor.streams.get(stream)
        self.stream = (
            Stream(Evidence(settings.low, settings.high))
            if known is None
            else Stream.from_dict(known.to_dict(), settings)
        )
        self.previous = -math.inf if late else self.stream.last_time

    def rows(
        self,
        probs: Array,
        labels: Array,
        times: Array,
        *,
        from_logits: bool = False,
        normalise: bool = False,
        answers: bool = False,
    ) -> None:
        """Count some rows; see :meth:`Monitor.update`."""
        when, truth = np.asarray(times, dtype=np.float64), np.asarray(labels)
        if when.shape != truth.shape or when.ndim != 1:
            raise ValueError(f"labels have shape {truth.shape} and times {when.shape}; they must pair up")
        self._check_times(when)
        scores = score_rows(probs, from_logits=from_logits)
        if scores.shape[1] != self.monitor.settings.num_classes:
            raise ValueError(
                f"there are {scores.shape[1]} classes, and the monitor is of a model with "
                f"{self.monitor.settings.num_classes}"
            )
        known = truth != MISSING
        given = predictions(scores, np.where(known, truth, 0), from_logits=from_logits, normalise=normalise)
        confidence, correct = (part.numpy() for part in claimed(given, answers=answers))
        starts = np.floor(when / self.monitor.settings.window) * self.monitor.settings.window
        edges = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        for begin, end in pairwise(edges):
            window = self.stream.windows.setdefault(float(starts[begin]), Window())
            part, kept = slice(begin, end), known[begin:end]
            if not self.late:
                window.see(confidence[part])
            window.learn(confidence[part][kept], correct[part][kept])
            if window.labelled > window.rows:
                raise ValueError(
                    f"the window from {moment(float(starts[begin]))} on has more late labels than rows; late labels are of "
                    "rows that were counted before"
                )
        alarm = self.stream.evidence.update(
            (correct - confidence)[known], when[known], limit=self.monitor.limit
        )
        self.stream.alarm = self.stream.alarm or alarm
        self.stream.last_time = max(self.stream.last_time, float(when[-1]))

    def finish(self) -> None:
        """Make the batch count."""
        self.stream.batches[self.batch] = self.mark
        self.monitor.streams[self.name] = self.stream

    def _check_times(self, when: Floats) -> None:
        if not np.isfinite(when).all():
            raise ValueError("times must be finite numbers, in seconds since 1970")
        before = np.concatenate([[self.previous], when[:-1]])
        wrong = np.flatnonzero(when < before)
        if len(wrong):
            at = int(wrong[0])
            raise OrderError(at, float(when[at]), float(before[at]))
        self.previous = float(when[-1])


class OrderError(ValueError):
    """A row that happened before the one above it."""

    def __init__(self, at: int, time: float, before: float):
        super().__init__(
            f"the time {moment(time)} is before {moment(before)}, which was counted already; sort rows by their times, and "
            "give labels that come late as a late batch"
        )
        self.at = at


def _continues(longer: Mapping[str, str], shorter: Mapping[str, str]) -> bool:
    return list(longer.items())[: len(shorter)] == list(shorter.items())
