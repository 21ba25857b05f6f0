"""Groups, sets of classes and times on the page, as people ask for them on the command line."""

import csv
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import macc
from macc.cli import app
from macc.metrics import evaluate_groups
from macc.monitor import Monitor
from macc.posthoc import Sets
from macc.report import building, kinds, operation


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A log of two sites, one of which breaks in its second half, and what was fitted before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(building, "_FIGURES", {})  # those of every page take long, and are tested elsewhere
    monkeypatch.setattr(operation, "evaluate_groups", partial(evaluate_groups, resamples=100))
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(600, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    site = np.where(np.arange(600) % 2, "north", "south<b>")
    labels[(site == "south<b>") & (np.arange(600) > 200)] = 0
    with Path("log.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["when", "site", "cat", "dog", "owl", "label"])
        for i in range(600):
            label = ["cat", "dog", "owl"][labels[i]] if i < 590 else ""
            table.writerow([3600 * i, site[i], *map(repr, probs[i].tolist()), label])
    np.savez("old.npz", logits=logits, labels=labels)
    Sets.fit(logits, labels, from_logits=True).save("sets.json", classes=["cat", "dog", "owl"])
    watched = Monitor(3, window="7d")
    watched.update(probs, labels, 3600.0 * np.arange(600), batch="all")
    watched.save("south.state")
    return probs, labels, site


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def page(*arguments):
    done = report(*arguments)
    assert done.exit_code == 0, done.output + str(done.exception)
    return Path("report.html").read_text("utf-8").replace("\u00a0", " ").replace("<wbr>", "")


def section(text, key):
    return re.search(rf'<section id="{key}">(.*?)</section>', text, re.DOTALL)[1]


@pytest.mark.filterwarnings("ignore:log.csv. 10 of 600 samples have no label")
def test_a_section_for_groups_sets_and_time(folder):
    probs, labels, site = folder
    text = page(
        "log.csv", "--by", "site", "--time", "when", "--sets", "sets.json", "--monitor", "south.state"
    )

    groups = evaluate_groups(probs[:590], labels[:590], site[:590], resamples=100)
    of_groups = section(text, "groups")
    assert groups.verdict() in of_groups
    assert groups.verdict() in section(text, "findings")
    # The worst group is first, and its name is shown and not obeyed.
    assert of_groups.index("south&lt;b&gt;</th>") < of_groups.index("north</th>")
    assert "south<b>" not in text
    worst = groups.groups["south<b>"]["ece"]
    assert f"{100 * worst.value:.1f} %" in of_groups
    assert f"chance {100 * worst.noise_floor:.1f} %" in of_groups
    assert "macc calibrate --fit VAL.csv --apply log.csv --by site --drop-missing --ignore when" in text

    seen = Sets.load("sets.json").measure(probs[:590], labels[:590], classes=["cat", "dog", "owl"])
    of_sets = section(text, "sets")
    assert f"{100 * seen.coverage:.1f} %" in of_sets
    assert f"{100 * seen.all.low:.1f} – {100 * seen.all.high:.1f}" in of_sets
    assert all(f">{row.name}</th>" in of_sets for row in seen.classes)
    assert seen.verdict().split(".")[0] in of_sets

    over_time = section(text, "time")
    assert (
        over_time.count("ALARM: the model is less often right than it says") == 2
    )  # of the log and of the state
    assert over_time.count("it seems to have begun at") == 2
    assert "1970-01-25" in over_time  # a day of the log
    assert over_time.count("<svg") == 2
    for key in ("groups", "sets", "time"):
        assert f'href="#{key}"' in text


def test_nothing_asked_nothing_shown(folder):
    text = page("old.npz")
    assert not re.search(r'id="(groups|sets|time)"', text)
    assert "Tests of perfect calibration, p-values: Spiegelhalter" in text


def test_states_alone_make_a_page(folder):
    text = page("--monitor", "south.state")
    assert "ALARM" in section(text, "findings")
    assert 'id="figures"' not in text


def test_groups_of_a_second_file(folder):
    Path("groups.csv").write_text("site\n" + "\n".join(map(str, folder[2])) + "\n")
    text = page("old.npz", "--by", "site", "--groups", "groups.csv")
    assert "old by site" in section(text, "groups")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["log.csv", "--by", "town"], "has no column 'town'"),
        (["old.npz", "--by", "site"], "old.npz has no column 'site'"),
        (["old.npz", "--groups", "log.csv"], "needs --by COLUMN"),
        (["old.npz", "--by", "site", "--groups", "short.csv"], "short.csv has 2 rows and old.npz has 600"),
        (["old.npz", "--time", "when"], "a log is a .csv or .parquet"),
        (["log.csv", "--ignore", "site", "--time", "hour"], "has no column 'hour'"),
        (["old.npz", "--sets", "south.state"], "south.state is not a file of sets"),
        (["old.npz", "--sets", "sets.json", "--sets", "sets.json"], "there are 2 --sets for 1 runs or files"),
        (["old.npz", "--monitor", "sets.json"], "sets.json is not the state of a monitor"),
        (["old.npz", "--monitor", "gone.state"], "gone.state"),
        ([], "give at least one run folder"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(folder, tmp_path, arguments, message):
    (tmp_path / "short.csv").write_text("site\na\nb\n")
    done = report(*arguments)
    assert isinstance(done.exception, ValueError), done.output
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "report.html").exists()


def test_answers_have_a_page_and_figures(folder, tmp_path):
    rng = np.random.default_rng(1)
    confidence = rng.beta(5, 2, 400)
    right = rng.random(400) < confidence**2
    for name, said in (("said", confidence), ("mended", confidence**2)):
        rows = [f"{c!r},{int(y)}" for c, y in zip(said.tolist(), right, strict=True)]
        Path(f"{name}.csv").write_text("\n".join(["confidence,correct", *rows]))

    text = page("said.csv", "mended.csv")
    found = macc.evaluate(confidence, right, answers=True)
    assert f"said: {found.verdict()}" in text
    assert "the model is over-confident" in found.verdict()
    assert f"mean confidence {100 * confidence.mean():.1f} %, accuracy {100 * right.mean():.1f} %" in text
    assert "mended is significantly better calibrated than said. Its ECE of the positive class is" in text
    wrong = np.sort(confidence[~right])
    assert f"<b>{100 * wrong[-1]:.1f} %</b> right" in text  # the most confident mistake
    assert f"12 of {len(wrong)} wrong answers, the most confident first." in text
    assert "Tests of perfect calibration, p-values" in text
    assert "<h4>Classes</h4>" not in text

    drawn = kinds.plot("confidence", [Path("said.csv")])
    legend = [each.get_text() for each in drawn.axes[0].get_legend().get_texts()]
    assert legend == [
        f"accuracy {100 * right.mean():.1f} %",
        f"mean confidence {100 * confidence.mean():.1f} %",
    ]
    drawn = kinds.plot("mistakes", [Path("said.csv")])
    assert f"{len(wrong)} wrong of 400" in drawn.axes[0].get_legend().get_texts()[0].get_text()
    ends = kinds.plot("risk-coverage", [Path("said.csv")]).axes[0].lines[0].get_ydata()
    assert ends[-1] == pytest.approx(100 * len(wrong) / 400)
    with pytest.raises(ValueError, match="accuracy needs a probability of every class"):
        kinds.plot("pareto", [Path("said.csv")])
    with pytest.raises(ValueError, match="said.csv has answers and old.npz classes; draw them apart"):
        kinds.plot("mistakes", [Path("said.csv"), Path("old.npz")])
