"""Recipes: what they refuse and with which sentence, what `auto` stands for, where each value comes
from.
"""

import json
import random
from pathlib import Path

import pytest
import yaml

import macc
from macc.training import loading as recipes
from macc.training.loading import load
from macc.training.recipe import HeadSettings, OneCycle, Recipe

FOLDER = Path(macc.__file__).parent / "recipes"
PLAIN = "dataset: digits\nmodel: small_cnn\nloss: CrossEntropy\nepochs: 4\nbatch_size: 64\noptimiser: {name: sgd, lr: 0.1}\n"


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochz=3", "--set epochz=3: unknown key 'epochz'; did you mean 'epochs'?"),
        ("optimiser.lrr=3", "unknown key 'optimiser.lrr'; did you mean 'lr'?"),
        ("schedule.last_factor=1", "unknown key 'schedule.last_factor'; there are name, final, warmup"),
        ("subset.trian=3", "did you mean 'train'?"),
        ("optimiser.name=sgdd", "optimiser.name must be one of sgd, adam, adamw, got 'sgdd'"),
        ("optimiser={lr: 1}", "the key 'optimiser.name' is missing"),
        ("epochs=three", "epochs must be a valid integer, got 'three'"),
        ("epochs=true", "epochs must be a valid integer, got True"),
        ("epochs=0", "epochs must be greater than or equal to 1, got 0"),
        ("head=none", "head: 'CrossEntropy + MACC(warmup=240)' needs the variance"),
        ("head=yes please", "head must be 'auto' or 'none', got 'yes please'"),
        ("head.samples=1", "head.samples: 'CrossEntropy + MACC(warmup=240)' needs a variance"),
        ("head.p=2", "head.p must be less than 1, got 2"),
        ("accumulate=4", "write accumulate: 1, or penalty_batch: micro"),
        ("loss=Focal + MAC", "did you mean 'MACC'?"),
        ("schedule={name: multistep, milestones: [30]}", "epoch 30 is never reached in 24 epochs"),
        ("schedule={name: multistep, milestones: [3, 2]}", "must rise"),
        ("optimiser.lr=.nan", "optimiser.lr must be"),
        ("trackers=[wandb]", "must be 'tensorboard' or 'mlflow', got 'wandb'"),
        ("scale=huge", "scale must be 'smoke', 'cpu' or 'full', got 'huge'"),
        ("epochs", "`--set` takes key=value"),
        ("epochs=[1", "cannot be read"),
        ("self=1", "unknown key 'self'"),
        ("optimiser={name: adam, lr: 0.1, betas: [0.9, 1]}", "optimiser.betas.1 must be less than 1, got 1"),
        ("optimiser={name: sgd, lr: 0.1, momentum: 0, nesterov: true}", "optimiser: `nesterov: true` needs"),
        ("sgd=1", "unknown key 'sgd'"),
        ("optimiser.sgd=1", "unknown key 'optimiser.sgd'; there are name, lr"),
        ("head={null: 1}", "a key must be text, got None in head"),
        ("epochs=!!int", "uses the tag"),
        ("head=|\n  x", "head must be 'auto' or 'none', got 'x'"),
        ("schedule={name: multistep, milestones: [1], last_factor: x}", "schedule.last_factor must be"),
        (f"loss={'x' * 5000}", "1000 characters"),
        (f"head={'x' * 5000}", "must be 'auto' or 'none', got 'xxx"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_key_the_value_and_the_cure(change, message):
    with pytest.raises(ValueError) as caught:
        load("digits", overrides=[change])

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "digits" in str(caught.value) or "--set" in str(caught.value)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("seed: |\n  1\n", r"seed must be a valid integer, got '1\n'"),
        ("sgd: 1\n", "unknown key 'sgd'"),
        ("self: 1\n", "unknown key 'self'"),
        ("null: 1\n", "a key must be text, got None"),
        ("seed: !!timestamp x\n", "line 7 uses the tag 'tag:yaml.org,2002:timestamp'; tags are not read"),
    ],
)
def test_odd_yaml_is_one_sentence(tmp_path, added, message):
    with pytest.raises(ValueError) as caught:
        load(written(tmp_path, PLAIN + added))

    assert message in str(caught.value)


def test_a_recipe_may_end_in_a_block_of_text(tmp_path):
    text = PLAIN.replace("loss: CrossEntropy\n", "") + "loss: |  # as I like it\n  CrossEntropy\n"
    found = load(written(tmp_path, text))

    assert found.loss == "CrossEntropy\n"
    assert found.sources["loss"] == "as I like it"


def complaint(*args, **knobs):
    """What loading refuses a recipe with; nothing if it does not."""
    try:
        load(*args, **knobs)
    except ValueError as error:
        return str(error)
    return ""


def test_any_text_is_a_recipe_or_one_sentence(tmp_path):
    pieces = [
        "a", "1", "self", "null", "~", "sgd", "optimiser", "head", "name", "loss", "scales", "smoke", "CrossEntropy",
        ": ", ":", "\n", "\n  ", "\n    ", "- ", ", ", "[", "]", "{", "}", "? ", "|", ">", "#", " # why", "'", '"', "&a ",
        "*a", "!!int ", "!x ", "<<", "---", "...", "%", "@", "`", "\t", "\u2028", "\x85", "\r", "é", "1e5", "0x", "2020-13-45",
    ]  # fmt: skip
    draw = random.Random(0)
    found = []
    for _ in range(60):
        text = PLAIN
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(text) + 1)
            end = place + draw.choice([0, 0, 1, 8])
            text = text[:place] + "".join(draw.choices(pieces, k=draw.randint(1, 5))) + text[end:]
        found.append(complaint(written(tmp_path, text), scale=draw.choice(["full", "smoke"])))
        found.append(complaint("digits", overrides=[text[draw.randrange(len(text)) :]]))

    assert not any("\n" in sentence for sentence in found)
    assert sum(map(bool, found)) > 80


def test_class_weights_are_given_once():
    own = "CrossEntropy(weight=[1, 99])"

    assert load("digits", loss=own).loss == own
    with pytest.raises(
        ValueError, match=r"class_weight: .*99.* has class weights of its own, .* leave out one"
    ):
        load("digits", loss=own, overrides=["class_weight=balanced"])


def test_accumulation_is_allowed_where_it_changes_nothing_or_is_asked_for():
    assert load("digits", overrides=["accumulate=4", "penalty_batch=micro"]).accumulate == 4
    assert load("digits", loss="CrossEntropy + 0.1*MbLS", overrides=["accumulate=4"]).accumulate == 4
    with pytest.raises(ValueError, match="choose a divisor"):
        load("digits", loss="CrossEntropy", overrides=["accumulate=3"])


def test_another_name_takes_the_keys_of_the_old_one_away():
    given = [
        "optimiser.lr=0.002",
        "optimiser.name=adamw",
        "schedule.name=multistep",
        "schedule.milestones=[1]",
    ]
    changed = load("digits", loss="CrossEntropy", overrides=given)

    assert (changed.optimiser.name, changed.optimiser.lr, changed.schedule.milestones) == (
        "adamw",
        0.002,
        [1],
    )
    assert "as the paper's image runs" not in changed.to_yaml()
    same = load("digits", loss="CrossEntropy", overrides=["optimiser.name=sgd"])
    assert same.optimiser.momentum == 0.9
    with pytest.raises(
        ValueError, match="--set optimiser.name=adamw: the key 'optimiser.lr' is missing; .* add --set"
    ):
        load("digits", overrides=["optimiser.name=adamw"])


def test_of_two_settings_the_later_counts():
    whole = "optimiser={name: adamw, lr: 0.1}"
    with pytest.raises(ValueError, match="'optimiser.lr' is missing"):
        load("digits", overrides=[whole, "optimiser.name=sgd"])
    assert load("digits", overrides=["optimiser.name=adam", whole]).optimiser.name == "adamw"
    back = load("digits", overrides=["optimiser.lr=0.3", "optimiser.name=adamw", "optimiser.name=sgd"])
    assert (back.optimiser.name, back.optimiser.lr) == ("sgd", 0.3)


def test_a_hash_in_a_setting_is_no_comment(tmp_path):
    def dataset(value):
        recipe = load("digits", overrides=[f"dataset={value}"])
        (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
        assert load(tmp_path / "recipe.yaml").to_dict() == recipe.to_dict()
        return recipe.dataset

    assert dataset("arrays:my data #2.npz") == "arrays:my data #2.npz"
    assert dataset("#2") == "#2"
    assert dataset("'arrays:my data #2.npz'") == "arrays:my data #2.npz"
    assert load("digits", overrides=["optimiser={name: adam, lr: 0.1}"]).optimiser.lr == 0.1
    with pytest.raises(ValueError, match="epochs must be .*, got '3 # few'"):
        load("digits", overrides=["epochs=3 # few"])


def test_auto_is_resolved_by_what_the_loss_needs():
    steps = ["schedule={name: multistep, milestones: [10, 20]}"]
    with_macc = load("digits", overrides=steps).resolved()
    without = load("digits", loss="Focal(gamma=2)", overrides=steps).resolved()

    assert with_macc.head == HeadSettings(p=0.2)
    assert with_macc.schedule.last_factor == 0.02
    assert without.head == "none"
    assert without.schedule.last_factor == 0.1
    assert "last_factor: 0.02  # auto: the paper's MACC setting" in with_macc.to_yaml()
    assert "p: 0.2  # auto: a term needs variance" in with_macc.to_yaml()


def test_explicit_values_are_not_resolved_away():
    kept = load("digits", loss="CrossEntropy", overrides=["head={p: 0.5, samples: 1}"]).resolved()

    assert kept.head == HeadSettings(p=0.5, samples=1)


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("scale", ["smoke", "cpu", "full"])
def test_every_recipe_loads_at_every_scale_with_a_source_for_each_value(name, scale):
    recipe = load(name, scale=scale).resolved()
    text = recipe.to_yaml()

    assert recipe.scale == scale
    assert Recipe.model_validate(yaml.safe_load(text)) == Recipe.model_validate(recipe.to_dict())
    for line in text.splitlines():
        assert "  # " in line or line.endswith(":"), line


@pytest.mark.parametrize("name", recipes.names())
def test_the_files_name_a_source_for_every_value_they_set(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    for line in text.splitlines():
        bare = line.strip()
        if bare and not bare.startswith("#") and not bare.endswith((":", "{}")):
            assert "  # " in line, f"{name}: {line}"


def test_a_resolved_recipe_reads_back_with_its_sources(tmp_path):
    first = load("digits", scale="smoke", seed=3).resolved()
    again = load(written(tmp_path, first.to_yaml()))

    assert again.to_dict() == first.to_dict()
    assert again.to_yaml() == first.to_yaml()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "recipe: unknown key 'epoch'; did you mean 'epochs'?"),
        ({"epochs": 0}, "recipe: epochs must be greater than or equal to 1, got 0"),
        ({"loss": "Fokal"}, "recipe: loss: "),
        ({"optimiser": {"name": "sgd", "lr": -1}}, "recipe: optimiser.lr must be greater than 0, got -1"),
    ],
)
def test_a_mistake_in_python_is_one_sentence_too(changes, message):
    values = {"dataset": "digits", "model": "small_cnn", "loss": "CrossEntropy", "epochs": 1, "batch_size": 8}
    values |= {"optimiser": {"name": "sgd", "lr": 0.1}, **changes}
    with pytest.raises(ValueError) as caught:
        Recipe(**values)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_win_over_the_file_and_scale_over_its_values(tmp_path):
    path = written(tmp_path, PLAIN + "scales: {smoke: {epochs: 1, optimiser: {lr: 0.5}}}\n")

    assert load(path, scale="smoke").optimiser.lr == 0.5
    assert load(path, scale="smoke").optimiser.momentum == 0.9
    assert load(path, scale="smoke", overrides=["epochs=3"]).epochs == 3
    with pytest.raises(ValueError, match="has no scale 'cpu'; it has smoke, full"):
        load(path, scale="cpu")


def test_another_schedule_keeps_nothing_of_the_old_one(tmp_path):
    path = written(
        tmp_path,
        PLAIN
        + "schedule: {name: multistep, milestones: [2]}\nscales: {smoke: {schedule: {name: onecycle}}}\n",
    )

    assert load(path, scale="smoke").schedule == OneCycle(name="onecycle")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x\n", "aliases are not read"),
        ("epochs: 1\nepochs: 2\n", "line 2 has the key 'epochs' twice"),
        ("[1, 2]", "must be a mapping"),
        ("a: [", "cannot be read at line"),
        ("!!python/object/apply:os.system ['true']", "tags are not read"),
        ("[" * 5000, "cannot be read"),
        (PLAIN.replace("loss: CrossEntropy\n", ""), "the key 'loss' is missing"),
        ("#" * 1_000_001, "may have 1000000"),
        ("\x00", "cannot be read"),
        ("", "must be a mapping"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(ValueError) as caught:
        load(written(tmp_path, text))

    assert message in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_a_scale_that_changes_nothing_by_name_is_refused(tmp_path):
    path = written(tmp_path, PLAIN + "scales: {smoke: 3}\n")
    with pytest.raises(
        ValueError, match=r"mine.yaml: scales.smoke must map keys to the values they change.* got 3$"
    ):
        load(path, scale="smoke")


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="no recipe is called 'digit'; did you mean 'digits'?"):
        load("digit")
    with pytest.raises(ValueError, match="there is no file nothing.yaml"):
        load("nothing.yaml")


def test_scientific_notation_is_a_number(tmp_path):
    assert load(written(tmp_path, PLAIN + "clip: 1e-3\n")).clip == 0.001


def test_the_schema_for_editors_is_current():
    assert json.loads((FOLDER / "schema.json").read_text()) == recipes.schema()


def test_a_path_beyond_the_basic_plane_stays_as_it_is():
    """As JSON such characters are two halves, which YAML does not put together."""
    path = "arrays:/tmp/😀/embeddings.npz"
    for overrides in ({"dataset": path}, [f"dataset={path}"]):
        recipe = load("embeddings", overrides=overrides)
        assert recipe.dataset == path
        assert "😀" in recipe.to_yaml()


def test_a_shown_recipe_has_nothing_that_a_terminal_obeys_or_hides(tmp_path):
    text = load("digits").to_yaml().replace("dataset: digits", 'dataset: "arrays:a\\e[31m\\u202eb\\x9b.npz"')
    text = text.replace("# embedded in scikit-learn", "# turned \u202e around")
    recipe = load(written(tmp_path, text))

    assert recipe.dataset == "arrays:a\x1b[31m\u202eb\x9b.npz"
    first = recipe.to_yaml().splitlines()[0]
    assert first == r'dataset: "arrays:a\e[31m\u202Eb\x9B.npz"  # turned \u202e around'
    assert load(written(tmp_path, recipe.to_yaml())).dataset == recipe.dataset


def test_a_path_that_is_not_text_is_named_as_such():
    with pytest.raises(
        ValueError, match=r"^--set dataset=arrays:/tmp/\\xff.npz is not UTF-8 text; rename what"
    ):
        load("digits", overrides=["dataset=arrays:/tmp/\udcff.npz"])


def test_losses_of_independent_labels_are_refused():
    with pytest.raises(ValueError, match="loss: 'BinaryFocal' is for independent labels.*write CrossEntropy"):
        load("digits", loss="BinaryFocal")
