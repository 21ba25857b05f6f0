"""Prediction sets: the promise over many fits, agreement with MAPIE, and the command."""

import json
import math

import numpy as np
import pytest
import torch

from helpers.command import run
from helpers.stored import arrays
from macc import posthoc
from macc.posthoc import _sets


def draw(size, classes=5, seed=0, sharpness=1.3):
    """Probabilities that are too sharp, and labels."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(size, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    exp = np.exp(sharpness * logits)
    return exp / exp.sum(1, keepdims=True), labels


def slow_scores(row, method, u, penalty, rank):
    """The score of each class of one sample, as the formula says."""
    if method == "lac":
        return 1 - row
    order = np.argsort(-row, kind="stable")
    scores, total = np.empty(len(row)), 0.0
    for place, k in enumerate(order, start=1):
        total += row[k]
        scores[k] = total - u * row[k] + penalty * max(0, place - rank)
    return scores


@pytest.mark.parametrize("method", _sets.METHODS)
@pytest.mark.parametrize("randomise", [False, True])
def test_sets_are_those_of_a_slow_loop(method, randomise):
    if method == "lac" and randomise:
        with pytest.raises(ValueError, match="nothing to randomise"):
            posthoc.Sets.fit(*draw(50), method=method, randomise=True)
        return
    probs, labels = draw(300)
    more = {"penalty": 0.05, "rank": 2} if method == "raps" else {}
    sets = posthoc.Sets.fit(probs, labels, method=method, randomise=randomise, seed=7, coverage=0.8, **more)
    drawn = [_sets.uniform(7, stage, 0, 300) if randomise else np.zeros(300) for stage in (0, 1)]
    penalty, rank = (0.05, 2) if method == "raps" else (0, 0)
    right = [
        slow_scores(row, method, u, penalty, rank)[k]
        for row, k, u in zip(probs, labels, drawn[0], strict=True)
    ]
    limit = sorted(right)[math.ceil(301 * 0.8) - 1]
    expected = [
        slow_scores(row, method, u, penalty, rank) <= limit + 1e-12
        for row, u in zip(probs, drawn[1], strict=True)
    ]

    assert sets.thresholds[0] == pytest.approx(limit, abs=1e-12)
    assert np.array_equal(sets(probs), expected)


class Given:
    """A classifier of MAPIE's that passes probabilities on."""

    def __init__(self, classes):
        self.classes_ = np.arange(classes)
        self.fitted_ = True

    def fit(self, *_):
        return self

    def predict_proba(self, probs):
        return probs

    def predict(self, probs):
        return probs.argmax(1)


class Same:
    """Random numbers that MAPIE and macc share: those of a seed, or zeros."""

    def __init__(self, seed):
        self.seed = seed

    def uniform(self, size):
        count = size if isinstance(size, int) else size[0]
        drawn = np.zeros(count) if self.seed is None else np.random.RandomState(self.seed).uniform(size=count)
        return drawn.reshape(size)


def same_numbers(monkeypatch, same):
    """Let macc draw these."""
    # Where it looks its functions up, however often the module was imported.
    names = posthoc.Sets._scores.__globals__
    monkeypatch.setitem(names, "uniform", lambda _, __, first, count: same.uniform(first + count)[first:])


def of_mapie(monkeypatch, method, seed, val, test, coverage, last):
    """MAPIE's fitted classifier and its sets, on the same random numbers."""
    reason = "MAPIE, the oracle of these tests, is not installed"
    classification = pytest.importorskip("mapie.classification", reason=reason)
    from mapie.conformity_scores.sets import aps
    from sklearn.base import BaseEstimator, ClassifierMixin

    monkeypatch.setattr(aps, "check_random_state", lambda _: Same(seed))
    kind = type("Passing", (Given, ClassifierMixin, BaseEstimator), {})
    fitted = classification.SplitConformalClassifier(
        kind(val[0].shape[1]), coverage, method, prefit=True, random_state=3
    ).conformalize(*val)
    options = None if method == "lac" else {"include_last_label": last}
    return fitted._mapie_classifier, fitted.predict_set(test, options)[1][:, :, 0]


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.97])
def test_lac_is_mapies(monkeypatch, coverage):
    val, (test, _) = draw(1500, seed=1), draw(2000, seed=2)
    theirs, expected = of_mapie(monkeypatch, "lac", None, val, test, coverage, last=None)
    sets = posthoc.Sets.fit(*val, coverage=coverage)

    assert sets.thresholds[0] == theirs.conformity_score_function_.quantiles_[0]
    assert np.array_equal(sets(test), expected)


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_aps_is_mapies(monkeypatch, coverage, seed):
    """With the same random numbers, and with none."""
    val, (test, _) = draw(1500, seed=1), draw(2000, seed=2)
    theirs, expected = of_mapie(monkeypatch, "aps", seed, val, test, coverage, last="randomized")
    same_numbers(monkeypatch, Same(seed))
    sets = posthoc.Sets.fit(*val, method="aps", coverage=coverage, randomise=seed is not None, seed=seed or 0)

    assert sets.thresholds[0] == pytest.approx(
        theirs.conformity_score_function_.quantiles_[0], rel=0, abs=1e-15
    )
    assert np.array_equal(sets(test), expected)


def raps_beside_mapie(monkeypatch, coverage, seed, last):
    """RAPS of both with the penalty that MAPIE chose, fitted to the samples that it did not choose
    with.
    """
    val, (test, _) = draw(1500, seed=1), draw(2000, seed=2)
    theirs, expected = of_mapie(monkeypatch, "raps", seed, val, test, coverage, last=last)
    score = theirs.conformity_score_function_
    from sklearn.model_selection import StratifiedShuffleSplit

    split = StratifiedShuffleSplit(n_splits=1, test_size=score.size_raps, random_state=3)
    kept, _ = next(split.split(*val))
    chosen = {"penalty": float(score.lambda_star), "rank": int(score.k_star[0])}
    options = {"randomise": seed is not None, "seed": seed or 0, **chosen}
    sets = posthoc.Sets.fit(val[0][kept], val[1][kept], method="raps", coverage=coverage, **options)

    assert sets.thresholds[0] == pytest.approx(score.quantiles_[0], rel=0, abs=1e-15)
    return sets, test, expected


@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_raps_is_mapies(monkeypatch, coverage):
    """Where ours are empty MAPIE keeps the likeliest class."""
    sets, test, expected = raps_beside_mapie(monkeypatch, coverage, None, last=False)
    ours = sets(test)
    empty = ~ours.any(1)
    ours[empty, test[empty].argmax(1)] = True

    assert np.array_equal(ours, expected)


@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_raps_with_random_numbers_is_mapies_where_the_formulas_meet(monkeypatch, coverage):
    """MAPIE divides by ``p - λ max(0, L - r0 - 1)`` in place of ``p`` where it draws for the class
    of rank L.

    That is the same up to L = r0 + 1. Beyond, the sets may differ in that one class and in no
    other.
    """
    same_numbers(monkeypatch, Same(11))
    sets, test, expected = raps_beside_mapie(monkeypatch, coverage, 11, last="randomized")
    ours = sets(test)
    ordered = -np.sort(-test, axis=1)
    ranks = np.arange(1, test.shape[1] + 1)
    summed = ordered.cumsum(1) + sets.penalty * np.maximum(ranks - sets.rank, 0)
    last = (summed < sets.thresholds[0]).sum(1) + 1
    meet = last <= sets.rank + 1

    assert meet.mean() > 0.2
    assert np.array_equal(ours[meet], expected[meet])
    assert (ours != expected).sum(1).max() <= 1


@pytest.mark.parametrize("options", [{}, {"per_class": True}, {"method": "aps", "randomise": True}])
def test_the_promise_is_kept_over_many_fits(options):
    """Mean coverage over 400 fits of 99 samples is at least 90 %, and at most 1 % more where scores
    have no ties.
    """
    inside, rows = [], 1500
    for repeat in range(400):
        probs, labels = draw(99 + rows, classes=3, seed=repeat)
        sets = posthoc.Sets.fit(probs[:99], labels[:99], coverage=0.9, seed=repeat, **options)
        held = sets(probs[99:])
        inside.append(held[np.arange(rows), labels[99:]].mean())
    # The coverage of a fit has a standard deviation of 0.03, so that the mean of 400 has one of
    # 0.0015.
    assert 0.9 - 0.005 < np.mean(inside) < (0.94 if options.get("per_class") else 0.91) + 0.005


def test_coverage_is_promised_for_each_class():
    """A class that the model neglects is covered too rarely by one threshold, and as promised by
    its own.
    """

    def neglected(seed):
        probs, labels = draw(6000, classes=3, seed=seed)
        probs = probs * [1, 1, 0.2]
        return probs / probs.sum(1, keepdims=True), labels

    val, test = neglected(1), neglected(2)
    common, own = (posthoc.Sets.fit(*val, per_class=each).measure(*test) for each in (False, True))

    assert common.classes[2].coverage < 0.8
    assert not own.fell_short
    for group in own.classes:
        assert group.coverage == pytest.approx(0.9, abs=0.03)


def test_shifted_samples_are_covered_less_often_and_it_says_so():
    val, test = draw(3000, seed=1), draw(3000, seed=2)
    sets = posthoc.Sets.fit(*val)
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(3000) < 0.3, rng.integers(0, 5, 3000), test[1])

    seen, shifted = sets.measure(*test), sets.measure(test[0], noisy)

    assert not seen.fell_short
    assert "Coverage is what 90 % allows for" in str(seen)
    assert shifted.coverage < 0.8
    assert shifted.fell_short
    assert "unlike those of the fit" in str(shifted)


def test_falling_short_by_chance_is_as_rare_as_promised():
    """Of 300 fits to samples like those measured, at most 5 % are said to fall short."""
    short = 0
    for repeat in range(300):
        probs, labels = draw(600, classes=3, seed=repeat)
        short += bool(
            posthoc.Sets.fit(probs[:300], labels[:300]).measure(probs[300:], labels[300:]).fell_short
        )
    # 300 draws of probability 0.05 exceed 27 with probability 0.001.
    assert short <= 27


def test_what_is_measured_is_what_is_there():
    val, (probs, labels) = draw(500, seed=1), draw(400, seed=2)
    sets = posthoc.Sets.fit(*val)
    held = sets(probs)
    seen = sets.measure(probs, labels)
    inside = held[np.arange(400), labels]

    assert (seen.all.samples, seen.all.covered) == (400, inside.sum())
    assert seen.mean_size == held.sum(1).mean()
    assert seen.all.empty == (held.sum(1) == 0).sum()
    assert sum(group.covered for group in seen.classes) == seen.all.covered
    assert seen.all.low < seen.coverage < seen.all.high
    assert str(seen).count("\n") >= 8


def test_kinds_of_input_and_rows_read_in_parts_agree():
    probs, labels = draw(500)
    sets = posthoc.Sets.fit(probs, labels, method="raps", randomise=True, seed=5)
    whole = sets(torch.from_numpy(probs))

    assert isinstance(whole, torch.Tensor)
    parts = np.concatenate([sets(probs[:123]), sets(probs[123:], first=123)])
    assert np.array_equal(whole.numpy(), parts)
    assert np.array_equal(sets(np.log(probs), from_logits=True), parts)
    two = posthoc.Sets.fit(probs[:, 1] / (probs[:, 0] + probs[:, 1]), np.minimum(labels, 1))
    assert two([0.2, 0.9]).shape == (2, 2)


def test_what_is_saved_is_read_back(tmp_path):
    probs, labels = draw(500)
    with pytest.warns(
        UserWarning, match="class 4 has fewer than the 9 samples that a coverage of 90 % needs"
    ):
        sets = posthoc.Sets.fit(probs[labels != 4], labels[labels != 4], per_class=True)
    sets.save(tmp_path / "sets.json", classes=list("abcde"))
    again = posthoc.Sets.load(tmp_path / "sets.json")

    assert again.thresholds == sets.thresholds
    assert math.isinf(again.thresholds[4])
    assert np.array_equal(again(probs), sets(probs))
    assert again(probs)[:, 4].all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"macc_sets": 2}, "does not say 'macc_sets': 1"),
        ({"thresholds": [0.1, 0.2]}, "one threshold"),
        ({"thresholds": "x"}, "lacks the list 'thresholds'"),
        ({"thresholds": ["x"]}, "must be numbers"),
        ({"counts": [-1]}, "counts must be whole"),
        ({"coverage": 2.0}, "coverage must lie between 0 and 1"),
        ({"method": "apps"}, "did you mean 'aps'"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"num_classes": 2.5}, "num_classes must be a whole number"),
        ({"penalty": -1}, "penalty must be"),
        ({"more": 1}, "more"),
        ({"classes": ["a"]}, "must name its 5 classes"),
    ],
)
def test_a_file_that_is_not_one_of_sets_is_refused(tmp_path, change, message):
    sets = posthoc.Sets.fit(*draw(100))
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({**sets.to_dict(), **change}))

    with pytest.raises(ValueError, match=message):
        posthoc.Sets.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 1.0}, "between 0 and 1, got 1.0"),
        ({"coverage": 90}, "0.9 is 90 %"),
        ({"method": "laq"}, "did you mean 'lac'"),
        ({"penalty": 0.1}, "those of raps"),
        ({"method": "raps", "rank": 1}, "together"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        posthoc.Sets.fit(*draw(100), **options)


def test_other_numbers_of_classes_are_refused():
    with pytest.raises(ValueError, match="there are 3 classes, and the sets were fitted to 5"):
        posthoc.Sets.fit(*draw(100))(draw(10, classes=3)[0])


@pytest.fixture
def files(tmp_path):
    for name, seed in (("val", 5), ("test", 4)):
        probs, labels = draw(1000, seed=seed, classes=3)
        np.savez(
            tmp_path / f"{name}.npz", probs=probs, labels=labels, classes=np.array(["cat", "dog", "owl"])
        )
    header = "id,cat,dog,owl"
    table = np.column_stack([np.arange(1000), draw(1000, seed=4, classes=3)[0]])
    np.savetxt(tmp_path / "new.csv", table, delimiter=",", header=header, comments="", fmt="%.17g")
    return tmp_path


def test_the_command_fits_measures_and_writes(files):
    fitted = run(
        *(
            "sets",
            "--fit",
            files / "val.npz",
            "--apply",
            files / "test.npz",
            "--method",
            "aps",
            "--randomise",
        ),
        *("--coverage", 0.8, "-o", files / "out.npz", "--json", files / "out-numbers.json"),
    )
    again = run(
        *("sets", "--load", files / "out.json", "--apply", files / "new.csv", "--ignore", "id"),
        *("-o", files / "new-sets.csv"),
    )

    assert (fitted.code, fitted.err) == (0, "")
    assert "APS, randomised with seed 0: 80 % coverage" in fitted.out
    assert "owl" in fitted.out
    written = arrays(files / "out.npz")
    assert written["sets"].shape == (1000, 3)
    inside = written["sets"][np.arange(1000), written["labels"]].mean()
    assert json.loads((files / "out-numbers.json").read_text())["all"]["coverage"] == inside
    assert (again.code, again.err) == (0, "")
    table = np.loadtxt(files / "new-sets.csv", delimiter=",", skiprows=1)
    assert (files / "new-sets.csv").read_text().splitlines()[0] == "id,cat,dog,owl"
    assert np.array_equal(table[:, 1:], written["sets"])


def test_the_command_exits_1_where_coverage_falls_short(files):
    probs, labels = draw(1000, seed=3, classes=3)
    np.savez(files / "shifted.npz", probs=probs, labels=np.roll(labels, 1))
    ended = run("sets", "--fit", files / "val.npz", "--apply", files / "shifted.npz")

    assert ended.code == 1
    assert "by more than chance explains" in ended.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --fit VAL"),
        (["--fit", "val.npz", "-o", "x.npz"], "-o x.npz is for the sets of --apply"),
        (["--load", "val.npz", "--apply", "test.npz"], "val.npz is not a file of sets"),
        (["--fit", "val.npz", "--coverage", "1.5"], "coverage must lie between 0 and 1, got 1.5"),
        (["--fit", "val.npz", "--apply", "new.csv", "--class-columns", "dog,cat,owl"], "the classes are"),
        (["--fit", "val.npz", "-o", "val.npz", "--apply", "test.npz"], "would overwrite an input"),
    ],
)
def test_the_command_refuses_what_means_nothing(files, monkeypatch, words, message):
    monkeypatch.chdir(files)
    ended = run("sets", *words)

    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
