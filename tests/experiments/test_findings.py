"""Paired tests, and the sentences that are made of them."""

import math
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from helpers.made_up_runs import MACC, MACC_ALONE, jobs_of, made_up, train
from macc import experiments, metrics, training
from macc.experiments import findings, tables
from macc.experiments.gather import gather
from macc.experiments.measure import RunPredictions
from macc.experiments.result import Cell, Member, PairedTest, Result


class TestFindings:
    def test_paired_tests_are_those_of_scipy_corrected_by_holm(self, measured):
        _, result = measured
        rows = [c for c in result.comparisons if (c.test, c.metric) == ("test", "nll") and c.why != "best"]
        expected = {}
        for row in rows:
            a, b = (result.cell("digits", "test", name, "nll").values for name in (row.a, row.b))
            expected[row.why] = stats.ttest_rel(a, b).pvalue
            assert row.difference == pytest.approx(np.mean(a) - np.mean(b))

        assert set(expected) == {"task", "temperature"}
        assert {row.why: row.p for row in rows} == pytest.approx(expected)
        assert [row.p_holm for row in rows] == pytest.approx(metrics.holm([row.p for row in rows]))

    def test_the_sentence_says_what_the_numbers_say(self, measured):
        _, result = measured
        (sentence,) = [text for text in result.findings if text.startswith("digits, CE+MACC (ECE ")]

        assert re.search(r"significantly better than its own task loss CE \(\d+\.\d\d %; p [<=] ", sentence)
        assert (
            "It is not compared with the same head with single-pass dropout and the best other method: this experiment has none."
            in sentence
        )

    @pytest.mark.parametrize(
        ("loss", "own"),
        [
            ("Focal(gamma=5) + MACC", ["Focal(gamma=5)"]),
            ("Focal + MACC", ["Focal(gamma=3)"]),
            ("Focal(gamma={1,5}) + MACC", ["both"]),
            ("Focal(gamma=2) + MACC", []),
        ],
    )
    def test_the_task_loss_has_the_same_knobs(self, tmp_path, loss, own):
        others = ["Focal(gamma=1)", "Focal(gamma=5)", "Focal(gamma=3)"]
        grid = {"name": "both", "loss": "Focal(gamma={5,1})"}
        ledger = made_up(tmp_path, methods=[*others, grid, {"name": "M", "loss": loss}])
        found = findings._others(ledger, ledger.catalog.datasets[0], ledger.experiment.method("M"))

        assert found["task"] == own
        assert len(found["competitor"]) == 4 - len(own)

    def test_with_another_schedule_a_loss_is_not_the_task_loss(self, tmp_path):
        other = {"name": "other", "loss": "CrossEntropy", "set": {"schedule": {"name": "onecycle"}}}
        ledger = made_up(tmp_path, methods=["CrossEntropy", other, {**MACC, "name": "M"}])
        found = findings._others(ledger, ledger.catalog.datasets[0], ledger.experiment.method("M"))

        assert found["task"] == ["CrossEntropy"]
        assert found["competitor"] == ["other"]

    def test_what_is_a_control_is_seen_by_the_head_that_is_trained(self, tmp_path):
        methods = [
            "CrossEntropy",
            {"name": "no head", "loss": "CrossEntropy", "set": {"head": "none"}},
            {"name": "one mask", "loss": "CrossEntropy", "set": {"head.samples": 1}},
            {"name": "scaled", "of": "CrossEntropy", "posthoc": "temperature"},
            {**MACC, "name": "M"},
        ]
        ledger = made_up(tmp_path, methods=methods, set={"head.p": 0.5})
        found = findings._others(ledger, ledger.catalog.datasets[0], ledger.experiment.method("M"))

        assert found == {"task": ["no head"], "dropout": ["one mask"], "competitor": [], "temperature": []}

    def test_a_control_with_another_rate_is_said_to_be_one(self):
        result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["d"], ["M", "D"], {"d": ["test"]})
        for name, value, p in (("M", 0.05, 0.2), ("D", 0.06, 0.5)):
            result.cells.append(
                Cell("d", "test", name, "val_accuracy", "ece", (value, value), None, None, None)
            )
            result.runs.append(Member("d", name, "val_accuracy", 0, name, {"head": {"p": p}}, 1.0))
        row = PairedTest("d", "test", "val_accuracy", "ece", "M", "D", "dropout", -0.01, 0, 0, 0.01, 0.01, "")

        text = findings._sentence(result, "d", "test", "val_accuracy", "M", [row])
        said = "significantly better than single-pass dropout at another rate, 0.5 where it has 0.2, D"
        assert f"{said} (6.00 %; p = 0.010, Holm)" in text

    def test_the_best_of_several_others_is_corrected_for_their_number(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC_ALONE, "Brier", "FLSD"], seeds=3, tests={"test": "test"})
        for title, scale in (("M", 1.0), ("Brier", 2.0), ("FLSD", 3.0)):
            for job in jobs_of(ledger, title, seeds=range(3)):
                train(ledger, job, scale=scale)
        (row,) = [row for row in gather(ledger).comparisons if row.metric == "ece" and row.why != "best"]

        assert (row.b, row.why) == ("Brier", "competitor")
        assert row.p_holm == pytest.approx(2 * row.p)

    def test_the_best_is_tested_against_every_other_whatever_the_methods(self, tmp_path):
        methods = ["CrossEntropy", "Focal(gamma=2)", "Brier"]
        ledger = made_up(tmp_path, methods=methods, seeds=3, tests={"test": "test"})
        for title, scale in zip(methods, (1.0, 2.5, 4.0), strict=True):
            for job in jobs_of(ledger, title, seeds=range(3)):
                train(ledger, job, scale=scale)
        result = gather(ledger)
        rows = [row for row in result.comparisons if row.metric == "nll"]
        values = {name: result.cell("digits", "test", name, "nll").values for name in methods}
        expected = [stats.ttest_rel(values[methods[0]], values[name]).pvalue for name in methods[1:]]

        assert {(row.a, row.why) for row in rows} == {("CrossEntropy", "best")}
        assert [row.b for row in rows] == methods[1:]
        assert [row.p for row in rows] == pytest.approx(expected)
        # Three methods, of which each might have been the best; two tests.
        assert [row.p_holm for row in rows] == pytest.approx(metrics.holm([1.5 * p for p in expected]))
        assert result.best("digits", "test", "val_accuracy", "nll") == ["CrossEntropy"]
        said = r"^digits: CrossEntropy \(\d\.\d{3}\) has the best NLL, significantly better than every other method \(p "
        assert any(re.search(said, text) for text in result.findings)
        assert result.best("digits", "test", "val_accuracy", "accuracy") == []
        assert any("no clear best accuracy" in text for text in result.findings)

    @pytest.mark.parametrize(("methods", "seeds"), [(2, 5), (3, 3), (6, 5)])
    def test_equal_methods_are_hardly_ever_told_apart(self, methods, seeds):
        """The chance that any claim is made about the best of equal methods is at most 5 %."""
        rng = np.random.default_rng(0)
        false = 0
        for values in rng.normal(size=(2000, methods, seeds)):
            best, *others = sorted(values, key=np.mean)
            p_values = [stats.ttest_rel(best, other).pvalue for other in others]
            false += min(findings.of_the_best(p_values)) < 0.05
        assert false / 2000 < 0.06

    @pytest.mark.parametrize(
        ("floors", "by_chance", "p"),
        [
            ((None, None), False, "raw"),
            ((0.010, 0.010), False, "raw"),
            ((0.012, 0.010), False, "raw"),  # A is even better above its floor
            ((0.010, 0.012), False, "less its floor"),
            ((0.010, 0.018), False, 1.0),  # all of the difference is a difference of floors, and more
            ((0.010, 0.010), True, 1.0),
        ],
    )
    def test_errors_are_tested_with_and_without_their_floors(self, floors, by_chance, p):
        a, b = (0.016, 0.017, 0.015), (0.020, 0.022, 0.0205)
        cells = [
            Cell("d", "test", name, "val_accuracy", "ece", values, None, None, None, None, floor, by_chance)
            for name, values, floor in zip("AB", (a, b), floors, strict=True)
        ]
        result = Result("x", "", "table", "full", "0", 3, ["ece"], {}, ["d"], ["A", "B"], {"d": ["test"]})
        row = findings._Tests(result, None, RunPredictions()).paired(*cells, "best")
        raw = stats.ttest_rel(a, b).pvalue
        shifted = stats.ttest_rel(np.array(a) - (floors[0] or 0), np.array(b) - (floors[1] or 0)).pvalue

        assert row.p == pytest.approx({"raw": raw, "less its floor": shifted}.get(p, p))
        assert row.difference == pytest.approx(np.mean(a) - np.mean(b))
        assert row.low <= row.difference <= row.high
        assert (row.high < 0) == (max(raw, shifted) < 0.05 and p != 1.0) or by_chance

    def test_errors_near_the_floor_are_said_to_be(self, tmp_path):
        """Two perfectly calibrated models: one error is smaller than the other with every seed, by
        chance alone.
        """
        ledger = made_up(tmp_path, methods=["CrossEntropy", "Brier"], seeds=3, tests={"test": "test"})
        for title, scale in (("CrossEntropy", 1.0), ("Brier", 1.0001)):
            for job in jobs_of(ledger, title, seeds=range(3)):
                train(ledger, job, scale=scale)
        result = gather(ledger)
        sentence = next(text for text in result.findings if "ECE" in text)

        assert result.cell("digits", "test", "Brier", "ece").by_chance
        assert sentence.count("chance alone gives") == 2
        assert "no significant difference from" in sentence
        assert result.findings[-1] == findings.BY_CHANCE

    def test_an_ensemble_is_shown_and_not_tested_against_single_models(self, measured):
        _, result = measured
        rows = [c for c in result.comparisons if c.why == "best" and "CE x 3" in (c.a, c.b)]

        assert rows
        assert all(math.isnan(row.p_holm) and row.basis == "none" for row in rows)

    def test_other_metrics_have_their_verdicts(self):
        common = ("d", "test", "val_accuracy")
        rows = [
            PairedTest(*common, "sce", "M", "T", "task", -0.1, 0, 0, 0.01, 0.01, "seeds"),
            PairedTest(*common, "sce", "M", "U", "temperature", 0.1, 0, 0, 0.01, 0.01, "seeds"),
            PairedTest(*common, "nll", "M", "T", "task", 0.1, 0, 0, 0.5, 0.5, "seeds"),
        ]

        assert findings._also(rows) == (
            " SCE: significantly better than T; significantly worse than U. NLL: no significant difference."
        )

    @pytest.mark.parametrize(
        ("difference", "p", "said"),
        [
            (-0.02, 0.01, "significantly better than its own task loss T (5.00 %; p = 0.010, Holm)"),
            (0.02, 0.01, "significantly worse than its own task loss T"),
            (-0.02, 0.2, "no significant difference from its own task loss T (5.00 %; p = 0.200, Holm)"),
            (0.0, math.nan, "no significant difference from its own task loss T (5.00 %; not tested)"),
        ],
    )
    def test_verdicts(self, difference, p, said):
        result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["d"], ["M", "T"], {"d": ["test"]})
        for name, value in (("M", 0.05 + difference), ("T", 0.05)):
            result.cells.append(
                Cell("d", "test", name, "val_accuracy", "ece", (value, value), None, None, None)
            )
        row = PairedTest(
            "d", "test", "val_accuracy", "ece", "M", "T", "task", difference, 0, 0, p, p, "seeds"
        )

        text = findings._sentence(result, "d", "test", "val_accuracy", "M", [row])
        assert text.startswith(f"d, M (ECE {5 + 100 * difference:.2f} %): {said}")

    def test_one_run_each_is_tested_over_samples(self, tmp_path):
        ledger = made_up(
            tmp_path, methods=["CrossEntropy", "CrossEntropy + MACC"], seeds=1, tests={"test": "test"}
        )
        for title, scale in (("CrossEntropy", 3.0), ("CrossEntropy + MACC", 1.0)):
            train(ledger, jobs_of(ledger, title)[0], scale=scale)
        rows = [row for row in gather(ledger).comparisons if row.metric == "ece"]
        assert [row.why for row in rows] == ["best", "task"]
        row = rows[1]

        assert row.basis == "samples"
        assert row.low < row.difference < row.high < 0
        assert row.p < 0.01

    def test_copies_of_the_same_images_say_no_more_than_one(self, tmp_path):
        ledger = made_up(
            tmp_path,
            methods=["CrossEntropy", MACC_ALONE],
            seeds=1,
            tests={"one": "own/noise-1", "three": ["own/noise-1", "own/noise-2", "own/noise-3"]},
        )
        for title, scale in (("CrossEntropy", 3.0), ("M", 1.0)):
            run = train(ledger, jobs_of(ledger, title)[0], scale=scale)
            for level in (1, 2, 3):
                folder = run.path / "predictions" / "digits"
                folder.mkdir(exist_ok=True)
                shutil.copy(run.path / "predictions" / "test.npz", folder / f"noise-{level}.npz")
        rows = {(row.test, row.metric): row for row in gather(ledger).comparisons if row.why != "best"}

        for metric in ("ece", "sce", "nll"):
            one, three = rows["one", metric], rows["three", metric]
            assert 0 < one.p < 1
            assert (three.difference, three.low, three.high, three.p) == pytest.approx(
                (one.difference, one.low, one.high, one.p)
            )

    def test_both_rules_are_told_where_they_differ(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC, "CrossEntropy"], tests={"test": "test"})
        for job, nll in zip(jobs_of(ledger, "M"), (0.5, 0.4, 0.3, 0.2), strict=True):
            train(ledger, job, nll=nll, accuracy=1 - nll / 100 if dict(job.point)["head.p"] == 0.2 else 0.5)
        for title in ("M", "CrossEntropy"):
            for job in jobs_of(ledger, title, seeds=(0, 1)):
                train(
                    ledger,
                    job,
                    nll=ledger.scores(job, ledger.first_rule)["nll"] if ledger.run(job).finished else 0.6,
                )
        ledger._scores.clear()
        result = gather(ledger)
        text = tables.render(result, "text")

        assert result.rules("digits") == ["val_accuracy", "val_nll"]
        assert "digits (selected by validation accuracy, the paper's rule)" in text
        assert "digits (selected by validation NLL), M (ECE" in text
        assert "Selected on digits by validation NLL: M: weight of MACC 10, head.p 0.5." in text

    def test_an_epoch_is_selected_by_both_rules_without_a_second_training(self, tmp_path):
        experiment = experiments.Experiment(
            name="x", datasets="digits", seeds=1, methods=["CrossEntropy"], tests={"test": "test"},
            set={"epochs": 8, "subset.train": 200, "subset.val": 60, "optimiser.lr": 0.3},
        )  # fmt: skip
        result = experiments.run(experiment, out=tmp_path, workers=1)
        by_rule = {run.rule: training.Run(tmp_path / run.folder) for run in result.runs}
        rows = by_rule["val_accuracy"].history

        assert by_rule["val_nll"].recipe.selection == "val_nll"
        assert by_rule["val_nll"].history == rows  # to the hundredth of a second: one training
        cells = [result.cell("digits", "test", "CrossEntropy", "nll", rule) for rule in by_rule]
        assert cells[0].values != cells[1].values
