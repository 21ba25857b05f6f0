"""What is measured of finished runs: cells over seeds, averages, fronts."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from helpers.made_up_runs import MACC, jobs_of, made_up, train
from macc import metrics, posthoc
from macc.experiments import measure
from macc.experiments.gather import fronts, gather
from macc.experiments.result import Cell, Result
from macc.io.writing import write_bytes
from macc.metrics.over_runs import interval


class TestCells:
    def test_a_cell_is_the_mean_over_seeds_with_its_t_interval(self, measured):
        ledger, result = measured
        each = [
            metrics.ece(*ledger.run(job).predictions("test"), from_logits=True)
            for job in jobs_of(ledger, "CE", seeds=range(3))
        ]
        cell = result.cell("digits", "test", "CE", "ece")
        low, high = stats.t.interval(0.95, 2, loc=np.mean(each), scale=stats.sem(each))

        assert cell.values == pytest.approx(each)
        assert (cell.low, cell.high) == pytest.approx((low, high))

    def test_shifts_are_averaged_over_cells_and_pooled_beside(self, measured):
        ledger, result = measured
        means, whole = [], []
        for job in jobs_of(ledger, "CE+MACC", seeds=range(3)):
            cells = [ledger.run(job).predictions(f"digits/noise-{level}") for level in (1, 2)]
            means.append(np.mean([metrics.sce(*cell, from_logits=True) for cell in cells]))
            logits, labels = (torch.cat(part) for part in zip(*cells, strict=True))
            whole.append(metrics.sce(logits, labels, from_logits=True))
        cell = result.cell("digits", "noise", "CE+MACC", "sce")

        assert cell.values == pytest.approx(means)
        assert cell.pooled == pytest.approx(np.mean(whole))

    def test_temperature_is_fitted_on_validation_by_the_papers_grid(self, measured):
        ledger, result = measured
        for seed, job in enumerate(jobs_of(ledger, "CE", seeds=range(3))):
            fitted = posthoc.Temperature.fit(*ledger.run(job).predictions("val"), grid=True)
            logits, labels = ledger.run(job).predictions("test")
            expected = metrics.ece(fitted(logits), labels)
            assert result.cell("digits", "test", "CE+TS", "temperature").values[seed] == fitted.temperature
            assert result.cell("digits", "test", "CE+TS", "ece").values[seed] == pytest.approx(
                expected, abs=1e-6
            )

    def test_the_spread_of_logits_is_that_of_the_selected_epoch(self, measured):
        ledger, result = measured
        assert result.cell("digits", "noise", "CE+MACC", "u").values == (0.75,) * 3
        assert result.cell("digits", "test", "CE", "u") is None

        run = ledger.run(jobs_of(ledger, "CE+MACC")[0])
        first = {"epoch": 1, "train/u": 0.1, "val/accuracy": 0.9, "val/nll": 0.3}
        second = {"epoch": 2, "train/u": 0.4, "val/accuracy": 0.8, "val/nll": 0.2}
        write_bytes(
            run.path / "history.jsonl", "".join(json.dumps(row) + "\n" for row in (first, second)).encode()
        )
        assert measure.spread(run) == 0.1
        text = (run.path / "recipe.yaml").read_text().replace("selection: val_accuracy", "selection: val_nll")
        (run.path / "recipe.yaml").write_text(text)
        assert measure.spread(run) == 0.4

    def test_runs_of_an_earlier_version_have_no_spread(self, measured):
        ledger, _ = measured
        train(
            ledger,
            jobs_of(ledger, "CE+MACC", seeds=[1])[0],
            parts=("val", "test", "digits/noise-1", "digits/noise-2"),
        )
        assert gather(ledger).cell("digits", "test", "CE+MACC", "u") is None

    def test_an_ensemble_averages_probabilities_and_adds_up_training_times(self, measured):
        ledger, result = measured
        pairs = [ledger.run(job).predictions("test") for job in jobs_of(ledger, "CE", seeds=range(3))]
        probs = sum(logits.double().softmax(1) for logits, _ in pairs) / 3
        cell = result.cell("digits", "test", "CE x 3", "auroc")

        assert cell.values == (pytest.approx(metrics.auroc(probs, pairs[0][1])),)
        assert result.cell("digits", "test", "CE x 3", "minutes").mean == pytest.approx(183 / 60)
        assert result.cell("digits", "test", "CE", "minutes").mean == pytest.approx(61 / 60)
        assert cell.low < cell.mean < cell.high  # over test samples: there is one ensemble

    def test_class_wise_errors_are_columns_whose_mean_is_sce(self, measured):
        _, result = measured
        each = [result.cell("digits", "test", "CE", f"classwise_ece/{k}").mean for k in range(10)]

        assert np.mean(each) == pytest.approx(result.cell("digits", "test", "CE", "sce").mean)
        assert result.metrics("digits")[3:13] == [f"classwise_ece/{k}" for k in range(10)]

    def test_one_seed_has_the_interval_over_samples(self, tmp_path):
        ledger = made_up(tmp_path, methods=["CrossEntropy"], seeds=1, tests={"test": "test"})
        train(ledger, jobs_of(ledger, "CrossEntropy")[0])
        cell = gather(ledger).cell("digits", "test", "CrossEntropy", "ece")
        logits, labels = ledger.run(jobs_of(ledger, "CrossEntropy")[0]).predictions("test")
        expected = metrics.evaluate(logits, labels, from_logits=True)["ece"]

        assert (cell.low, cell.high) == (expected.low, expected.high)

    def test_errors_have_the_floor_of_chance(self, measured):
        ledger, result = measured
        logits, labels = ledger.run(jobs_of(ledger, "CE")[0]).predictions("test")
        expected = metrics.evaluate(logits, labels, from_logits=True)["ece"].noise_floor

        assert result.cell("digits", "test", "CE", "ece").floor == pytest.approx(expected, rel=0.1)
        assert result.cell("digits", "test", "CE", "nll").floor is None

    def test_what_made_the_runs_is_told(self, measured):
        _, result = measured

        assert result.provenance["commit"] == ["c0", "c1", "c2"]
        assert result.provenance["torch"] == ["2"]

    def test_averages_over_data_sets_are_taken_seed_by_seed(self, tmp_path):
        rows = [{"name": name, "recipe": "digits", "set": {"epochs": n}} for name, n in (("A", 2), ("B", 3))]
        ledger = made_up(
            tmp_path,
            datasets=rows,
            methods=["CrossEntropy"],
            averages={"Both": ["A", "B"]},
            tests={"test": "test"},
        )
        for dataset, scale in zip(ledger.catalog.datasets, (1.0, 3.0), strict=True):
            for seed in range(2):
                train(ledger, ledger.job(dataset, ledger.experiment.methods[0], {}, seed), scale=scale)
        result = gather(ledger)
        a, b, both = (result.cell(name, "test", "CrossEntropy", "ece") for name in ("A", "B", "Both"))

        assert both.values == pytest.approx([(x + y) / 2 for x, y in zip(a.values, b.values, strict=True)])
        assert (both.low, both.high) == pytest.approx(interval(both.values))
        assert result.rules("Both") == ["val_accuracy"]

    def test_an_average_is_shown_by_both_rules_where_they_differ(self):
        def cell(dataset, rule, value):
            return Cell(dataset, "test", "M", rule, "ece", (value, value), None, None, None)

        same, apart = (
            [cell("A", "val_accuracy", 0.1), cell("A", "val_nll", 0.1)],
            [cell("Mean", "val_accuracy", 0.1), cell("Mean", "val_nll", 0.2)],
        )
        tests = {"A": ["test"], "Mean": ["test"]}
        result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["A", "Mean"], ["M"], tests)
        result.cells += same + apart

        assert list(result.blocks()) == [
            ("A", "test", "val_accuracy"),
            ("Mean", "test", "val_accuracy"),
            ("Mean", "test", "val_nll"),
        ]


class TestOnce:
    """What is costly is done once for each prediction file."""

    @pytest.fixture
    def counted(self, tmp_path, monkeypatch):
        ledger = made_up(
            tmp_path,
            seeds=1,
            tests={
                "test": "test",
                "again": "test",
                "noise": ["own/noise-1", "own/noise-2"],
                "one": "own/noise-1",
            },
            methods=["CrossEntropy", "Brier", {"name": "TS", "of": "Brier", "posthoc": "temperature"}],
        )
        for title in ("CrossEntropy", "Brier"):
            parts = ("val", "test", "digits/noise-1", "digits/noise-2")
            train(ledger, jobs_of(ledger, title)[0], parts=parts)
        calls = Counter()

        def counting(name):
            function = getattr(measure, name)

            def call(*arguments, **options):
                calls[name] += 1
                return function(*arguments, **options)

            monkeypatch.setattr(measure, name, call)

        counting("read")
        counting("sampled_means")
        return ledger, calls

    def test_a_file_is_read_and_resampled_once(self, counted):
        ledger, calls = counted
        gather(ledger)

        assert calls["read"] == 2 * 3  # of two runs; temperature scaling shares them
        assert calls["sampled_means"] == 3 * 3

    def test_where_memory_is_short_files_are_read_again(self, counted, monkeypatch):
        ledger, calls = counted
        whole = gather(ledger)
        once = calls["read"]
        monkeypatch.setattr(measure, "KEPT_BYTES", 1)

        assert gather(ledger).cells == whole.cells
        assert calls["read"] - once > once


class TestFronts:
    def test_no_front_where_what_a_control_waits_for_failed(self, tmp_path):
        control = {"name": "C", "loss": "Focal(gamma={1,2})", "p_of": "M"}
        ledger = made_up(tmp_path, methods=[MACC, control], search={"objectives": ["accuracy", "nll"]})
        ledger.failed = dict.fromkeys(jobs_of(ledger, "M"), "it diverged")

        assert fronts(ledger) == []

    def test_two_objectives_have_a_front_however_the_points_came(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC], search={"objectives": ["accuracy", "nll"]})
        better = {(1, 0.2): (0.9, 0.3), (1, 0.5): (0.8, 0.2), (10, 0.2): (0.8, 0.3), (10, 0.5): (0.7, 0.25)}
        for job in jobs_of(ledger, "M"):
            point = dict(job.point)
            accuracy, nll = better[point["weight of MACC"], point["head.p"]]
            train(ledger, job, accuracy=accuracy, nll=nll)

        assert fronts(ledger) == [
            {
                "dataset": "digits",
                "method": "M",
                "point": {"weight of MACC": 1, "head.p": 0.2},
                "accuracy": 0.9,
                "nll": 0.3,
            },
            {
                "dataset": "digits",
                "method": "M",
                "point": {"weight of MACC": 1, "head.p": 0.5},
                "accuracy": 0.8,
                "nll": 0.2,
            },
        ]
