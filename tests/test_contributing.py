"""The table "Where do I add …?" of CONTRIBUTING is true: each part is added by exactly the file and
line it names.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import macc

SOURCE = Path(macc.__file__).parent
PAGE = SOURCE.parents[1] / "CONTRIBUTING.md"

# Of each row: files that are new, and lines at the end of files that are there.
ADDED = {
    "a loss": {
        "losses/_made_up.py": """
from macc.losses._terms import Task

class MadeUp(Task):
    "A constant of zero."

    label = "MU"

    def measure(self, output, labels):
        logits, labels = self.checked(output, labels)
        return 0 * logits.sum()
""",
        "losses/__init__.py": "from macc.losses._made_up import MadeUp as MadeUp",
    },
    "a metric": {
        "metrics/_scores.py": """
@metric("made-up score", PERCENT, "higher", lambda d: d.scores.accuracy)
def made_up(probs, labels, *, from_logits=False, normalise=False):
    "The accuracy under another name."
    return accuracy(probs, labels, from_logits=from_logits, normalise=normalise)
""",
        "metrics/__init__.py": "from macc.metrics._scores import made_up as made_up",
    },
    "a calibrator": {
        "posthoc/_made_up.py": """
from dataclasses import dataclass

from macc.posthoc._base import Calibrator, sample

@dataclass(frozen=True, eq=False)
class MadeUp(Calibrator):
    "Nothing is changed."

    @classmethod
    def fit(cls, logits, labels):
        return cls(sample(logits, labels).num_classes)

    def _log_probs(self, logits, *_):
        return logits.log_softmax(1)
""",
        "posthoc/__init__.py": "from macc.posthoc._made_up import MadeUp as MadeUp",
    },
    "a data set": {
        "data/made_up.py": """
from macc.data._datasets import dataset
from macc.data.digits import digits

@dataset(summary="digits under another name", licence="none")
def made_up(*, root=None, verify=True):
    return digits()
""",
        "data/__init__.py": "from macc.data.made_up import made_up as made_up",
    },
    "a corruption": {
        "data/corruptions/noise.py": """
MADE_UP = {32: (0.1,) * 5, 64: (0.1,) * 5, 224: (0.1,) * 5}

def made_up(x, shift, draws):
    return x + shift
""",
        "data/corruptions/_apply.py": ("    )\n    return {apply", "        (noise.made_up, noise.MADE_UP),"),
    },
    "an experiment": {
        "experiments/files/made_up.yaml": "datasets: digits\nmethods: [NLL, MADE]\nseeds: 1\n",
    },
    "a method of the paper": {
        "experiments/methods.yaml": "  MADE: CrossEntropy + 2*MDCA",
    },
    "a figure": {
        "report/figures/_made_up.py": """
from matplotlib.figure import Figure

def made_up(ax=None):
    ax = ax or Figure().subplots()
    ax.plot([0, 1])
    return ax.figure
""",
        "report/figures/__init__.py": "from macc.report.figures._made_up import made_up as made_up",
        "report/kinds.py": """
@kind("made-up", "a line")
def _made_up(wanted):
    return figures.made_up()
""",
    },
    "a model": {
        "models/made_up.py": """
from torch import nn

def made_up(*, num_classes, in_channels=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels, num_classes))
""",
        "models/__init__.py": "from macc.models.made_up import made_up as made_up",
    },
}

# Whether each is found, by the way in which users reach it.
FOUND = """
import json, sys
import numpy as np, torch
import macc
from macc import data, experiments, losses, metrics, models, posthoc
from macc.data import corruptions
from macc.report import kinds

folder = sys.argv[1]
probs, labels = np.tile([[0.9, 0.1], [0.2, 0.8]], (10, 1)), np.tile([0, 1], 10)
fitted = posthoc.MadeUp.fit(np.log(probs), labels)
fitted.save(folder + "/c.json")
np.savez(folder + "/p.npz", probs=probs, labels=labels)
image = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
print(json.dumps({
    "a loss": str(losses.parse("MadeUp + 2*MDCA")) == "MadeUp + 2*MDCA",
    "a metric": "made_up" in macc.evaluate(probs, labels, resamples=100).metrics,
    "a calibrator": type(posthoc.load(folder + "/c.json")).__name__ == "MadeUp",
    "a data set": "made_up" in data.known() and len(data.load("made_up").train) == 1295,
    "a corruption": "made_up" in corruptions.names() and bool((corruptions.corrupt(image, "made_up", 1) > image).all()),
    "an experiment": "made_up" in experiments.names() and len(experiments.load("made_up").methods) == 2,
    "a method of the paper": experiments.load("made_up").methods[1].loss == "CrossEntropy + 2*MDCA",
    "a figure": len(kinds.plot("made-up", [folder + "/p.npz"]).axes) == 1,
    "a model": models.build("made_up", num_classes=3, in_channels=4)(torch.zeros(2, 4)).shape == (2, 3),
}))
"""


def add(copy: Path, name: str, text: str | tuple[str, str]) -> None:
    """A new file, lines at the end of a file, or a line before a place in it."""
    path = copy / name
    before = path.read_text() if path.exists() else ""
    if isinstance(text, tuple):
        place, line = text
        assert before.count(place) == 1
        path.write_text(before.replace(place, f"{line}\n{place}"))
    else:
        path.write_text(f"{before}{text}\n")


def test_each_part_is_found_where_the_table_says_to_add_it(tmp_path):
    copy = tmp_path / "macc"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for files in ADDED.values():
        for name, text in files.items():
            add(copy, name, text)
    words = [sys.executable, "-c", FOUND, str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == dict.fromkeys(ADDED, True)


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents are not beside an installed package")
def test_every_row_of_the_table_is_tested_and_names_what_is_there():
    rows = re.findall(r"^\| (an? [^|]+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)

    assert {what for what, _ in rows} == set(ADDED)
    for what, places in rows:
        named = re.findall(r"`src/macc/([\w/.]+)`", places)
        assert named, what
        for path in named:
            assert (SOURCE / path).exists() or Path(path).stem.strip("_") == "name", f"{what}: {path}"
