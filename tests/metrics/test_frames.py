"""Columns of data frames as predictions."""

import subprocess
import sys

import numpy as np
import pytest

import macc

narwhals = pytest.importorskip("narwhals", reason="the extra 'frames' is not installed")

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet([1, 1, 1], 200)
LABELS = np.array([RNG.choice(3, p=row) for row in PROBS])
NAMES = ["cat", "dog", "owl"]
WORDS = [NAMES[label] for label in LABELS]
COLUMNS = {
    **{name: PROBS[:, i] for i, name in enumerate(NAMES)},
    "y": WORDS,
    "id": [f"s{i}" for i in range(200)],
}


def frame_of(library, columns):
    if library == "pyarrow":
        return pytest.importorskip("pyarrow").table(columns)
    if library == "datasets":
        return pytest.importorskip("datasets").Dataset.from_dict(columns)
    return pytest.importorskip(library).DataFrame(columns)


LIBRARIES = ("pandas", "polars", "pyarrow", "datasets")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_gives_the_report_of_its_arrays_and_says_what_was_taken(library):
    expected = macc.evaluate(PROBS, LABELS, classes=NAMES)
    frame = frame_of(library, COLUMNS)

    for probs in (None, NAMES):
        report = macc.evaluate(frame, labels="y", probs=probs)
        assert report.to_dict() == expected.to_dict()
        assert [row.name for row in report.classes] == NAMES
        assert "Taken of the frame: labels from 'y', probabilities from 'cat', 'dog', 'owl'." in str(report)


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_may_be_indices_and_scores_lists_in_one_column(library):
    frame = frame_of(library, {"label": LABELS, "scores": PROBS.tolist()})

    assert macc.evaluate(frame, labels="label", probs="scores")["ece"] == macc.evaluate(PROBS, LABELS)["ece"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_column_is_the_probability_of_class_1(library):
    happened = LABELS == 1
    frame = frame_of(library, {"p": PROBS[:, 1], "yes": happened, "n": LABELS})
    report = macc.evaluate(frame, labels="yes", probs="p")

    assert report.to_dict() == macc.evaluate(PROBS[:, 1], happened.astype(int)).to_dict()


def test_the_order_of_columns_is_that_of_the_call():
    frame = frame_of("pandas", COLUMNS)
    report = macc.evaluate(frame, labels="y", probs=["owl", "cat", "dog"])

    assert report["ece"].value == pytest.approx(macc.evaluate(PROBS, LABELS)["ece"].value)
    assert [row.name for row in report.classes] == ["owl", "cat", "dog"]


def test_chosen_rows_of_a_data_set_are_what_is_read():
    chosen = list(range(150, 0, -3))
    dataset = frame_of("datasets", {"label": LABELS, "scores": PROBS.tolist()}).select(chosen)

    report = macc.evaluate(dataset, labels="label", probs="scores")
    assert report.to_dict() == macc.evaluate(PROBS[chosen], LABELS[chosen]).to_dict()


def test_other_names_of_classes():
    frame = frame_of("pandas", {"p_cat": PROBS[:, 0], "p_dog": PROBS[:, 1], "p_owl": PROBS[:, 2], "y": WORDS})
    with pytest.raises(
        ValueError, match="the label 'cat' is not the name of a class|is not the name of a class"
    ):
        macc.evaluate(frame, labels="y")

    assert macc.evaluate(frame, labels="y", classes=NAMES)["ece"] == macc.evaluate(PROBS, LABELS)["ece"]


@pytest.mark.parametrize(
    ("columns", "call", "message"),
    [
        (COLUMNS, {"labels": "Y"}, "the frame has no column 'Y'; did you mean 'y'"),
        (
            COLUMNS,
            {"labels": "y", "probs": ["cat", "dgo"]},
            "the frame has no column 'dgo'; did you mean 'dog'",
        ),
        (COLUMNS, {"labels": "y", "probs": ["cat", "cat"]}, "name each column of a class once"),
        (
            {"p": [0.5], "y": [1]},
            {"labels": "y"},
            "the frame has 1 columns of numbers beside 'y'; name those",
        ),
        (
            {"1": [0.5], "2": [0.5], "y": [1]},
            {"labels": "y"},
            "so is the name of the column '1', which is class 0",
        ),
        ({"a": [0.5], "b": [0.5], "y": [None]}, {"labels": "y"}, "the column 'y' has no label in some rows"),
        ({"a": [0.9], "b": [0.9], "y": [1]}, {"labels": "y"}, "sum"),
    ],
)
def test_what_cannot_be_is_refused(columns, call, message):
    with pytest.raises(ValueError, match=message):
        macc.evaluate(frame_of("pandas", columns), **call)


def test_a_name_of_a_column_needs_a_frame():
    with pytest.raises(ValueError, match="labels is the name of a column, and ndarray is no data frame"):
        macc.evaluate(PROBS, labels="y")
    with pytest.raises(ValueError, match="probs names columns of a data frame"):
        macc.evaluate(PROBS, LABELS, probs=["a"])
    with pytest.raises(ValueError, match="evaluate needs probabilities and labels"):
        macc.evaluate(PROBS)
    assert macc.evaluate(probs=PROBS, labels=LABELS)["ece"] == macc.evaluate(PROBS, LABELS)["ece"]


def test_without_narwhals_the_extra_is_named():
    code = (
        "import sys\nsys.modules['narwhals'] = None\nsys.modules['narwhals.stable.v2'] = None\nimport macc\n"
        "try:\n    macc.evaluate(object(), labels='y')\n"
        "except ValueError as error:\n    assert \"pip install 'macc-torch[frames]'\" in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
