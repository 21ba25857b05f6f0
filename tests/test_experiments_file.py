"""Experiment files: what they expand to, what they refuse and with which sentence; the paper's printed values."""

import pytest

from macc import experiments, losses
from macc.experiments import _grids
from macc.experiments._file import half_of
from macc.experiments._paper import paper_tables, paper_value

PLAIN = "datasets: digits\nmethods: [CrossEntropy, CrossEntropy + MACC]\n"


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


class TestGrids:
    def test_every_combination_in_order(self):
        texts = {"loss": "Focal(gamma={1,2}) + {5, 10}*MACC", "head.p": "{0.2, 0.5}"}
        axes = _grids.axes(texts, {})

        assert [axis.name for axis in axes] == ["gamma", "weight of MACC", "head.p"]
        assert _grids.count(axes) == len(_grids.points(axes)) == 8
        assert _grids.points(axes)[1] == {"gamma": 1, "weight of MACC": 5, "head.p": 0.5}
        assert _grids.fill("loss", texts["loss"], _grids.points(axes)[-1], {}) == "Focal(gamma=2) + 10*MACC"

    def test_a_named_grid_used_twice_is_one_axis(self):
        axes = _grids.axes({"loss": "CrossEntropy + {w}*MACC + {w}*MDCA"}, {"w": [1, 2]})

        assert axes == [_grids.Axis("w", (1, 2))]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Focal(gamma={1,2)", "a brace is open or nested"),
            ("Focal(gamma={1,{2}})", "a brace is open or nested"),
            ("Focal(gamma={1,})", "holds ''"),
            ("Focal(gamma={1,1})", "has a value twice"),
            ("Focal(gamma={1,nan+1})", "holds 'nan+1'"),
            ("Focal(gamma={__import__('os')})", "holds"),
            ("Focal(gamma={unknown})", "no grid is called 'unknown'"),
            ("Focal(gamma={1,2}) + {1,2}*MDCA + {1,3}*MDCA", "two different grids vary 'weight of MDCA'"),
        ],
    )
    def test_mistakes(self, text, message):
        with pytest.raises(ValueError, match="^loss: ") as caught:
            _grids.axes({"loss": text}, {})
        assert message in str(caught.value)

    def test_half_of_training(self):
        assert half_of("CrossEntropy + 3*MACC(warmup = half)", 481) == "CrossEntropy + 3*MACC(warmup=240)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: digits\nmethods: [CrossEntropi]\n", "no loss is called 'CrossEntropi'; did you mean"),
        (
            "datasets: digits\nmethods: [NLL+MACK]\n",
            "no method is called 'NLL+MACK'; did you mean 'NLL+MACC'?",
        ),
        ("datasets: digits\nmethods: ['Focal(gama={1,2})']\n", "Focal has no knob 'gama'"),
        ("datasets: digits\nmethods: ['CrossEntropy + {weigth}*MACC']\n", "no grid is called 'weigth'"),
        ("dataset: digits\nmethods: [CrossEntropy]\n", "unknown key 'dataset'; did you mean 'datasets'?"),
        ("datasets: digits\n", "the key 'methods' is missing"),
        (PLAIN + "seeds: many\n", "seeds must be a valid integer, got 'many'"),
        (PLAIN + "seeds: 0\n", "seeds must be greater than or equal to 1, got 0"),
        (PLAIN + "columns: [speed]\n", "got 'speed'"),
        (PLAIN + "paper: table9\n", "got 'table9'"),
        (PLAIN + "search: {sampler: tpe}\n", "`sampler: tpe` needs `trials`"),
        (PLAIN + "search: {prune: true, objectives: [accuracy, sce]}\n", "`prune` compares one number"),
        (PLAIN + "search: {pruner: true}\n", "unknown key 'search.pruner'; did you mean 'prune'?"),
        (PLAIN + "scales: {tiny: {}}\n", "scales must map smoke, cpu and full"),
        (PLAIN + "scales: {full: 3}\n", "scales.full must map keys to the values they change"),
        (PLAIN + "grids: 3\n", "grids must map names to lists of values, as in {weight: [1, 10]}, got 3"),
        (PLAIN + "units: {ece: 0}\n", "units.ece must be greater than 0, got 0"),
        (PLAIN + "units: {ece: 0.02}\n", "a unit is a power of ten, as 1e-2 or 1e-3"),
        (PLAIN + "scale: smoke\n", "the scale is given with `--scale`, not in the file"),
        (PLAIN + "set: {seed: 7}\n", "`set` cannot give the seed, which comes from `seeds` and `first_seed`"),
        (PLAIN + "set: {loss: Brier}\n", "`set` cannot give the loss, which comes from the methods' losses"),
        (
            "datasets: [digits, {name: b, recipe: digits}]\nmethods: [NLL]\naverages: {b: [digits, b]}\n",
            "averages.b: a data set is called 'b' too",
        ),
        (
            "datasets: digits\nmethods: [CrossEntropy, CrossEntropy]\n",
            "two methods are called 'CrossEntropy'",
        ),
        ("datasets: [digits, digits]\nmethods: [CrossEntropy]\n", "two data sets are called 'digits'"),
        (
            "datasets: digits\nmethods: [{name: x, of: CE, posthoc: temperature}]\n",
            "no method is called 'CE'",
        ),
        ("datasets: digits\nmethods: [CrossEntropy, {name: x, of: CrossEntropy}]\n", "say what to make of"),
        ("datasets: digits\nmethods: [{loss: CrossEntropy, p_of: Brier}, Brier]\n", "sets no head.p"),
        (
            "datasets: digits\nmethods: [{loss: CrossEntropy, set: {dataset: x}}]\n",
            "cannot change the data set",
        ),
        ("datasets: digits\nmethods: [{method: NLLL}]\n", "did you mean 'NLL'?"),
        ("datasets: digits\nmethods: [{method: [a]}]\n", "no method is called ['a']"),
        (
            "datasets: digits\nmethods: [{name: a, loss: Brier, set: {head: none}}, {loss: CrossEntropy, p_of: a}]\n",
            "method 'CrossEntropy': 'a' sets no head.p whose selected value could be taken",
        ),
        ("just words\n", "must be a mapping"),
        ("datasets: [digits\n", "cannot be read at line"),
        ("datasets: &x digits\nmethods: [*x]\n", "uses the alias *x"),
        (
            "datasets: digits\ngrid_seeds: all\nseeds: 100\nmethods: ['CrossEntropy + {1,2,3,4,5,6,7,8,9,10}*MACC',"
            " 'Focal(gamma={1,2,3,4,5,6,7,8,9}) + {1,2,3,4,5,6,7,8,9,10}*MDCA']\n",
            "this asks for 10000 trainings, more than the limit of 1000: cut a grid, or write limit: 10000",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        experiments.load(path)

    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_limit_that_is_meant_is_kept(tmp_path):
    text = "datasets: digits\ngrid_seeds: all\nseeds: 600\nlimit: 1200\nmethods: ['Focal(gamma={1,2})']\n"

    assert experiments.load(written(tmp_path, text)).trainings() == 1200


def test_a_huge_grid_is_refused_without_being_made(tmp_path):
    axis = "{" + ",".join(map(str, range(1, 60))) + "}"
    knobs = "\n".join(
        f"      {key}: '{axis}'" for key in ("epochs", "batch_size", "accumulate", "head.samples")
    )
    text = f"datasets: digits\nmethods:\n  - loss: Focal(gamma={axis})\n    set:\n{knobs}\n"
    with pytest.raises(ValueError, match="asks for 7149\\d* trainings"):
        experiments.load(written(tmp_path, text))


def test_braces_that_yaml_takes_for_a_mapping_are_a_grid(tmp_path):
    text = "datasets: digits\nmethods:\n  - loss: CrossEntropy + MACC\n    set: {head: {p: {0.2, 0.5}}}\n"
    experiment = experiments.load(written(tmp_path, text))

    assert experiment.methods[0].settings == {"head.p": "{0.2, 0.5}"}
    assert experiment.axes(experiment.methods[0], {})[0].values == (0.2, 0.5)


def test_points_as_methods_of_their_own(tmp_path):
    text = "show: points\ndatasets: digits\nmethods: [CrossEntropy, {name: M, loss: 'CrossEntropy + {1,10}*MACC'}]\n"
    experiment = experiments.load(written(tmp_path, text))

    assert [m.title for m in experiment.methods] == [
        "CrossEntropy",
        "M, weight of MACC 1",
        "M, weight of MACC 10",
    ]
    assert experiment.methods[2].loss == "CrossEntropy + 10*MACC"


def test_settings_of_a_method_of_the_paper_are_replaced_as_a_whole():
    def settings(given):
        methods = [{"method": "NLL+MACC", "name": "mine", "loss": "CrossEntropy", "set": given}]
        experiment = experiments.Experiment(name="x", datasets="digits", methods=methods, paper=None)
        return experiment.methods[0].settings

    assert settings({"head": "none"}) == {"head": "none"}
    assert settings({"head.samples": 5}) == {"head.p": "{p}", "head.samples": 5}


MINE = {"name": "M", "loss": "CrossEntropy + {w}*MACC", "set": {"head.p": "{0.2}"}}


class TestPoints:
    def made(self, **values):
        values = {"name": "x", "datasets": "digits", "grids": {"w": [1, 2]}, "show": "points", **values}
        return experiments.Experiment(**values)

    def test_they_are_made_in_python_too(self):
        found = self.made(methods=["NLL", MINE])

        assert [method.title for method in found.methods] == ["NLL", "M, w 1", "M, w 2"]
        assert found.methods[2].settings == {"head.p": 0.2}
        assert found.trainings() == 3 * found.seeds

    def test_a_data_set_keeps_the_methods_it_names(self):
        rows = [
            {"name": name, "recipe": "digits", "methods": names}
            for name, names in (("A", ["NLL", "M"]), ("B", ["NLL"]))
        ]
        found = self.made(datasets=rows, methods=["NLL", MINE])

        titles = [[method.title for method in found.of_row(row)] for row in found.datasets]
        assert titles == [["NLL", "M, w 1", "M, w 2"], ["NLL"]]

    def test_a_data_set_has_its_own_grids(self):
        rows = [{"name": "A", "recipe": "digits", "grids": {"w": [2, 7]}}, {"name": "B", "recipe": "digits"}]
        found = self.made(datasets=rows, methods=[MINE])

        losses_of = {method.title: method.loss for method in found.methods}
        assert losses_of == {f"M, w {w}": f"CrossEntropy + {w}*MACC" for w in (2, 7, 1)}
        titles = [{method.title for method in found.of_row(row)} for row in found.datasets]
        assert titles == [{"M, w 2", "M, w 7"}, {"M, w 1", "M, w 2"}]
        assert [
            m.title for m in self.made(datasets=[{**rows[0], "grids": {"w": [7]}}], methods=[MINE]).methods
        ] == ["M"]

    @pytest.mark.parametrize(
        ("other", "key"),
        [({"of": "M", "posthoc": "temperature"}, "of"), ({"loss": "CrossEntropy", "p_of": "M"}, "p_of")],
    )
    def test_nothing_is_made_of_several(self, other, key):
        with pytest.raises(
            ValueError, match=f"method 'T': {key}: with show: points 'M' is 2 methods; write their"
        ):
            self.made(methods=[MINE, {"name": "T", **other}])
        alone = self.made(methods=[MINE, {"name": "T", **other}], grids={"w": [3]})
        assert [method.title for method in alone.methods] == ["M", "T"]

    def test_all_of_them_count_against_the_limit(self):
        with pytest.raises(ValueError, match="this asks for 9 trainings, more than the limit of 8"):
            self.made(methods=[MINE], grids={"w": [1, 2, 3]}, limit=8)


@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("scale", ["smoke", "cpu", "full"])
def test_what_comes_with_the_package_is_valid(name, scale):
    experiment = experiments.load(name, scale=scale)

    assert experiment.title
    assert experiment.scale == scale
    for method in experiment.methods:
        assert method.loss is None or "{" in method.loss or losses.parse(half_of(method.loss, 2))


def test_the_runs_of_table_1_are_the_papers():
    """1 + 18 + 2 + 36 + 3 + 54 for each data set; the controls are ours."""
    experiment = experiments.load("table1", seeds=1)
    row = experiment.datasets[0]
    paper = row.model_copy(update={"methods": ["NLL", "NLL+MACC", "LS", "LS+MACC", "FL", "FL+MACC"]})

    assert experiment.trainings([paper]) == 114
    assert experiment.trainings([row]) == 114 + 1 + 3


def test_only_some_data_sets():
    assert [row.name for row in experiments.load("table1", datasets=["tinyimagenet", "SVHN"]).datasets] == [
        "Tiny-ImageNet",
        "SVHN",
    ]
    with pytest.raises(ValueError, match="has no data set 'CIFAR'; did you mean 'CIFAR10'"):
        experiments.load("table1", datasets=["CIFAR"])
    assert experiments.load("table7", datasets=["Photo"]).averages == {}


def test_a_data_set_is_taken_by_its_exact_name_first(tmp_path):
    rows = "\n".join(f"  - {{name: {name!r}, recipe: digits}}" for name in ("noise 1.0", "noise 10", "噪声"))
    path = written(tmp_path, f"datasets:\n{rows}\nmethods: [CrossEntropy]\n")

    for name in ("noise 1.0", "noise 10", "噪声"):
        assert [row.name for row in experiments.load(path, datasets=[name]).datasets] == [name]
    with pytest.raises(ValueError, match="mine: 'noise-10' may be 'noise 1.0' or 'noise 10'; write it as"):
        experiments.load(path, datasets=["noise-10"])
    with pytest.raises(ValueError, match="mine has no data set '数据'"):
        experiments.load(path, datasets=["数据"])


class TestPaper:
    """The printed values agree with each other as far as they must (PROTOCOL: identities and averages)."""

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
        assert paper_value(["table1"], "Mendeley", "test", "NLL", "sce") == pytest.approx(0.20698)
        assert paper_value(["table6"], "PACS", "Cartoon", "FL+MACC", "sce") == pytest.approx(0.1019)
        assert paper_value(["table4"], "SVHN", "test", "NLL+MbLS", "classwise_ece/0") == pytest.approx(0.0007)
        assert paper_value(["table1"], "CIFAR10", "test", "nothing", "ece") is None
        assert paper_value([], "CIFAR10", "test", "NLL", "ece") is None

    def test_the_first_table_that_has_a_value_gives_it(self):
        tables = ["table1", "table2"]
        assert paper_value(tables, "CIFAR10", "test", "FL+MACC", "ece") == 0.0059
        assert paper_value(tables, "CIFAR10", "test", "FL+MACC", "accuracy") == 0.9286
        assert paper_value(tables, "CIFAR10", "test", "FL+MDCA", "ece") == 0.0079

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
            titles = [method.title for method in experiment.of_row(row)]
            for method, values in printed["values"].items():
                assert method in titles
                assert {metric.partition("/")[0] for metric in values} <= set(experiment.columns)


def test_a_method_of_the_paper_keeps_its_grid_beside_other_settings(tmp_path):
    text = "datasets: digits\nmethods: [{method: NLL+MACC, set: {epochs: 5, head: {samples: 4}}}]\n"
    (method,) = experiments.load(written(tmp_path, text)).methods

    assert method.settings == {"head.p": "{p}", "epochs": 5, "head.samples": 4}
