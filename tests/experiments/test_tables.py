"""Results as text, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import math
import re

import pytest

from macc.experiments import tables
from macc.experiments.result import Cell, PairedTest, Result, load_result
from macc.experiments.running import write
from macc.metrics.over_runs import interval


def test_a_pareto_front_is_printed():
    fronts = [{"dataset": "d", "method": "M", "point": {"p": 0.2, "weight": 1}, "accuracy": 0.5, "sce": 0.01}]
    result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["d"], ["M"], {"d": []}, fronts=fronts)
    text = tables.render(result, "md")

    assert "### d, M: the Pareto front on validation" in text
    assert "| 0.2 | 1 | 50.00 | 10.00 |" in text


class TestFormats:
    @pytest.fixture
    def result(self, measured):
        result = measured[1]
        best = PairedTest(
            "digits", "test", "val_accuracy", "ece", "CE+MACC", "CE", "best", -0.1, 0, 0, 0, 0, ""
        )
        others = [row for row in result.comparisons if row.why != "best"]
        result.comparisons = [best, *others]
        nasty = "a|b_*{=1}$%\\ <b>&"
        result.methods = [nasty if name == "CE" else name for name in result.methods]
        result.cells = [
            Cell(**{**vars(c), "method": nasty if c.method == "CE" else c.method}) for c in result.cells
        ]
        return result

    def test_text_marks_the_best(self, result):
        lines = tables.render(result, "text").splitlines()
        header = next(line for line in lines if line.startswith("method"))
        assert header.split()[:7] == ["method", "accuracy", "%", "ECE", "%", "SCE", "1e-3"]
        assert any("*" in line and line.startswith("CE+MACC") for line in lines)
        assert any(line.startswith("*: significantly better than every other method") for line in lines)

    def test_the_second_is_the_best_mean_of_the_others_beside_a_clear_best(self, result):
        means = {
            name: result.cell("digits", "test", name, "ece").mean
            for name in result.stages[0]
            if name != "CE+MACC" and result.cell("digits", "test", name, "ece")
        }

        assert result.second("digits", "test", "val_accuracy", "ece") == [min(means, key=means.get)]
        assert result.second("digits", "test", "val_accuracy", "accuracy") == []
        assert "†: the best mean of the others." in tables.render(result, "text")
        assert tables.render(result, "text").count("†") == 2
        assert tables.render(result, "latex").count(r"\underline{") == 1

    def test_markdown_has_as_many_fields_in_every_line(self, result):
        text = tables.render(result, "md")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        width = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}

        assert len(width) == 1
        assert "<b>" not in text
        assert "**" in text

    def test_latex_escapes(self, result):
        text = tables.render(result, "latex")

        assert r"a\textbar{}b\_*\{=1\}\$\%\textbackslash{} $<$b$>$\&" in text
        assert r"\textbf{" in text
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2

    def test_csv_is_one_number_a_line(self, result):
        rows = list(csv.DictReader(io.StringIO(tables.render(result, "csv"))))
        cell = result.cell("digits", "test", "CE+MACC", "ece")
        (row,) = [
            r
            for r in rows
            if (r["test"], r["rule"], r["method"], r["metric"]) == ("test", "val_accuracy", "CE+MACC", "ece")
        ]

        assert len(rows) == len(result.cells)
        assert float(row["mean"]) == cell.mean

    def test_json_reads_back(self, result, tmp_path):
        write(result, tmp_path)
        again = load_result(tmp_path)

        assert again.cells == result.cells
        assert again.runs == result.runs
        assert again.comparisons == result.comparisons
        assert again.cell("digits", "test", "CE+MACC", "ece") == result.cell(
            "digits", "test", "CE+MACC", "ece"
        )
        assert {path.name for path in tmp_path.glob("*.*")} >= {
            "result.json",
            "table.md",
            "table.tex",
            "table.csv",
        }

    def test_a_metric_that_a_test_does_not_define_is_a_dash_and_never_best(self, tmp_path):
        result = Result(
            "x", "", "table", "full", "0", 2, ["auroc"], {}, ["d"], ["A", "B", "C"], {"d": ["test"]}
        )
        for rule in ("val_accuracy", "val_nll"):
            for name, values in (("A", (math.nan, 0.9)), ("B", (0.5, 0.7)), ("C", (0.4, 0.5))):
                ends = interval(values)
                result.cells.append(Cell("d", "test", name, rule, "auroc", values, *ends, 0.8))
        row = PairedTest(
            "d", "test", "val_accuracy", "ece", "A", "B", "task", math.nan, 0, 0, math.nan, math.nan, "seeds"
        )
        result.comparisons.append(row)
        write(result, tmp_path)
        again = load_result(tmp_path)

        assert math.isnan(again.cells[0].mean)
        assert math.isnan(again.comparisons[0].p)
        assert again.rules("d") == result.rules("d") == ["val_accuracy"]
        for found in (result, again):
            (table,) = tables.tables(found)
            assert [entry.text for entry in table.rows[0]] == ["A", "–", "0.8000", ""]
            assert not any(row[1].best for row in table.rows)
            for form in tables.FORMATS:
                assert tables.render(found, form)

    @pytest.mark.parametrize("kind", ["convergence", "timing"])
    def test_tables_of_nothing_are_empty(self, kind):
        result = Result("x", "", kind, "full", "0", 1, ["ece"], {}, ["d"], ["A"], {"d": ["test"]})

        assert tables.render(result, "csv") == ""
        assert tables.render(result, "text").startswith("x. " if kind == "convergence" else ".")

    def test_a_result_of_another_kind_is_refused(self, tmp_path):
        (tmp_path / "result.json").write_text("{}")
        with pytest.raises(ValueError, match="is not of result format 1"):
            load_result(tmp_path)
        with pytest.raises(ValueError, match="`macc run` writes it"):
            load_result(tmp_path / "nothing.json")
        for content in ("[]", "{", "\xff"):
            (tmp_path / "result.json").write_text(content, encoding="latin-1")
            with pytest.raises(ValueError, match=r"result.json is damaged \("):
                load_result(tmp_path)

    def test_unknown_format(self):
        with pytest.raises(ValueError, match="must be one of text, md, latex, csv, json, got 'pdf'"):
            tables.check_format("pdf")
