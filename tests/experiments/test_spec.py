"""Experiment files: what they expand to, what they refuse and with which sentence."""

import pytest

from macc import experiments, losses
from macc.experiments.spec import half_of

PLAIN = "datasets: digits\nmethods: [CrossEntropy, CrossEntropy + MACC]\n"


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


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
        (PLAIN + "columns: [speed]\n", "no column is called 'speed'; there are accuracy"),
        (PLAIN + "paper: table9\n", "got 'table9'"),
        (PLAIN + "search: {sampler: tpe}\n", "`sampler: tpe` needs `trials`"),
        (PLAIN + "rules: [last, last]\n", "rules: 'last' is there twice; leave one out"),
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


def test_a_method_of_the_paper_keeps_its_grid_beside_other_settings(tmp_path):
    text = "datasets: digits\nmethods: [{method: NLL+MACC, set: {epochs: 5, head: {samples: 4}}}]\n"
    (method,) = experiments.load(written(tmp_path, text)).methods

    assert method.settings == {"head.p": "{p}", "epochs": 5, "head.samples": 4}


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

        titles = [[method.title for method in found.methods_on(row)] for row in found.datasets]
        assert titles == [["NLL", "M, w 1", "M, w 2"], ["NLL"]]

    def test_a_data_set_has_its_own_grids(self):
        rows = [{"name": "A", "recipe": "digits", "grids": {"w": [2, 7]}}, {"name": "B", "recipe": "digits"}]
        found = self.made(datasets=rows, methods=[MINE])

        losses_of = {method.title: method.loss for method in found.methods}
        assert losses_of == {f"M, w {w}": f"CrossEntropy + {w}*MACC" for w in (2, 7, 1)}
        titles = [{method.title for method in found.methods_on(row)} for row in found.datasets]
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
