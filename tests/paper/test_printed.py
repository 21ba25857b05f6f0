"""The paper's printed values, and the experiments whose values stand beside them."""

import re

import pytest

from helpers.made_up_runs import jobs_of, made_up, train
from macc import experiments
from macc.experiments import tables
from macc.experiments.gather import gather
from macc.paper import paper_tables, value


def test_the_runs_of_table_1_are_the_papers():
    """1 + 18 + 2 + 36 + 3 + 54 for each data set; the controls are ours."""
    experiment = experiments.load("table1", seeds=1)
    row = experiment.datasets[0]
    paper = row.model_copy(update={"methods": ["NLL", "NLL+MACC", "LS", "LS+MACC", "FL", "FL+MACC"]})

    assert experiment.trainings([paper]) == 114
    assert experiment.trainings([row]) == 114 + 1 + 3


class TestPaper:
    """The printed values agree with each other as far as they must (PROTOCOL: identities and
    averages).
    """

    @staticmethod
    def values(table, dataset, test="test"):
        (row,) = [r for r in paper_tables()[table]["rows"] if (r["dataset"], r["test"]) == (dataset, test)]
        return row["values"]

    def test_nothing_is_missing(self):
        counts = {
            name: sum(len(v) for row in table["rows"] for v in row["values"].values())
            for name, table in paper_tables().items()
        }

        assert counts == {
            "table1": 72,
            "table2": 111,
            "table3": 52,
            "table4": 80,
            "table5": 54,
            "table6": 27,
            "table7": 45,
            "table8": 24,
        }

    def test_averages_over_domains(self):
        methods = ("FL+MDCA", "NLL+MbLS", "FL+MACC")
        for method in methods:
            for metric in ("accuracy", "sce", "ece"):
                two = [self.values("table6", "PACS", test)[method][metric] for test in ("Cartoon", "Sketch")]
                printed = self.values("table6", "PACS", "Average")[method][metric]
                assert sum(two) / 2 == pytest.approx(printed, abs=0.0151)
                four = [
                    self.values("table7", domain, "other domains")[method][metric]
                    for domain in ("Photo", "Art", "Cartoon", "Sketch")
                ]
                printed = self.values("table7", "Average", "other domains")[method][metric]
                assert sum(four) / 4 == pytest.approx(printed, abs=0.0151)

    def test_class_wise_errors_add_up_to_sce(self):
        """K class-wise ECE in % sum to SCE in 1e-3 for K = 10, to rounding."""
        for dataset, others in (("CIFAR10", "table2"), ("SVHN", "table2")):
            for method, each in self.values("table4", dataset).items():
                known = self.values(others, dataset).get(method) or self.values("table1", dataset).get(method)
                if known is not None:
                    assert sum(each.values()) == pytest.approx(known["sce"], abs=0.0151), (dataset, method)
        assert sum(self.values("table4", "SVHN")["NLL+MDCA"].values()) == pytest.approx(1.84)

    def test_tables_repeat_each_other(self):
        for dataset in ("CIFAR10", "CIFAR100", "Tiny-ImageNet", "SVHN"):
            for method in ("NLL+MACC", "FL+MACC"):
                for metric in ("sce", "ece"):
                    one, three = (self.values(t, dataset)[method][metric] for t in ("table1", "table3"))
                    assert one == three, (dataset, method, metric)
        for dataset in ("CIFAR10", "CIFAR100", "Tiny-ImageNet"):
            assert self.values("table5", dataset, "in domain") == {
                method: self.values("table2", dataset)[method]
                for method in ("FL+MDCA", "NLL+MbLS", "FL+MACC")
            }
        for row in paper_tables()["table2"]["rows"]:
            for method in ("FL+MACC", "NLL+MACC"):
                if method in row["values"] and row["dataset"] != "CIFAR10 DeiT-Tiny":
                    first = self.values("table1", row["dataset"])[method]
                    assert {k: row["values"][method][k] for k in ("sce", "ece")} == first

    def test_temperature_1_changes_nothing(self):
        for dataset in ("CIFAR10", "CIFAR100"):
            scaled, plain = self.values("table3", dataset)["FL+TS"], self.values("table1", dataset)["FL"]
            assert scaled["temperature"] == 1
            assert (scaled["sce"], scaled["ece"]) == (plain["sce"], plain["ece"])

    def test_values_in_plain_units(self):
        assert value(["table1"], "Mendeley", "test", "NLL", "sce") == pytest.approx(0.20698)
        assert value(["table6"], "PACS", "Cartoon", "FL+MACC", "sce") == pytest.approx(0.1019)
        assert value(["table4"], "SVHN", "test", "NLL+MbLS", "classwise_ece/0") == pytest.approx(0.0007)
        assert value(["table1"], "CIFAR10", "test", "nothing", "ece") is None
        assert value([], "CIFAR10", "test", "NLL", "ece") is None

    def test_the_first_table_that_has_a_value_gives_it(self):
        tables = ["table1", "table2"]
        assert value(tables, "CIFAR10", "test", "FL+MACC", "ece") == 0.0059
        assert value(tables, "CIFAR10", "test", "FL+MACC", "accuracy") == 0.9286
        assert value(tables, "CIFAR10", "test", "FL+MDCA", "ece") == 0.0079

    @pytest.mark.parametrize("name", [f"table{i}" for i in range(1, 9)])
    def test_every_printed_value_stands_beside_one_of_ours(self, name):
        """A misspelt data set, test or method in an experiment file would lose its column."""
        experiment = experiments.load(name)
        rows = {row.name: row for row in experiment.datasets}
        for printed in paper_tables()[name]["rows"]:
            dataset = printed["dataset"]
            assert dataset in rows or dataset in experiment.averages, dataset
            row = rows.get(dataset) or rows[experiment.averages[dataset][0]]
            assert printed["test"] in (row.tests or experiment.tests or {"test": []})
            titles = [method.title for method in experiment.methods_on(row)]
            for method, values in printed["values"].items():
                assert method in titles
                assert {metric.partition("/")[0] for metric in values} <= set(experiment.columns)


def test_paper_values_stand_beside_with_the_difference(tmp_path):
    ledger = made_up(
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
    train(ledger, jobs_of(ledger, "FL+MACC")[0])
    result = gather(ledger, value)
    lines = tables.render(result, "text").splitlines()
    mean = 100 * result.cell("PACS", "Cartoon", "FL+MACC", "sce").mean
    assert "method   SCE 1e-2  paper  diff." in [re.sub(r" {3,}", "   ", line) for line in lines] or any(
        line.split() == ["method", "SCE", "1e-2", "paper", "diff."] for line in lines
    )
    row = next(line for line in lines if line.startswith("FL+MACC")).split()
    assert [row[1], *row[-2:]] == [f"{mean:.2f}", "10.19", f"{mean - 10.19:+.2f}"]
    assert "Reduced scale (smoke): these are not the paper's settings." in lines
