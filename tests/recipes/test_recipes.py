"""Every recipe that comes with the package trains at the smoke scale, on small files in the true
layouts.
"""

import pytest

from helpers import trees
from macc import data, training
from macc.training import loading as recipes

pytest.importorskip("PIL")
# What a recipe of one data set stands for the others of; all are read by the tests of the data
# sets.
RECIPES = [
    "chest-xray-features",
    "fashion-mnist",
    "mendeley-legacy",
    "newsgroups",
    "pacs-a",
    "pacs-a-features",
    "pacs-b-art",
    "pacs-b-sketch-features",
    "svhn",
    "tiny-imagenet",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    trees.write_pacs(folder)
    trees.write_pacs_features(folder)
    trees.write_chest(folder)
    trees.write_chest_features(folder, train=200, test=20)
    trees.write_newsgroups_by_date(folder, 60, 10)
    trees.write_glove(folder)
    trees.write_svhn(folder, 2600, 300)
    trees.write_fashion(folder, train=2600, test=300)
    trees.write_tiny_imagenet(folder, 10, 60, 6)
    return folder


@pytest.fixture(autouse=True)
def _unchecked(tmp_path_factory, monkeypatch):
    """Small files have other checksums and sizes than the published ones."""
    read = data.load
    monkeypatch.setattr(data, "load", lambda name, **options: read(name, **{**options, "verify": False}))
    monkeypatch.setenv("MACC_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_and_predicts(name, root, tmp_path):
    run = training.fit(name, scale="smoke", root=root, out=tmp_path)

    assert run.finished
    assert run.recipe.scale == "smoke"
    assert 0 <= run.metrics["test"]["accuracy"]["value"] <= 1
    if name == "mendeley-legacy":
        # Statistics of the frozen backbone drift; test_models.py has that they stay with freeze_bn:
        # true.
        assert float(run.weights()["bn1.running_mean"].abs().max()) > 0
        assert recipes.load("mendeley").freeze_bn
    if name.startswith("pacs"):
        written = training.predict(run, data=run.recipe.dataset, root=root)
        tested = {"pacs-a": ["cartoon", "sketch"], "pacs-b-art": ["photo", "cartoon", "sketch"]}
        if name in tested:
            assert [path.stem for path in written] == tested[name]
            assert {path.parent.name for path in written} == {run.recipe.dataset}


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("scale", ["smoke", "cpu", "full"])
def test_every_recipe_names_what_there_is(name, scale):
    from macc import models

    recipe = recipes.load(name, scale=scale)

    assert recipe.dataset.partition(":")[0] in data.known()
    assert ":" in recipe.model or recipe.model in models.known()
    if scale != "full":
        assert recipe.pretrained is None  # nobody has to have a weight file to try


def test_a_missing_weight_file_is_one_sentence(root, tmp_path):
    with pytest.raises(ValueError) as caught:
        training.fit("pacs-a", root=root, out=tmp_path)

    assert str(caught.value) == (
        "recipe pacs-a: pretrained: there is no weight file resnet18-f37072fd.pth; put it there, say where it is "
        "with --set pretrained=PATH, or start fresh with --set pretrained=null"
    )
