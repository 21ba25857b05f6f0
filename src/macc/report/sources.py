"""What figures and pages are made of: runs and prediction files, each with its own name."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from macc.data import Splits, known
from macc.heads import LogitMoments
from macc.io.arrays import read_npz
from macc.predictions import Loaded, groups_of, open_source
from macc.training.building import splits_for
from macc.training.recipe import Recipe, criterion_of
from macc.training.runs import Run, open_run
from macc.words import shown

NOT_SHIFTS = ("epochs", "val")


@dataclass(frozen=True)
class ReportSource:
    """A finished run, or a file with predictions.

    Args:
        path: The run folder or the file.
        name: What figures and tables call it.
        run: The run, where it is one.
        reading: How to read a file, as arguments of ``open_source``; of a run only ``positive``
            counts.
    """

    path: Path
    name: str
    run: Run | None = field(default=None)
    reading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def positive(self) -> str | None:
        """The positive class of two, where one was chosen."""
        return self.reading.get("positive")

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of a run."""
        return None if self.run is None else self.run.recipe

    def predictions(self, split: str = "test") -> Loaded:
        """Scores and labels of a split; a file has one set, whatever it is called."""
        if self.run is None:
            return self._of_file
        logits, labels = self.run.predictions(split)
        return Loaded(logits.numpy(), labels.numpy(), True, None)

    @cached_property
    def _of_file(self) -> Loaded:
        return open_source(self.path, **self.reading).load()

    def pair(self, split: str = "test") -> tuple[Any, Any]:
        """Probabilities and labels."""
        found = self.predictions(split)
        return found.probs(), found.labels

    def groups(self, columns: Sequence[str], second: Path | None, loaded: Loaded) -> list[str]:
        """The group of each sample that was loaded, from columns of the file or of a second one."""
        if self.run is not None:
            return groups_of(self.path, loaded, columns, second, len(loaded.labels))
        source = open_source(self.path, **self.reading)
        return groups_of(self.path, loaded, columns, second, source.num_rows)

    def file(self, split: str = "test") -> str:
        """The file with the predictions of a split, as it is written in a shell."""
        path = self.path if self.run is None else self.path / "predictions" / f"{split}.npz"
        return shlex.quote(str(path))

    def options(self, but: Sequence[str] = ()) -> str:
        """How to read the file, as shell options after a blank, without columns of groups.

        Args:
            but: Columns that another option names.
        """
        given = self.reading
        ignored = [name for name in (*given.get("ignore", ()), *given.get("carry", ())) if name not in but]
        words = [
            *(["--logits"] if given.get("logits") else []),
            *(["--drop-missing"] if given.get("drop_missing") else []),
        ]
        for option, text in (
            ("--label-column", given.get("label_column", "label")),
            ("--class-columns", ",".join(given.get("class_columns", ()))),
            ("--ignore", ",".join(ignored)),
            ("--labels-are", given.get("labels_are")),
            ("--positive", self.positive),
        ):
            if text and (option, text) != ("--label-column", "label"):
                words += [option, shlex.quote(text)]
        return "".join(f" {word}" for word in words)

    def validation(self) -> str:
        """The file to fit a repair to, as a shell reads it; only a run has a real one."""
        return f"VAL{self.path.suffix}" if self.run is None else self.file("val")

    def moments(self, split: str = "test") -> tuple[LogitMoments, torch.Tensor]:
        """Mean and variance of the logits under dropout, and labels."""
        path = self.path if self.run is None else self.run.path / "predictions" / f"{split}.npz"
        if path.suffix.lower() != ".npz":
            raise ValueError(f"{path} has no moments; an .npz with `mean`, `variance` and `labels` has")
        if self.run is not None:
            self.run.predictions(split)  # says what there is where this split is not
        found = read_npz(path)
        if not {"mean", "variance", "labels"} <= set(found):
            raise ValueError(f"{path} holds no moments of the logits; {self._cure(split)}")
        mean, variance, labels = found["mean"], found["variance"], found["labels"]
        shapes = mean.ndim == 2 and mean.shape == variance.shape and labels.shape == mean.shape[:1]
        if not shapes or mean.dtype.kind != "f" or variance.dtype.kind != "f":
            raise ValueError(
                f"{path}: mean and variance must be numbers (N, K) for N labels, got {mean.shape} {mean.dtype}, "
                f"{variance.shape} {variance.dtype} and {len(labels)} labels"
            )
        if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance >= 0).all()):
            raise ValueError(f"{path}: mean and variance must be finite, and variances at least 0")
        return LogitMoments(torch.from_numpy(mean), torch.from_numpy(variance)), torch.from_numpy(labels)

    def _cure(self, split: str) -> str:
        if self.run is None:
            return "write `mean` and `variance` into it, as `macc predict --moments` does"
        where = split.partition("/")[0]
        data = "" if where in ("test", "val") else f" --on {where}"
        return f"make them with `macc predict {self.path}{data} --moments`"

    def epochs(self, split: str = "test") -> list[tuple[int, Loaded]]:
        """The predictions after every epoch."""
        if self.run is None:
            raise ValueError(
                f"{shown(self.path)} is a file of predictions and has no epochs; give a run folder"
            )
        folder = self.run.path / "predictions" / "epochs"
        found = {
            int(path.stem.removeprefix(f"{split}-")): path
            for path in folder.glob(f"{split}-*.npz")
            if path.stem.removeprefix(f"{split}-").isdigit()
        }
        if not found:
            raise ValueError(
                f"{self.path} has no predictions after every epoch; train it with "
                f"--set 'epoch_predictions=[\"{split}\"]'"
            )
        return [(epoch, open_source(found[epoch]).load()) for epoch in sorted(found)]

    def shifts(self) -> dict[str, dict[str, dict[int, str]]]:
        """Names of predictions under shift: by data set, kind of shift and level."""
        if self.run is None:
            raise ValueError(
                f"{shown(self.path)} is a file of predictions; shifted test sets lie in run folders"
            )
        folder = self.run.path / "predictions"
        found: dict[str, dict[str, dict[int, str]]] = {}
        for path in sorted(folder.glob("*/*.npz")):
            match = re.fullmatch(r"(.+)-(\d+)", path.stem)
            if match and path.parent.name not in NOT_SHIFTS:
                levels = found.setdefault(path.parent.name, {}).setdefault(match[1], {})
                levels[int(match[2])] = f"{path.parent.name}/{path.stem}"
        if not found:
            raise ValueError(f"{self.path} has no predictions under levels of shift; {self._shift_cure()}")
        return found

    def _shift_cure(self) -> str:
        name = "" if self.recipe is None else self.recipe.dataset
        sets = [
            each
            for each, found in known().items()
            if found.levels and each in (name, f"{name}_c", f"{name}_c_regen")
        ]
        if sets:
            return "make them with " + " or ".join(f"`macc predict {self.path} --on {each}`" for each in sets)
        return (
            f"no set of `macc data list` has {name or 'its data'} at levels of shift, so write shifted test samples into a "
            f"file of your own, as splits called noise-1, noise-2 and so on: `macc predict {self.path} --on arrays:FILE`"
        )

    def history(self) -> list[dict[str, Any]]:
        """One row an epoch."""
        if self.run is None:
            raise ValueError(
                f"{shown(self.path)} is a file of predictions and was not trained here; give a run folder"
            )
        return self.run.history

    def data(self, root: str | PathLike[str] | None = None) -> Splits:
        """The data a run was trained on, for class names and images; others are an error."""
        if self.run is None or self.recipe is None:
            raise ValueError(f"{shown(self.path)} is a file of predictions and does not say of which data")
        splits = splits_for(self.recipe, None, root, verify=self.run.environment.get("data_verified", True))
        if self.run.environment.get("data_sha256") != splits.digest():
            raise ValueError(
                f"{self.recipe.dataset} is not what {self.path} was trained on: its hash differs"
            )
        return splits


def open_sources(
    paths: Sequence[str | PathLike[str]], reading: Mapping[str, Any] | None = None
) -> list[ReportSource]:
    """Run folders and prediction files, under names that differ.

    Args:
        paths: The folders and files.
        reading: How to read files, as arguments of ``open_source``; ``labels`` are those of every
            ``.npy``.

    Example:
        >>> open_sources(["nothing.npz"])
        Traceback (most recent call last):
        ValueError: nothing.npz does not exist; give run folders or prediction files (.npz or .csv)
    """
    options: dict[str, Any] = {"answers": True, **(reading or {})}
    labels, carry = options.pop("labels", None), options.pop("carry", ())
    files = [Path(each) for each in paths if Path(each).is_file()]
    found = []
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"{path} does not exist; give run folders or prediction files (.npz or .csv)")
        if path.is_dir():
            run = open_run(path)
            found.append(ReportSource(path, criterion_of(run.recipe.loss).label, run, options))
        else:
            own = {"labels": labels} if path.suffix.lower() == ".npy" else {}
            own |= {"carry": carry} if path.suffix.lower() in (".csv", ".parquet") else {}
            source = ReportSource(path, shown(path.stem, 60), None, options | own | {"beside": files})
            source.predictions()
            found.append(source)
    return name_apart(found)


def name_apart(sources: Sequence[ReportSource]) -> list[ReportSource]:
    """Give sources of one name what distinguishes them: data, model, …, at last the folder."""
    named = list(sources)
    for describe in (_data, _model, _loss, _head, _seed, _folder, _number(sources)):
        groups: dict[str, list[int]] = {}
        for index, source in enumerate(named):
            groups.setdefault(source.name, []).append(index)
        for name, members in groups.items():
            words = [describe(named[index]) for index in members]
            if len(members) > 1 and len(set(words)) > 1:
                for index, word in zip(members, words, strict=True):
                    label = "" if describe is not _loss or not word else criterion_of(word).label
                    shown = name.replace(label, word, 1) if label in name and label else f"{name}, {word}"
                    named[index] = replace(named[index], name=shown if word else name)
    return named


def _data(source: ReportSource) -> str:
    return "" if source.recipe is None else source.recipe.dataset


def _model(source: ReportSource) -> str:
    return "" if source.recipe is None else source.recipe.model


def _loss(source: ReportSource) -> str:
    return "" if source.recipe is None else source.recipe.loss


def _head(source: ReportSource) -> str:
    head = None if source.recipe is None else source.recipe.head
    if head is None or isinstance(head, str):
        return "no dropout" if head == "none" else ""
    return f"p {head.p:g}" + ("" if head.samples == 10 else f", {head.samples} masks")


def _seed(source: ReportSource) -> str:
    return "" if source.recipe is None else f"seed {source.recipe.seed}"


def _folder(source: ReportSource) -> str:
    return shown(source.path.name) if source.run is None else source.path.name.rpartition("-")[2]


def _number(sources: Sequence[ReportSource]) -> Any:
    places = {id(source.path): str(index + 1) for index, source in enumerate(sources)}
    return lambda source: places[id(source.path)]


def same_labels(sources: Sequence[ReportSource], split: str) -> None:
    """Refuse to set models beside each other that were tested on other samples."""
    first, *others = sources
    labels = first.predictions(split).labels
    for other in others:
        own = other.predictions(split).labels
        if len(own) != len(labels) or not np.array_equal(own, labels):
            raise ValueError(
                f"{first.path} and {other.path} were not tested on the same samples in the same order; "
                "give runs on one data set"
            )


def each_shift(source: ReportSource) -> Iterator[tuple[str, int, str]]:
    """Data set, level and name of every shifted prediction of a run."""
    for dataset, kinds in source.shifts().items():
        for levels in kinds.values():
            for level, name in levels.items():
                yield dataset, level, name


def environment_rows(run: Run) -> dict[str, str]:
    """The environment of a run, flat."""
    found: dict[str, str] = {}
    for key, value in run.environment.items():
        if isinstance(value, dict):
            found |= {str(name): str(inner) for name, inner in value.items() if inner is not None}
        elif value is not None:
            found[key] = value if isinstance(value, str) else json.dumps(value)
    return found
