"""An experiment on one screen."""

import pytest

from helpers.command import run
from macc import experiments
from macc.experiments import tables
from macc.experiments.brief import HEIGHT, WIDTH, brief, short_findings
from macc.experiments.result import Cell, PairedTest, Result
from macc.report import experiment as report_of


def many(datasets=6, methods=20, tests=3, *, clear=False):
    """A result like one of a big experiment: long names, many tables, long findings."""
    names = [f"NLL+MACC, weight {k}, dropout 0.{k}, analytic, a long name" for k in range(methods)]
    sets = [f"data set number {d} of a benchmark" for d in range(datasets)]
    result = Result(
        "big", "A title that says what was trained, on what, and for how long it was trained", "table",
        "cpu", "0", 5, ["accuracy", "sce", "ece", "nll"], {}, sets, names,
        {name: [f"test {t} under shift" for t in range(tests)] for name in sets},
        left_out=[f"{name}: not run with every seed yet" for name in sets],
        findings=["word " * 120 for _ in range(80)],
        notes=["note " * 40] * 9,
    )  # fmt: skip
    for dataset in sets:
        for test in result.tests[dataset]:
            for index, name in enumerate(names):
                for metric in result.columns:
                    values = tuple((index + 1 + s / 5) / 50 for s in range(5))
                    paper = 0.1 if index % 2 else None
                    result.cells.append(
                        Cell(dataset, test, name, "val_accuracy", metric, values, *values[::4], paper)
                    )
            for index, name in enumerate(names[1:]):
                p = 0.01 if clear or index < 7 else 0.3
                for metric in ("ece", "accuracy"):
                    found = (dataset, test, "val_accuracy", metric, names[0], name)
                    result.comparisons.append(PairedTest(*found, "best", -0.1, -0.2, 0, p, p, "seeds"))
            row = (dataset, test, "val_accuracy", "ece", names[-1], names[0])
            result.comparisons.append(PairedTest(*row, "task", -0.1, -0.2, 0, 0.01, 0.01, "seeds"))
    return result


@pytest.mark.parametrize("height", [HEIGHT, 36])
@pytest.mark.parametrize("result", [many(), many(1, 40, 1), many(2, 3, 1), many(12, 2, 1)])
def test_it_fits_one_screen(result, height):
    lines = brief(result, height=height).splitlines()

    assert len(lines) <= height
    assert max(map(len, lines)) <= WIDTH
    assert 1 <= sum("──" in line for line in lines) <= 2


def test_what_does_not_fit_is_counted():
    text = " ".join(brief(many(), height=36).split())

    assert "4 more data sets, 16 more tables, 77 more findings, 9 more notes: in the report, or with" in text
    assert "of 20 methods" in text
    assert "Left out: data set number 0 of a benchmark: not run with every seed yet; and 5 more" in text
    for k in (0, 1, 2):  # those with the lowest error
        assert f"NLL+MACC, weight {k}," in text


def test_a_wider_terminal_shows_more_columns_and_a_higher_one_more_rows():
    result = many()
    narrow, wide = brief(result), brief(result, width=120)

    def columns(text):
        return next(line for line in text.splitlines() if line.startswith("method")).split()

    assert columns(narrow) < columns(wide)
    assert max(map(len, wide.splitlines())) <= 120
    assert len(brief(result, height=60).splitlines()) in range(50, 61)


def test_three_findings_are_short_and_count_the_other_methods():
    best, macc, accuracy = short_findings(many())

    assert "lowest ECE: “NLL+MACC, weight 0, d…” (2.80 %)" in best
    assert best.endswith("significantly better than 7 of 19 others, no significant difference from 12.")
    assert macc == (
        "ECE of MACC: significantly better than its own task loss in 18 of 18 tests (worse in 0)."
    )
    assert "highest accuracy" in accuracy
    assert all(len(text) <= 160 for text in short_findings(many()))
    clear = short_findings(many(clear=True))[0]
    assert clear.endswith("significantly better than all 19 others (p = 0.010).")


def test_without_tests_the_first_findings_are_cut():
    result = many()
    result.comparisons = []
    found = short_findings(result)

    assert len(found) == 3
    assert all(len(text) <= 160 and text.endswith("…") for text in found)


def test_of_a_trained_experiment_it_says_what_the_tables_say(measured):
    result = measured[1]
    text = brief(result, height=60)
    cell = result.cell("digits", "test", "CE", "ece")

    assert f"{100 * cell.mean:.2f}" in text
    assert len(text.splitlines()) < len(tables.render(result, "text").splitlines())


def test_curves_show_the_last_epochs():
    curves = [
        {"dataset": "d", "method": "M", "seed": 0, "epoch": epoch, "ece": epoch / 1000, "sce": 0.01}
        for epoch in range(1, 201)
    ]
    result = Result("x", "", "convergence", "full", "0", 1, ["ece"], {}, ["d"], ["M"], {"d": []})
    result.curves = curves
    text = brief(result)

    assert len(text.splitlines()) <= HEIGHT
    assert "\n  200" in text or "\n200" in text
    assert "of 200 rows" in text


def test_the_command_prints_one_screen(tmp_path, monkeypatch):
    report = tmp_path / "a folder with a long name" / "of a report with a long name" / "report.html"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(experiments, "run", lambda *_, **__: many())
    monkeypatch.setattr(report_of, "write", lambda *_, **__: [report, *report.parent.glob("*.svg")])
    printed = run("run", "demo", "--scale", "smoke")

    assert printed.code == 0, printed.err
    lines = printed.out.splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 40
    assert "more findings" in printed.out
    assert f"open it in a browser: {report.as_uri()}" in printed.out
    assert "macc run mine.yaml" in printed.out
    every = run("run", "demo", "--scale", "smoke", "--verbose")
    assert len(every.out.splitlines()) > 400
