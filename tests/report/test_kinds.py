"""``macc plot``: every kind draws what lies in run folders and files, or says what is missing and
how to make it.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.text import Text

from helpers.command import run
from helpers.report_runs import digits_runs, hostile_csv, plain_run
from helpers.stored import arrays
from macc import metrics, training
from macc.predictions import Loaded
from macc.report import kinds
from macc.report.sources import ReportSource, name_apart, open_sources
from macc.training.runs import Run

pytestmark = pytest.mark.xdist_group("report")


@pytest.mark.parametrize(
    ("kind", "form"), [*((kind, "svg") for kind in sorted(kinds.KINDS)), ("reliability", "png")]
)
def test_every_kind_is_written(kind, form, tmp_path):
    path = tmp_path / f"a.{form}"
    assert kinds.write(kind, digits_runs(), path) == path

    start = path.read_bytes()[:8]
    assert start == (b"\x89PNG\r\n\x1a\n" if form == "png" else b"<?xml ve")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_convergence_is_of_the_test_split_after_each_epoch():
    figure = kinds.plot("convergence", digits_runs())
    for ax, metric, unit in zip(figure.axes, ("ece", "sce"), (100, 1000), strict=True):
        assert len(ax.lines) == 2
        for line, path in zip(ax.lines, digits_runs(), strict=True):
            wanted = []
            for epoch in (1, 2):
                found = arrays(path / "predictions" / "epochs" / f"test-{epoch}.npz")
                wanted.append(
                    unit * getattr(metrics, metric)(found["logits"], found["labels"], from_logits=True)
                )
            assert line.get_ydata() == pytest.approx(wanted)


def test_severity_is_the_mean_over_kinds_of_shift():
    figure = kinds.plot("severity", digits_runs()[:1])
    run = training.open_run(digits_runs()[0])
    wanted = [100 * metrics.ece(*run.predictions("test"), from_logits=True)]
    for level in range(1, 6):
        cells = [run.predictions(f"digits/{shift}-{level}") for shift in ("noise", "rotation")]
        wanted.append(100 * sum(metrics.ece(*cell, from_logits=True) for cell in cells) / 2)

    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4, 5]
    assert line.get_ydata() == pytest.approx(wanted)


def test_the_gap_has_a_panel_in_and_one_out_of_domain():
    titles = [ax.get_title() for ax in kinds.plot("gap", digits_runs()).axes]

    assert titles == [
        f"{name}, {where}" for name in ("NLL", "NLL+MACC") for where in ("test", "digits under shift")
    ]


def test_training_has_a_panel_for_each_term():
    figure = kinds.plot("training", digits_runs())
    labels = [ax.get_ylabel() for ax in figure.axes]

    assert labels[:4] == ["loss", "CrossEntropy", "MACC", "u"]
    assert labels[4:9] == ["accuracy (%)", "NLL", "refinement", "ECE (%)", "SCE (1e-3)"]
    rows = training.open_run(digits_runs()[1]).history
    assert figure.axes[2].lines[0].get_ydata() == pytest.approx([row["train/MACC"] for row in rows])


def test_with_one_term_the_loss_is_that_term():
    rows = [{"epoch": 1, "train/loss": 1.0, "train/CrossEntropy": 1.0, "train/u": 0.1, "val/nll": 1.0}]
    figure = kinds.draw_training({"control": rows})

    assert [ax.get_ylabel() for ax in figure.axes][:3] == ["CrossEntropy", "u", "NLL"]


def test_the_rule_stands_under_the_samples():
    figure = kinds.plot("samples", digits_runs())

    assert " ".join(figure.get_supxlabel().split()) == kinds.SAMPLES_RULE
    assert [figure.axes[k].get_ylabel() for k in (0, kinds.SHOWN_SAMPLES)] == [
        "both are right",
        "both are wrong",
    ]


def test_prediction_files_are_drawn_too(tmp_path):
    path = hostile_csv(tmp_path)
    for kind in ("reliability", "confidence", "mistakes", "pareto", "risk-coverage"):
        figure = kinds.plot(kind, [path, digits_runs()[0]])

        drawn = " ".join(text.get_text() for text in figure.findobj(Text))
        assert "<img src" in drawn, kind


def test_mistakes_of_many_runs_have_a_panel_each_with_the_first_run():
    together = kinds.plot("mistakes", digits_runs()[:1] * 3)
    apart = kinds.plot("mistakes", [*digits_runs(), *digits_runs()])

    assert len(together.axes) == 1
    names = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in apart.axes]
    assert len(names) == 3
    assert {each[0] for each in names} == {names[0][0]}
    for ax, (_, other) in zip(apart.axes, names, strict=True):
        assert other.startswith(f"{ax.get_title()}: ")


def test_panels_that_share_their_lines_share_a_legend():
    figure = kinds.plot("severity", digits_runs())

    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["NLL", "NLL+MACC"]
    assert all(ax.get_legend() is None for ax in figure.axes)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gap", r"test.npz holds no moments of the logits; make them with `macc predict .* --moments`"),
        ("certainty", r"make them with `macc predict .* --moments`"),
        (
            "convergence",
            r"has no predictions after every epoch; train it with --set 'epoch_predictions=\[\"test\"\]'",
        ),
        (
            "severity",
            r"has no predictions under levels of shift; make them with `macc predict .* --on digits`$",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_makes_it(kind, message):
    with pytest.raises(ValueError, match=message):
        kinds.plot(kind, [plain_run()])


def test_errors_are_one_sentence(tmp_path):
    path = hostile_csv(tmp_path)
    for kind, paths, message in (
        ("reliabilty", [plain_run()], "no figure is called 'reliabilty'; did you mean 'reliability'?"),
        ("reliability", [], "give a run folder or a prediction file to draw reliability of"),
        ("reliability", [tmp_path / "none"], "does not exist; give run folders or prediction files"),
        ("reliability", [tmp_path], "is no run folder"),
        ("training", [path], "is a file of predictions and was not trained here"),
        ("convergence", [path], "has no epochs; give a run folder"),
        ("severity", [path], "shifted test sets lie in run folders"),
        ("gap", [path], "has no moments"),
        ("samples", [plain_run()], "samples shows what two runs say of the same images, got 1 runs"),
        ("samples", [path, plain_run()], "were not tested on the same samples"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            kinds.plot(kind, paths)
    with pytest.raises(ValueError, match="a figure is written as .svg, .png or .pdf"):
        kinds.write("reliability", [plain_run()], tmp_path / "a.bmp")
    with pytest.raises(
        ValueError, match="samples shows images of the test or val split, got 'digits/noise-1'; write"
    ):
        kinds.plot("samples", digits_runs(), split="digits/noise-1")
    with pytest.raises(ValueError, match="has no predictions 'tset'; there are"):
        kinds.plot("reliability", [plain_run()], split="tset")


def test_sources_get_names_that_tell_them_apart(tmp_path):
    one, two = digits_runs()
    names = [source.name for source in open_sources([one, two, plain_run()])]
    assert names == ["NLL, p 0.2", "NLL+MACC", "NLL, no dropout"]

    assert [s.name for s in open_sources([one, one])] == ["NLL, 1", "NLL, 2"]
    same = [ReportSource(tmp_path / name / "a.npz", "a") for name in ("x", "y")]
    assert [s.name for s in name_apart(same)] == ["a, 1", "a, 2"]


def test_names_by_loss_keep_the_data(tmp_path):
    def made(dataset, gamma):
        changes = ["head=none", f"dataset={dataset}"]
        recipe = training.load("digits", scale="smoke", loss=f"Focal(gamma={gamma})", overrides=changes)
        folder = tmp_path / f"{dataset}-{gamma}"
        folder.mkdir()
        (folder / "recipe.yaml").write_text(recipe.to_yaml())
        return ReportSource(folder, "FL", Run(folder))

    found = name_apart([made(dataset, gamma) for dataset in ("cifar10", "svhn") for gamma in (1, 2)])
    assert [source.name for source in found] == [
        "Focal(gamma=1), cifar10",
        "Focal(gamma=2), cifar10",
        "Focal(gamma=1), svhn",
        "Focal(gamma=2), svhn",
    ]


@pytest.mark.parametrize(
    ("mean", "variance", "message"),
    [
        (np.zeros((4, 3)), np.zeros(4), "must be numbers (N, K) for N labels"),
        (np.zeros((4, 3)), np.zeros((4, 2)), "must be numbers (N, K) for N labels"),
        (np.full((4, 3), "a"), np.full((4, 3), "a"), "must be numbers (N, K) for N labels"),
        (np.zeros((4, 3)), np.full((4, 3), -1.0), "variances at least 0"),
        (np.zeros((4, 3)), np.full((4, 3), np.nan), "must be finite"),
    ],
)
def test_moments_that_are_none_are_refused(tmp_path, mean, variance, message):
    labels = np.array([0, 1, 2, 0])
    np.savez(tmp_path / "a.npz", logits=np.eye(3)[labels], labels=labels, mean=mean, variance=variance)
    with pytest.raises(ValueError, match=re.escape(message)):
        kinds.plot("gap", [tmp_path / "a.npz"])


def test_the_command_line_draws_and_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run("plot", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == list(kinds.KINDS)
    drawn = run("plot", "confidence", plain_run())
    assert drawn == (0, "confidence.svg\n", "")
    wrong = run("plot", "gap", plain_run(), "-o", "gap.png")
    assert wrong.code == 2
    assert wrong.err.startswith("macc: ")
    assert wrong.err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["confidence.svg"]


def test_a_name_apart_is_not_needed_for_what_differs():
    assert [s.name for s in open_sources(digits_runs())] == ["NLL", "NLL+MACC"]


def test_predictions_of_a_run_are_read_as_logits():
    found = open_sources(digits_runs()[:1])[0].predictions("test")

    assert isinstance(found, Loaded)
    assert found.from_logits


@pytest.mark.parametrize(
    ("dataset", "cure"),
    [
        ("cifar10", r"`macc predict run --on cifar10_c` or `macc predict run --on cifar10_c_regen`$"),
        ("digits", r"`macc predict run --on digits`$"),
        (
            "fashion_mnist",
            r"make them with `macc predict run --on fashion_mnist`$",
        ),
        (
            "arrays:mine.npz",
            r"no set of `macc data list` has arrays:mine.npz at levels .*--on arrays:FILE`$",
        ),
    ],
)
def test_the_command_that_predicts_under_shift_is_one_that_works(dataset, cure):
    """The data a run was trained on hold no shifted test sets, as a rule; other sets do."""
    run = SimpleNamespace(path=Path("run"), recipe=SimpleNamespace(dataset=dataset))

    with pytest.raises(ValueError, match=cure):
        ReportSource(Path("run"), "mine", run).shifts()


class TestReadingOptions:
    """`macc plot` and `macc report` read files as `macc evaluate` does."""

    @pytest.fixture
    def table(self, tmp_path):
        rows = ["fold,p_no,p_yes,truth"]
        rows += [
            f"{i % 3},{1 - p:.2f},{p:.2f},{'p_yes' if i % 2 else 'p_no'}"
            for i, p in enumerate([0.2, 0.8] * 20)
        ]
        path = tmp_path / "two.csv"
        path.write_text("\n".join(rows))
        return path

    def test_columns_and_the_positive_class(self, table, tmp_path):
        options = ["--label-column", "truth", "--ignore", "fold", "--positive", "p_no"]
        drawn = run("plot", "reliability", table, "-o", tmp_path / "a.svg", *options)
        assert drawn.code == 0, drawn.err
        assert "class 'p_no'" in (tmp_path / "a.svg").read_text()

        written = run("report", table, "-o", tmp_path / "a.html", *options)
        assert written.code == 0, written.err
        assert "class 'p_no'" in (tmp_path / "a.html").read_text()

    def test_labels_of_an_npy(self, tmp_path):
        np.save(tmp_path / "p.npy", np.tile([[3.0, 1.0, 0.0]], (30, 1)))
        np.save(tmp_path / "y.npy", np.arange(30) % 3)
        found = run(
            "plot",
            "reliability",
            tmp_path / "p.npy",
            "--logits",
            "--labels",
            tmp_path / "y.npy",
            "-o",
            tmp_path / "a.svg",
        )
        assert found.code == 0, found.err


def test_a_notebook_shows_a_run_by_its_metrics():
    run = Run(plain_run())

    shown = run._repr_html_()
    assert f"{100 * run.metrics['test']['ece']['value']:.1f} %" in shown
    assert f"{100 * run.metrics['calibrated']['test']['ece']['value']:.1f} %" in shown
