"""Which runs an experiment needs, what validation selects, what is measured, said and printed.

Runs are made up here: folders with the files that training leaves, so that every number is known.
"""

import csv
import io
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from macc import data, experiments, metrics, posthoc, training
from macc.experiments import _findings, _measure, _runs, _study, _tables
from macc.experiments._gather import gather
from macc.experiments._result import Cell, Comparison, Member, Result, load_result
from macc.experiments._run import _fronts, write
from macc.experiments._runs import Plan
from macc.io.arrays import write_arrays
from macc.io.json import write_json
from macc.io.writing import write_bytes
from macc.metrics._over_runs import interval


def planned(tmp_path, **values):
    values = {"name": "made-up", "datasets": "digits", "seeds": 2, **values}
    plan = Plan(experiments.Experiment.model_validate(values), tmp_path / "runs", None)
    plan.look()
    return plan


def train(plan, job, *, accuracy=0.9, nll=0.3, scale=1.0, parts=("val", "test"), seconds=30.0, **more):
    """Leave what a finished training leaves; ``scale`` multiplies well calibrated logits."""
    recipe, run = plan.recipe(job), plan.run(job)
    write_bytes(run.path / "recipe.yaml", recipe.to_yaml().encode())
    row = {
        "epoch": 1,
        "seconds": seconds,
        "val/accuracy": accuracy,
        "val/nll": nll,
        "val/ece": 0.1,
        "val/sce": 0.02,
        **more,
    }
    write_bytes(run.path / "history.jsonl", (json.dumps(row) + "\n").encode())
    for index, part in enumerate(parts):
        rng = np.random.default_rng([job.seed, index])
        logits = 2 * rng.normal(size=(400, 10))
        truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        labels = np.array([rng.choice(10, p=each) for each in truth])
        arrays = {"logits": (scale * logits).astype("float32"), "labels": labels}
        write_arrays(run.path / "predictions" / f"{part}.npz", arrays)
    write_json(run.path / "metrics.json", {})
    write_json(run.path / "environment.json", {"commit": f"c{job.seed}", "packages": {"torch": "2"}})
    return run


def jobs_of(plan, title, seeds=(0,)):
    case, method = plan.cases[0], plan.experiment.method(title)
    return [plan.job(case, method, point, seed) for point in plan.points(case, method) for seed in seeds]


MACC_ALONE = {"name": "M", "loss": "CrossEntropy + MACC", "set": {"head.p": 0.2}}
MACC = {"name": "M", "loss": "CrossEntropy + {1,10}*MACC", "set": {"head.p": "{0.2,0.5}"}}


class TestSelection:
    def test_ties_go_to_the_smaller_weight_then_the_smaller_dropout(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC])
        for job in jobs_of(plan, "M"):
            point = dict(job.point)
            train(plan, job, accuracy=0.8 if point == {"weight of MACC": 1, "head.p": 0.2} else 0.9, nll=1.0)
        case, method = plan.cases[0], plan.experiment.methods[0]

        assert plan.chosen(case, method, "val_accuracy") == {"weight of MACC": 1, "head.p": 0.5}
        assert plan.chosen(case, method, "val_nll") == {"weight of MACC": 1, "head.p": 0.2}

    def test_the_order_of_the_grid_does_not_decide(self, tmp_path):
        turned = {"name": "M", "loss": "CrossEntropy + {10,1}*MACC", "set": {"head.p": "{0.5,0.2}"}}
        plan = planned(tmp_path, methods=[turned])
        for job in jobs_of(plan, "M"):
            train(plan, job)

        chosen = plan.chosen(plan.cases[0], plan.experiment.methods[0], "val_accuracy")
        assert chosen == {"weight of MACC": 1, "head.p": 0.2}

    def test_nothing_is_selected_before_every_point_is_done(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC])
        case, method = plan.cases[0], plan.experiment.methods[0]
        *most, last = jobs_of(plan, "M")
        for job in most:
            train(plan, job)

        assert plan.chosen(case, method, "val_accuracy") is None
        assert plan.open_points(case, method) == [last]
        assert plan.open_repeats(case, method) == []
        plan.failed[last] = "it diverged"
        assert plan.chosen(case, method, "val_accuracy") is not None

    def test_selected_points_are_repeated_with_the_other_seeds(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC], seeds=3)
        for job, nll in zip(jobs_of(plan, "M"), (0.5, 0.4, 0.3, 0.2), strict=True):
            train(plan, job, accuracy=0.9, nll=nll)
        open_now = plan.open_repeats(plan.cases[0], plan.experiment.methods[0])

        assert {job.seed for job in open_now} == {1, 2}
        assert len(open_now) == 4  # two rules choose two points
        assert plan.experiment.trainings() == 4 + 2 * 2

    def test_seeds_may_be_others_than_before(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC, "CrossEntropy"], seeds=2, first_seed=5)
        (case,) = plan.cases
        searched, plain = (plan.open_points(case, plan.experiment.method(m)) for m in ("M", "CrossEntropy"))
        assert {job.seed for job in searched} == {5}
        assert [job.seed for job in plain] == [5, 6]

    def test_all_seeds_can_take_part(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC], grid_seeds="all")
        best = {"weight of MACC": 10, "head.p": 0.2}
        for job in jobs_of(plan, "M", seeds=(0, 1)):
            lucky = dict(job.point) != best and job.seed == 0
            train(plan, job, accuracy=0.95 if lucky else 0.93 if dict(job.point) == best else 0.8)

        assert plan.chosen(plan.cases[0], plan.experiment.methods[0], "val_accuracy") == best

    def test_the_control_takes_the_selected_dropout_and_the_schedule(self, tmp_path):
        steps = {"schedule": {"name": "multistep", "milestones": [2, 4]}}
        plan = planned(
            tmp_path,
            methods=[MACC, {"name": "C", "loss": "CrossEntropy", "p_of": "M"}, "CrossEntropy"],
            set={**steps, "epochs": 6},
        )
        case, control = plan.cases[0], plan.experiment.method("C")
        assert not plan.ready(case, control)
        for job in jobs_of(plan, "M"):
            train(plan, job, accuracy=0.99 if dict(job.point)["head.p"] == 0.5 else 0.9)
        recipe = plan.recipe(jobs_of(plan, "C")[0])

        assert (recipe.head.p, recipe.head.samples, recipe.schedule.last_factor) == (0.5, 1, 0.02)
        assert plan.recipe(jobs_of(plan, "CrossEntropy")[0]).schedule.last_factor == 0.1


def test_tables_share_runs(tmp_path, monkeypatch):
    """FL+MACC of tables 1, 2, 3 and 5 is the same recipe at every point; the last is no other hash."""
    monkeypatch.setattr(_runs.datasets, "load", lambda name, **_: data.digits())
    found = []
    for name in ("table1", "table2", "table3", "table5"):
        experiment = experiments.load(name, datasets=["CIFAR10"])
        row = experiment.datasets[0].model_copy(update={"tests": {"test": ["test"]}})
        plan = Plan(experiment.model_copy(update={"datasets": [row]}), tmp_path, None)
        plan.look()
        case, method = plan.cases[0], experiment.method("FL+MACC")
        found.append({plan.run(plan.job(case, method, p, 0)).path for p in plan.points(case, method)})

    assert len(found[0]) == 54
    assert found[0] == found[1] == found[2] == found[3]


def test_missing_data_are_left_out_and_said(tmp_path, monkeypatch):
    def load(name, root=None, verify=True):
        if name == "digits":
            return data.digits()
        raise data.MissingFilesError(f"there is no {name} here")

    monkeypatch.setattr(_runs.datasets, "load", load)
    rows = [
        {"name": "A", "recipe": "cifar10"},
        {"name": "B", "recipe": ["cifar100", "digits"]},
        {"name": "C", "recipe": "digits", "tests": {"test": "test", "corrupted": "cifar10_c/*"}},
    ]
    plan = planned(tmp_path, datasets=rows, methods=["CrossEntropy"])

    assert [case.name for case in plan.cases] == ["B", "C"]
    assert plan.left_out[0] == "A is left out: recipe cifar10: dataset: there is no cifar10 here"
    assert "B" in plan.cases[0].name
    assert "trained by recipe digits, because recipe cifar100" in plan.cases[0].remarks[0]
    assert list(plan.cases[1].tests) == ["test"]
    assert plan.left_out[1] == "C under cifar10_c is left out: there is no cifar10_c here"
    with pytest.raises(ValueError, match="^A: recipe cifar10: dataset: there is no cifar10 here$"):
        planned(tmp_path, datasets=rows[:1], methods=["CrossEntropy"])
    other = {"name": "D", "recipe": "svhn"}
    with pytest.raises(ValueError, match="no cifar10 here; D: recipe svhn: dataset: there is no svhn here$"):
        planned(tmp_path, datasets=[rows[0], other], methods=["CrossEntropy"])


@pytest.mark.parametrize(
    ("row", "method", "message"),
    [
        ({"set": {"epochz": 3}}, {}, "set epochz=3: unknown key 'epochz'; did you mean 'epochs'"),
        ({"set": {"epochs": -1}}, {}, "epochs must be greater than or equal to 1, got -1"),
        ({"set": {"subset.train": 9000}}, {}, "9000"),
        ({"set": {"model": "resnet9"}}, {}, "resnet9"),
        ({"tests": {"noise": "own/nose-*"}}, {}, "B has no test set 'own/nose-*'; there are noise-1"),
        (
            {"tests": {"c": "cifar10_cc/*"}},
            {},
            "no data set is called 'cifar10_cc'; did you mean 'cifar10_c'",
        ),
        ({"recipe": "digitz"}, {}, "no recipe is called 'digitz'; did you mean 'digits'"),
        ({"recipe": "arrays:nothing.npz"}, {}, "there is no file nothing.npz"),
        ({}, {"set": {"optimizer.lr": 3}}, "method 'M': recipe digits: unknown key 'optimizer'"),
        ({}, {"set": {"head.p": "{0.2,1.5}"}}, "method 'M': recipe digits, set head.p=1.5"),
    ],
)
def test_a_mistake_is_an_error_and_leaves_nothing_out(tmp_path, row, method, message):
    """The data set before it is there, so the experiment could go on without the one with the mistake."""
    file = tmp_path / "mine.yaml"
    rows = [{"name": "A", "recipe": "digits"}, {"name": "B", "recipe": "digits", **row}]
    methods = [{"name": "M", "loss": "CrossEntropy + MACC", **method}]
    file.write_text(json.dumps({"datasets": rows, "methods": methods, "seeds": 1}))
    plan = Plan(experiments.load(file), tmp_path / "runs", None)
    with pytest.raises(ValueError) as caught:
        plan.look()

    assert str(caught.value).startswith(f"{file}: datasets: {'A' if method else 'B'}: ")
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_settings_keep_their_types(tmp_path):
    plan = planned(tmp_path, methods=[{"name": "M", "loss": "CrossEntropy", "set": {"optimiser.lr": 1e-05}}])
    assert plan.recipe(jobs_of(plan, "M")[0]).optimiser.lr == 1e-05


@pytest.fixture
def measured(tmp_path):
    """Two trained methods, temperature scaling and an ensemble, in domain and over two shifts; three seeds."""
    plan = planned(
        tmp_path,
        seeds=3,
        tests={"test": "test", "noise": ["own/noise-1", "own/noise-2"]},
        columns=["accuracy", "ece", "sce", "classwise_ece", "temperature", "u", "auroc", "minutes"],
        methods=[
            {"name": "CE", "loss": "CrossEntropy"},
            {"name": "CE+MACC", "loss": "CrossEntropy + MACC"},
            {"name": "CE+TS", "of": "CE", "posthoc": "temperature"},
            {"name": "CE x 3", "of": "CE", "ensemble": True},
        ],
    )
    parts = ("val", "test", "digits/noise-1", "digits/noise-2")
    for title, scale, more in (("CE", 2.5, {}), ("CE+MACC", 1.1, {"train/u": 0.75})):
        for job in jobs_of(plan, title, seeds=range(3)):
            train(plan, job, scale=scale, parts=parts, seconds=60 + job.seed, **more)
    plan.cases[0].sets = {"own": ["noise-1", "noise-2"]}
    return plan, gather(plan)


def test_only_the_parts_that_tests_name_are_predicted(tmp_path):
    plan = planned(tmp_path, methods=["CrossEntropy"], tests={"one": "own/noise-1", "some": "own/*-[12]"})
    (case,) = plan.cases

    assert sorted(case.sets["own"]) == ["noise-1", "noise-2", "rotation-1", "rotation-2"]
    assert list(plan.shifted(case, "own").shifts) == case.sets["own"]


def own_data(tmp_path, *shifts):
    """Features of somebody's own, with shifted sets of these names; and what names them in an experiment."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name in ("train", "test", *shifts):
        arrays |= {f"{name}_features": rng.normal(size=(60, 4)), f"{name}_labels": np.arange(60) % 3}
    np.savez(tmp_path / "own.npz", **arrays)
    return f"arrays:{tmp_path / 'own.npz'}"


class TestOwnData:
    def test_no_shift_takes_the_place_of_the_test_split(self, tmp_path):
        source = own_data(tmp_path, "test-2", "noise-1", "noise-2", "val-1")
        (case,) = planned(tmp_path, datasets=source, methods=["CrossEntropy"]).cases

        assert {
            title: [name.partition("/")[2] or name for name in names] for title, names in case.tests.items()
        } == {
            "test": ["test"],
            "test-2": ["test-2"],
            "noise": ["noise-1", "noise-2"],
            "val-1": ["val-1"],
        }

    def test_a_shift_may_have_brackets_in_its_name(self, tmp_path):
        source = own_data(tmp_path, "site [B]", "site B")
        (case,) = planned(tmp_path, datasets=source, methods=["CrossEntropy"]).cases

        assert [case.tests[name][0].partition("/")[2] for name in ("site [B]", "site B")] == [
            "site [B]",
            "site B",
        ]

    def test_weights_are_found_where_training_finds_them(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "w.safetensors").touch()
        source = own_data(tmp_path)
        for place in ("~/w.safetensors", "hub"):
            assert planned(
                tmp_path, datasets=source, methods=["CrossEntropy"], set={"pretrained": place}
            ).cases
        with pytest.raises(ValueError, match="pretrained: there is no file ~/v.safetensors; give its path"):
            planned(
                tmp_path, datasets=source, methods=["CrossEntropy"], set={"pretrained": "~/v.safetensors"}
            )

    def test_settings_are_judged_with_the_losses_of_the_methods(self, tmp_path):
        source = own_data(tmp_path)
        plan = planned(tmp_path, datasets=source, methods=["CrossEntropy"], set={"head": "none"})

        assert plan.recipe(jobs_of(plan, "CrossEntropy")[0]).head == "none"
        with pytest.raises(
            ValueError, match=r"method 'CrossEntropy \+ MACC': .* needs the variance of an MC-dropout"
        ):
            planned(tmp_path, datasets=source, methods=["CrossEntropy + MACC"], set={"head": "none"})

    def test_a_control_needs_a_head_to_take_its_dropout_from(self, tmp_path):
        target = {"name": "a", "loss": "CrossEntropy", "set": {"head": "auto"}}
        control = {"name": "c", "loss": "CrossEntropy", "p_of": "a"}
        plan = planned(tmp_path, datasets=own_data(tmp_path), methods=[target, control])

        with pytest.raises(
            ValueError, match="^method 'a' has no head whose dropout rate could be taken; set its"
        ):
            plan.recipe(jobs_of(plan, "c")[0])


class TestCells:
    def test_a_cell_is_the_mean_over_seeds_with_its_t_interval(self, measured):
        plan, result = measured
        each = [
            metrics.ece(*plan.run(job).predictions("test"), from_logits=True)
            for job in jobs_of(plan, "CE", seeds=range(3))
        ]
        cell = result.cell("digits", "test", "CE", "ece")
        low, high = stats.t.interval(0.95, 2, loc=np.mean(each), scale=stats.sem(each))

        assert cell.values == pytest.approx(each)
        assert (cell.low, cell.high) == pytest.approx((low, high))

    def test_shifts_are_averaged_over_cells_and_pooled_beside(self, measured):
        plan, result = measured
        means, whole = [], []
        for job in jobs_of(plan, "CE+MACC", seeds=range(3)):
            cells = [plan.run(job).predictions(f"digits/noise-{level}") for level in (1, 2)]
            means.append(np.mean([metrics.sce(*cell, from_logits=True) for cell in cells]))
            logits, labels = (torch.cat(part) for part in zip(*cells, strict=True))
            whole.append(metrics.sce(logits, labels, from_logits=True))
        cell = result.cell("digits", "noise", "CE+MACC", "sce")

        assert cell.values == pytest.approx(means)
        assert cell.pooled == pytest.approx(np.mean(whole))

    def test_temperature_is_fitted_on_validation_by_the_papers_grid(self, measured):
        plan, result = measured
        for seed, job in enumerate(jobs_of(plan, "CE", seeds=range(3))):
            fitted = posthoc.Temperature.fit(*plan.run(job).predictions("val"), grid=True)
            logits, labels = plan.run(job).predictions("test")
            expected = metrics.ece(fitted(logits), labels)
            assert result.cell("digits", "test", "CE+TS", "temperature").values[seed] == fitted.temperature
            assert result.cell("digits", "test", "CE+TS", "ece").values[seed] == pytest.approx(
                expected, abs=1e-6
            )

    def test_the_spread_of_logits_is_that_of_the_selected_epoch(self, measured):
        plan, result = measured
        assert result.cell("digits", "noise", "CE+MACC", "u").values == (0.75,) * 3
        assert result.cell("digits", "test", "CE", "u") is None

        run = plan.run(jobs_of(plan, "CE+MACC")[0])
        first = {"epoch": 1, "train/u": 0.1, "val/accuracy": 0.9, "val/nll": 0.3}
        second = {"epoch": 2, "train/u": 0.4, "val/accuracy": 0.8, "val/nll": 0.2}
        write_bytes(
            run.path / "history.jsonl", "".join(json.dumps(row) + "\n" for row in (first, second)).encode()
        )
        assert _measure.spread(run) == 0.1
        text = (run.path / "recipe.yaml").read_text().replace("selection: val_accuracy", "selection: val_nll")
        (run.path / "recipe.yaml").write_text(text)
        assert _measure.spread(run) == 0.4

    def test_runs_of_an_earlier_version_have_no_spread(self, measured):
        plan, _ = measured
        train(
            plan,
            jobs_of(plan, "CE+MACC", seeds=[1])[0],
            parts=("val", "test", "digits/noise-1", "digits/noise-2"),
        )
        assert gather(plan).cell("digits", "test", "CE+MACC", "u") is None

    def test_an_ensemble_averages_probabilities_and_adds_up_training_times(self, measured):
        plan, result = measured
        pairs = [plan.run(job).predictions("test") for job in jobs_of(plan, "CE", seeds=range(3))]
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
        plan = planned(tmp_path, methods=["CrossEntropy"], seeds=1, tests={"test": "test"})
        train(plan, jobs_of(plan, "CrossEntropy")[0])
        cell = gather(plan).cell("digits", "test", "CrossEntropy", "ece")
        logits, labels = plan.run(jobs_of(plan, "CrossEntropy")[0]).predictions("test")
        expected = metrics.evaluate(logits, labels, from_logits=True)["ece"]

        assert (cell.low, cell.high) == (expected.low, expected.high)

    def test_errors_have_the_floor_of_chance(self, measured):
        plan, result = measured
        logits, labels = plan.run(jobs_of(plan, "CE")[0]).predictions("test")
        expected = metrics.evaluate(logits, labels, from_logits=True)["ece"].noise_floor

        assert result.cell("digits", "test", "CE", "ece").floor == pytest.approx(expected, rel=0.1)
        assert result.cell("digits", "test", "CE", "nll").floor is None

    def test_what_made_the_runs_is_told(self, measured):
        _, result = measured

        assert result.provenance["commit"] == ["c0", "c1", "c2"]
        assert result.provenance["torch"] == ["2"]

    def test_averages_over_data_sets_are_taken_seed_by_seed(self, tmp_path):
        rows = [{"name": name, "recipe": "digits", "set": {"epochs": n}} for name, n in (("A", 2), ("B", 3))]
        plan = planned(
            tmp_path,
            datasets=rows,
            methods=["CrossEntropy"],
            averages={"Both": ["A", "B"]},
            tests={"test": "test"},
        )
        for case, scale in zip(plan.cases, (1.0, 3.0), strict=True):
            for seed in range(2):
                train(plan, plan.job(case, plan.experiment.methods[0], {}, seed), scale=scale)
        result = gather(plan)
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


def test_a_pareto_front_is_printed():
    fronts = [{"dataset": "d", "method": "M", "point": {"p": 0.2, "weight": 1}, "accuracy": 0.5, "sce": 0.01}]
    result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["d"], ["M"], {"d": []}, fronts=fronts)
    text = _tables.render(result, "md")

    assert "### d, M: the Pareto front on validation" in text
    assert "| 0.2 | 1 | 50.00 | 10.00 |" in text


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
        plan = planned(tmp_path, methods=[*others, grid, {"name": "M", "loss": loss}])
        found = _findings._others(plan, plan.cases[0], plan.experiment.method("M"))

        assert [method.title for method in found["task"]] == own
        assert len(found["competitor"]) == 4 - len(own)

    def test_with_another_schedule_a_loss_is_not_the_task_loss(self, tmp_path):
        other = {"name": "other", "loss": "CrossEntropy", "set": {"schedule": {"name": "onecycle"}}}
        plan = planned(tmp_path, methods=["CrossEntropy", other, {**MACC, "name": "M"}])
        found = _findings._others(plan, plan.cases[0], plan.experiment.method("M"))

        assert [method.title for method in found["task"]] == ["CrossEntropy"]
        assert [method.title for method in found["competitor"]] == ["other"]

    def test_what_is_a_control_is_seen_by_the_head_that_is_trained(self, tmp_path):
        methods = [
            "CrossEntropy",
            {"name": "no head", "loss": "CrossEntropy", "set": {"head": "none"}},
            {"name": "one mask", "loss": "CrossEntropy", "set": {"head.samples": 1}},
            {"name": "scaled", "of": "CrossEntropy", "posthoc": "temperature"},
            {**MACC, "name": "M"},
        ]
        plan = planned(tmp_path, methods=methods, set={"head.p": 0.5})
        found = _findings._others(plan, plan.cases[0], plan.experiment.method("M"))

        titles = {why: [method.title for method in others] for why, others in found.items()}
        assert titles == {"task": ["no head"], "dropout": ["one mask"], "competitor": [], "temperature": []}

    def test_a_control_with_another_rate_is_said_to_be_one(self):
        result = Result("x", "", "table", "full", "0", 2, ["ece"], {}, ["d"], ["M", "D"], {"d": ["test"]})
        for name, value, p in (("M", 0.05, 0.2), ("D", 0.06, 0.5)):
            result.cells.append(
                Cell("d", "test", name, "val_accuracy", "ece", (value, value), None, None, None)
            )
            result.runs.append(Member("d", name, "val_accuracy", 0, name, {"head": {"p": p}}, 1.0))
        row = Comparison("d", "test", "val_accuracy", "ece", "M", "D", "dropout", -0.01, 0, 0, 0.01, 0.01, "")

        text = _findings._sentence(result, "d", "test", "val_accuracy", "M", [row])
        said = "significantly better than single-pass dropout at another rate, 0.5 where it has 0.2, D"
        assert f"{said} (6.00 %; p = 0.010, Holm)" in text

    def test_the_best_of_several_others_is_corrected_for_their_number(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC_ALONE, "Brier", "FLSD"], seeds=3, tests={"test": "test"})
        for title, scale in (("M", 1.0), ("Brier", 2.0), ("FLSD", 3.0)):
            for job in jobs_of(plan, title, seeds=range(3)):
                train(plan, job, scale=scale)
        (row,) = [row for row in gather(plan).comparisons if row.metric == "ece" and row.why != "best"]

        assert (row.b, row.why) == ("Brier", "competitor")
        assert row.p_holm == pytest.approx(2 * row.p)

    def test_the_best_is_tested_against_every_other_whatever_the_methods(self, tmp_path):
        methods = ["CrossEntropy", "Focal(gamma=2)", "Brier"]
        plan = planned(tmp_path, methods=methods, seeds=3, tests={"test": "test"})
        for title, scale in zip(methods, (1.0, 2.5, 4.0), strict=True):
            for job in jobs_of(plan, title, seeds=range(3)):
                train(plan, job, scale=scale)
        result = gather(plan)
        rows = [row for row in result.comparisons if row.metric == "nll"]
        values = {name: result.cell("digits", "test", name, "nll").values for name in methods}
        expected = [stats.ttest_rel(values[methods[0]], values[name]).pvalue for name in methods[1:]]

        assert {(row.a, row.why) for row in rows} == {("CrossEntropy", "best")}
        assert [row.b for row in rows] == methods[1:]
        assert [row.p for row in rows] == pytest.approx(expected)
        # Three methods, of which each might have been the best; two tests.
        assert [row.p_holm for row in rows] == pytest.approx(metrics.holm([1.5 * p for p in expected]))
        assert result.best("digits", "test", "val_accuracy", "nll") == "CrossEntropy"
        said = r"^digits: CrossEntropy \(\d\.\d{3}\) has the best NLL, significantly better than every other method \(p "
        assert any(re.search(said, text) for text in result.findings)
        assert result.best("digits", "test", "val_accuracy", "accuracy") is None
        assert any("no clear best accuracy" in text for text in result.findings)

    @pytest.mark.parametrize(("methods", "seeds"), [(2, 5), (3, 3), (6, 5)])
    def test_equal_methods_are_hardly_ever_told_apart(self, methods, seeds):
        """The chance that any claim is made about the best of equal methods is at most 5 %."""
        rng = np.random.default_rng(0)
        false = 0
        for values in rng.normal(size=(2000, methods, seeds)):
            best, *others = sorted(values, key=np.mean)
            p_values = [stats.ttest_rel(best, other).pvalue for other in others]
            false += min(_findings.of_the_best(p_values)) < 0.05
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
        row = _findings._Tests(result, None).paired(*cells, "best")
        raw = stats.ttest_rel(a, b).pvalue
        shifted = stats.ttest_rel(np.array(a) - (floors[0] or 0), np.array(b) - (floors[1] or 0)).pvalue

        assert row.p == pytest.approx({"raw": raw, "less its floor": shifted}.get(p, p))
        assert row.difference == pytest.approx(np.mean(a) - np.mean(b))
        assert row.low <= row.difference <= row.high
        assert (row.high < 0) == (max(raw, shifted) < 0.05 and p != 1.0) or by_chance

    def test_errors_near_the_floor_are_said_to_be(self, tmp_path):
        """Two perfectly calibrated models: one error is smaller than the other with every seed, by chance alone."""
        plan = planned(tmp_path, methods=["CrossEntropy", "Brier"], seeds=3, tests={"test": "test"})
        for title, scale in (("CrossEntropy", 1.0), ("Brier", 1.0001)):
            for job in jobs_of(plan, title, seeds=range(3)):
                train(plan, job, scale=scale)
        result = gather(plan)
        sentence = next(text for text in result.findings if "ECE" in text)

        assert result.cell("digits", "test", "Brier", "ece").by_chance
        assert sentence.count("chance alone gives") == 2
        assert "no significant difference from" in sentence
        assert result.findings[-1] == _findings.BY_CHANCE

    def test_an_ensemble_is_shown_and_not_tested_against_single_models(self, measured):
        _, result = measured
        rows = [c for c in result.comparisons if c.why == "best" and "CE x 3" in (c.a, c.b)]

        assert rows
        assert all(math.isnan(row.p_holm) and row.basis == "none" for row in rows)

    def test_other_metrics_have_their_verdicts(self):
        common = ("d", "test", "val_accuracy")
        rows = [
            Comparison(*common, "sce", "M", "T", "task", -0.1, 0, 0, 0.01, 0.01, "seeds"),
            Comparison(*common, "sce", "M", "U", "temperature", 0.1, 0, 0, 0.01, 0.01, "seeds"),
            Comparison(*common, "nll", "M", "T", "task", 0.1, 0, 0, 0.5, 0.5, "seeds"),
        ]

        assert _findings._also(rows) == (
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
        row = Comparison(
            "d", "test", "val_accuracy", "ece", "M", "T", "task", difference, 0, 0, p, p, "seeds"
        )

        text = _findings._sentence(result, "d", "test", "val_accuracy", "M", [row])
        assert text.startswith(f"d, M (ECE {5 + 100 * difference:.2f} %): {said}")

    def test_one_run_each_is_tested_over_samples(self, tmp_path):
        plan = planned(
            tmp_path, methods=["CrossEntropy", "CrossEntropy + MACC"], seeds=1, tests={"test": "test"}
        )
        for title, scale in (("CrossEntropy", 3.0), ("CrossEntropy + MACC", 1.0)):
            train(plan, jobs_of(plan, title)[0], scale=scale)
        rows = [row for row in gather(plan).comparisons if row.metric == "ece"]
        assert [row.why for row in rows] == ["best", "task"]
        row = rows[1]

        assert row.basis == "samples"
        assert row.low < row.difference < row.high < 0
        assert row.p < 0.01

    def test_copies_of_the_same_images_say_no_more_than_one(self, tmp_path):
        plan = planned(
            tmp_path,
            methods=["CrossEntropy", MACC_ALONE],
            seeds=1,
            tests={"one": "own/noise-1", "three": ["own/noise-1", "own/noise-2", "own/noise-3"]},
        )
        for title, scale in (("CrossEntropy", 3.0), ("M", 1.0)):
            run = train(plan, jobs_of(plan, title)[0], scale=scale)
            for level in (1, 2, 3):
                folder = run.path / "predictions" / "digits"
                folder.mkdir(exist_ok=True)
                shutil.copy(run.path / "predictions" / "test.npz", folder / f"noise-{level}.npz")
        rows = {(row.test, row.metric): row for row in gather(plan).comparisons if row.why != "best"}

        for metric in ("ece", "sce", "nll"):
            one, three = rows["one", metric], rows["three", metric]
            assert 0 < one.p < 1
            assert (three.difference, three.low, three.high, three.p) == pytest.approx(
                (one.difference, one.low, one.high, one.p)
            )

    def test_both_rules_are_told_where_they_differ(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC, "CrossEntropy"], tests={"test": "test"})
        for job, nll in zip(jobs_of(plan, "M"), (0.5, 0.4, 0.3, 0.2), strict=True):
            train(plan, job, nll=nll, accuracy=1 - nll / 100 if dict(job.point)["head.p"] == 0.2 else 0.5)
        for title in ("M", "CrossEntropy"):
            for job in jobs_of(plan, title, seeds=(0, 1)):
                train(plan, job, nll=plan.scores(job)["nll"] if plan.run(job).finished else 0.6)
        plan._scores.clear()
        result = gather(plan)
        text = _tables.render(result, "text")

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


class TestFormats:
    @pytest.fixture
    def result(self, measured):
        result = measured[1]
        best = Comparison(
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
        lines = _tables.render(result, "text").splitlines()
        header = next(line for line in lines if line.startswith("method"))
        assert header.split()[:7] == ["method", "Acc.", "%", "ECE", "%", "SCE", "1e-3"]
        assert any("*" in line and line.startswith("CE+MACC") for line in lines)
        assert any(line.startswith("*: significantly better than every other method") for line in lines)

    def test_markdown_has_as_many_fields_in_every_line(self, result):
        text = _tables.render(result, "md")
        tables = [line for line in text.splitlines() if line.startswith("|")]
        width = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}

        assert len(width) == 1
        assert "<b>" not in text
        assert "**" in text

    def test_latex_escapes(self, result):
        text = _tables.render(result, "latex")

        assert r"a\textbar{}b\_*\{=1\}\$\%\textbackslash{} $<$b$>$\&" in text
        assert r"\textbf{" in text
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2

    def test_csv_is_one_number_a_line(self, result):
        rows = list(csv.DictReader(io.StringIO(_tables.render(result, "csv"))))
        cell = result.cell("digits", "test", "CE+MACC", "ece")
        (row,) = [
            r
            for r in rows
            if (r["test"], r["rule"], r["method"], r["metric"]) == ("test", "val_accuracy", "CE+MACC", "ece")
        ]

        assert len(rows) == len(result.cells)
        assert float(row["mean"]) == cell.mean
        assert _tables.escape_csv("=HYPERLINK(1)") == "'=HYPERLINK(1)"
        assert _tables.escape_csv("-0.5") == "-0.5"

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
        row = Comparison(
            "d", "test", "val_accuracy", "ece", "A", "B", "task", math.nan, 0, 0, math.nan, math.nan, "seeds"
        )
        result.comparisons.append(row)
        write(result, tmp_path)
        again = load_result(tmp_path)

        assert math.isnan(again.cells[0].mean)
        assert math.isnan(again.comparisons[0].p)
        assert again.rules("d") == result.rules("d") == ["val_accuracy"]
        for found in (result, again):
            (sheet,) = _tables.sheets(found)
            assert [entry.text for entry in sheet.rows[0]] == ["A", "–", "0.8000", ""]
            assert not any(row[1].best for row in sheet.rows)
            for form in _tables.FORMATS:
                assert _tables.render(found, form)

    @pytest.mark.parametrize("kind", ["convergence", "timing"])
    def test_tables_of_nothing_are_empty(self, kind):
        result = Result("x", "", kind, "full", "0", 1, ["ece"], {}, ["d"], ["A"], {"d": ["test"]})

        assert _tables.render(result, "csv") == ""
        assert _tables.render(result, "text").startswith("x. " if kind == "convergence" else ".")

    def test_a_result_of_another_kind_is_refused(self, tmp_path):
        (tmp_path / "result.json").write_text("{}")
        with pytest.raises(ValueError, match="is not of result format 1"):
            load_result(tmp_path)
        with pytest.raises(ValueError, match="`macc run` writes it"):
            load_result(tmp_path / "nothing.json")

    def test_unknown_format(self):
        with pytest.raises(ValueError, match="must be one of text, md, latex, csv, json, got 'pdf'"):
            _tables.check_format("pdf")

    def test_paper_values_stand_beside_with_the_difference(self, tmp_path):
        plan = planned(
            tmp_path,
            datasets=[{"name": "PACS", "recipe": "digits", "tests": {"Cartoon": "test"}}],
            methods=["FL+MACC"],
            grids={"weight": [1], "p": [0.2], "gamma": [2]},
            paper="table6",
            units={"sce": 1e-2},
            columns=["sce"],
            seeds=1,
            scale="smoke",
        )
        train(plan, jobs_of(plan, "FL+MACC")[0])
        result = gather(plan)
        lines = _tables.render(result, "text").splitlines()
        mean = 100 * result.cell("PACS", "Cartoon", "FL+MACC", "sce").mean
        assert "method   SCE 1e-2  paper  diff." in [re.sub(r" {3,}", "   ", line) for line in lines] or any(
            line.split() == ["method", "SCE", "1e-2", "paper", "diff."] for line in lines
        )
        row = next(line for line in lines if line.startswith("FL+MACC")).split()
        assert [row[1], *row[-2:]] == [f"{mean:.2f}", "10.19", f"{mean - 10.19:+.2f}"]
        assert "Reduced scale (smoke): these are not the paper's settings." in lines


class TestStudies:
    """Optuna on an SQLite file, with trainings that are made up."""

    @pytest.fixture
    def storage(self, tmp_path):
        storage = _study.open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path, heartbeat=1)
        yield storage
        _study.close_storage(storage)

    def study(self, tmp_path, storage, **search):
        plan = planned(tmp_path, methods=[MACC], search=search)
        return plan, _study.GridStudy(plan, plan.cases[0], plan.experiment.methods[0], storage, tmp_path)

    @staticmethod
    def trainer(plan, seen):
        def fake(job, on_epoch):
            point = dict(job.point)
            weight, p = point["weight of MACC"], point["head.p"]
            seen.append(job)
            train(plan, job, accuracy=0.9 + 0.001 * weight, nll=p)
            for epoch in range(1, 4):
                if on_epoch is not None:
                    on_epoch({"epoch": epoch, "val/accuracy": 0.9 if weight == 10 else 0.1})

        return fake

    def test_every_point_is_enqueued_once_and_tried_once(self, tmp_path, storage):
        plan, study = self.study(tmp_path, storage)
        study.enqueue()
        study.enqueue()
        _, other = self.study(tmp_path, storage)
        other.enqueue()
        seen = []
        while study.work(self.trainer(plan, seen)):
            pass

        assert sorted(job.point for job in seen) == sorted(job.point for job in jobs_of(plan, "M"))
        assert study.states() == ["COMPLETE"] * 4
        assert study.done

    def test_a_trial_that_another_worker_finished_is_no_crash(self, tmp_path, storage):
        plan, study = self.study(tmp_path, storage)
        study.enqueue()
        fake = self.trainer(plan, [])

        def overtaken(job, on_epoch):
            fake(job, on_epoch)
            (running,) = [t for t in study.study.get_trials() if t.state.name == "RUNNING"]
            study.study.tell(running.number, 0.5)

        assert study.work(overtaken)
        assert study.states().count("COMPLETE") == 1

    def test_other_mistakes_are_not_swallowed(self, tmp_path, storage):
        _, study = self.study(tmp_path, storage)
        study.enqueue()

        def broken(job, on_epoch):
            raise RuntimeError("a mistake of ours")

        with pytest.raises(RuntimeError, match="of ours"):
            study.work(broken)

    def test_the_points_of_a_dead_worker_come_back(self, tmp_path, storage):
        import time

        plan, study = self.study(tmp_path, storage)
        study.enqueue()
        with pytest.warns(UserWarning, match="Heartbeat"):
            dead = study.study.ask()  # takes a point and never breathes again
        storage.record_heartbeat(dead._trial_id)
        seen = []
        while study.work(self.trainer(plan, seen)):
            pass
        assert len(seen) == 3
        assert not study.done
        time.sleep(4)
        while study.work(self.trainer(plan, seen)):
            pass

        assert len(seen) == len(set(seen)) == 4
        assert study.done

    def test_tpe_tries_as_many_points_as_it_may(self, tmp_path, storage):
        plan, study = self.study(tmp_path, storage, sampler="tpe", trials=3)
        study.enqueue()
        seen = []
        while study.work(self.trainer(plan, seen)):
            pass

        assert len(seen) == 3
        assert study.done

    def test_several_workers_of_tpe_try_different_points(self, tmp_path, storage):
        many = {**MACC, "loss": "CrossEntropy + {1,2,3,4,5,6,7,8}*MACC"}
        plan = planned(tmp_path, methods=[many], search={"sampler": "tpe", "trials": 12})
        case, method = plan.cases[0], plan.experiment.methods[0]
        workers = [_study.GridStudy(plan, case, method, storage, tmp_path) for _ in range(3)]
        seen = []
        turns = [True]
        while any(turns):
            turns = [worker.work(self.trainer(plan, seen)) for worker in workers]

        assert len(seen) == len(set(seen)) == 12

    def test_a_worker_of_tpe_that_comes_too_late_trains_nothing(self, tmp_path, storage):
        plan, study = self.study(tmp_path, storage, sampler="tpe", trials=2)
        seen = []
        while study.work(self.trainer(plan, seen)):
            pass
        # It saw that a point was waiting, and others took it first.
        study.study.optimize(lambda trial: study._objective(trial, self.trainer(plan, seen)), n_trials=1)

        assert len(seen) == 2
        assert study.done

    def test_tpe_ends_where_nothing_can_be_trained(self, tmp_path, storage):
        plan, study = self.study(tmp_path, storage, sampler="tpe", trials=3)

        def hopeless(job, on_epoch):
            plan.failed[job] = "it diverged"

        turns = 0
        while study.work(hopeless):
            turns += 1
            assert turns < 50
        assert study.done
        assert len(plan.failed) >= 3

    def test_no_front_where_what_a_control_waits_for_failed(self, tmp_path):
        control = {"name": "C", "loss": "Focal(gamma={1,2})", "p_of": "M"}
        plan = planned(tmp_path, methods=[MACC, control], search={"objectives": ["accuracy", "nll"]})
        plan.failed = dict.fromkeys(jobs_of(plan, "M"), "it diverged")

        assert _fronts(plan) == []

    def test_two_objectives_have_a_front_however_the_points_came(self, tmp_path):
        plan = planned(tmp_path, methods=[MACC], search={"objectives": ["accuracy", "nll"]})
        better = {(1, 0.2): (0.9, 0.3), (1, 0.5): (0.8, 0.2), (10, 0.2): (0.8, 0.3), (10, 0.5): (0.7, 0.25)}
        for job in jobs_of(plan, "M"):
            point = dict(job.point)
            accuracy, nll = better[point["weight of MACC"], point["head.p"]]
            train(plan, job, accuracy=accuracy, nll=nll)

        assert _fronts(plan) == [
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

    def test_points_that_lag_are_given_up(self, tmp_path, storage):
        turned = {**MACC, "loss": "CrossEntropy + {10,9,8,7,6,5,1}*MACC", "set": {}}
        plan = planned(tmp_path, methods=[turned], search={"prune": True})
        study = _study.GridStudy(plan, plan.cases[0], plan.experiment.methods[0], storage, tmp_path)
        study.enqueue()

        def fake(job, on_epoch):
            weight = dict(job.point)["weight of MACC"]
            for epoch in range(1, 4):
                on_epoch({"epoch": epoch, "val/accuracy": 0.1 if weight == 1 else 0.9})
            train(plan, job)

        while study.work(fake):
            pass

        assert study.states() == ["COMPLETE"] * 6 + ["PRUNED"]
        assert study.done


class TestAddresses:
    def test_what_a_driver_says_is_shown_without_secrets(self):
        address = "postgresql://me:a%40b@host/grids?sslpassword=c+d&application_name=macc"
        said = "macc: a@b, a%40b, c d, c+d and c%20d are refused"
        assert _study.without_secrets(said, address) == "macc: ***, ***, ***, *** and *** are refused"

    @pytest.mark.parametrize(
        ("address", "shown"),
        [
            ("postgresql://me:s3cr3t@host:5432/grids", "postgresql://me:***@host:5432/grids"),
            ("postgresql://me@host:5432/grids", "postgresql://me@host:5432/grids"),
            ("postgresql://me:s3%40cr3t%2F@host/grids", "postgresql://me:***@host/grids"),
            ("postgresql://me:s3cr3t?/x@host/grids", "postgresql://***"),
            ("postgresql://host/grids?user=me&password=p%40s3cr3t", "postgresql://host/grids"),
            ("postgresql://host/grids?user=me&password=p@s3cr3t", "postgresql://***"),
            ("postgresql://host:5432/grids?password=a:s3cr3t@b/c", "postgresql://***"),
            ("postgresql://host/grids?sslpassword=s3cr3t&passfile=/s3cr3t", "postgresql://host/grids"),
            ("postgresql:///grids?host=h&password=s3cr3t", "postgresql:///grids"),
            ("mysql://host/grids?password=s3cr3t", "mysql://host/grids"),
            ("postgresql://me:p@s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:p@ss:s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me/x:s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:12/s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:s3cr3t@[::1]:5432/grids", "postgresql://me:***@[::1]:5432/grids"),
            ("sqlite:////tmp/x@y:z.db", "sqlite:////tmp/x@y:z.db"),
            ("me:s3cr3t", "***"),
        ],
    )
    def test_no_password_is_shown(self, address, shown):
        assert _study.hidden(address) == shown

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://me:s3cr3t@127.0.0.1:1/grids",
            "postgresql://me:s3cr3t@127.0.0.1:nonsense/grids",
            "nonsense://me:s3cr3t@host/grids",
            "oracle://me:s3cr3t@host/grids",
            "me:s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&password=p@s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&password=s3cr3t&nonsense=s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&sslpassword=s3cr3t&sslmode=s3cr3t",
        ],
    )
    def test_errors_do_not_tell_it_either(self, address, tmp_path):
        with pytest.raises(ValueError) as caught:
            _study.open_storage(address, tmp_path)

        assert "s3cr3t" not in str(caught.value)
        assert "\n" not in str(caught.value)
