"""Columns of data frames as predictions."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import macc
from macc.metrics.frames import read_columns

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


@pytest.mark.parametrize(
    "kind", ["lists", "many parts", "fixed length", "polars", "polars arrays", "whole numbers"]
)
def test_a_column_of_lists_is_read_whatever_its_kind(kind):
    import polars
    import pyarrow as arrow

    lists = arrow.array(PROBS.tolist())
    fixed = arrow.FixedSizeListArray.from_arrays(PROBS.ravel(), 3)
    scores = {
        "lists": lists,
        "many parts": arrow.chunked_array([lists.slice(5, 60), lists.slice(0, 5), lists.slice(65)]),
        "fixed length": fixed,
        "polars": polars.from_arrow(lists),
        "polars arrays": polars.from_arrow(fixed),
        "whole numbers": arrow.array((PROBS.argmax(1)[:, None] == range(3)).astype(int).tolist()),
    }[kind]
    frame = polars.DataFrame({"p": scores, "y": LABELS}) if "polars" in kind else {"p": scores, "y": LABELS}
    found = read_columns(frame if "polars" in kind else arrow.table(frame), "y", "p", None).scores

    order = [*range(5, 65), *range(5), *range(65, 200)] if kind == "many parts" else range(200)
    expected = PROBS.argmax(1)[:, None] == range(3) if kind == "whole numbers" else PROBS[order]
    assert found.dtype == np.float64
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, 0.5], None], "the column 'p' has no list in row 1; leave such rows out"),
        ([[0.5, 0.5], [0.5, None]], "the column 'p' misses a number in row 1; leave such rows out"),
        ([[0.5, 0.5], [1.0]], "must have the same length, got 2 numbers in row 0 and 1 in row 1"),
        ([["0.5", "0.5"], ["a", "b"]], "the column 'p' must have a number in each row"),
    ],
)
@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_a_column_of_lists_that_are_no_scores_is_refused(library, rows, message):
    with pytest.raises(ValueError, match=message):
        macc.evaluate(frame_of(library, {"p": rows, "y": [0, 1]}), labels="y", probs="p")


@pytest.mark.parametrize(
    "kind", ["pandas", "polars", "pyarrow", "pandas lists", "polars lists", "pyarrow lists"]
)
def test_no_number_is_copied_more_than_once(kind):
    import pyarrow as arrow

    count, width = 200_000, 10
    scores = np.random.default_rng(0).random((count, width))
    library, _, lists = kind.partition(" ")
    if not lists:
        columns = {f"c{i}": scores[:, i].copy() for i in range(width)}
    elif library == "pandas":
        columns = {"p": list(scores)}
    else:
        columns = {
            "p": arrow.FixedSizeListArray.from_arrays(scores.ravel(), width).cast(
                arrow.list_(arrow.float64())
            )
        }
    frame = frame_of(library, {**columns, "y": np.zeros(count, int)})
    asked = "p" if lists else list(columns)
    read_columns(frame, "y", asked, None)  # imports
    Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
    before = memory("VmRSS")
    found = read_columns(frame, "y", asked, None)

    assert np.array_equal(found.scores, scores)
    # Labels and row numbers are a tenth each; lists of pandas are pointers beside.
    assert memory("VmHWM") - before < 1.5 * scores.nbytes


def memory(kind):
    """What the process holds (``VmRSS``) or held at most (``VmHWM``), in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return 1024 * int(line.split()[1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_column_is_the_probability_of_class_1(library):
    happened = LABELS == 1
    frame = frame_of(library, {"p": PROBS[:, 1], "yes": happened, "n": LABELS})
    report = macc.evaluate(frame, labels="yes", probs="p")

    assert report.to_dict() == macc.evaluate(PROBS[:, 1], happened.astype(int)).to_dict()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_labels_may_stand_beside_a_frame_of_the_classes(library):
    frame = frame_of(library, {name: PROBS[:, i] for i, name in enumerate(NAMES)})
    series = pytest.importorskip(library).Series
    expected = macc.evaluate(PROBS, LABELS, classes=NAMES, metrics=["ece"])

    for labels in (series(WORDS), series(LABELS), LABELS, WORDS):
        report = macc.evaluate(frame, labels, metrics=["ece"])
        assert report.to_dict() == expected.to_dict()
        assert "Taken of the frame: probabilities from 'cat', 'dog', 'owl'." in str(report)
    one = macc.evaluate(frame[["dog"]], series(LABELS == 1), metrics=["ece"])
    assert one["ece"] == macc.evaluate(PROBS[:, 1], (LABELS == 1).astype(int), metrics=["ece"])["ece"]
    told = macc.evaluate(PROBS, series(WORDS), classes=NAMES, metrics=["ece"])
    assert told.to_dict() == expected.to_dict()


def test_columns_of_pandas_may_be_numbered():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(PROBS).assign(y=LABELS)
    expected = macc.evaluate(PROBS, LABELS, metrics=["ece"])

    for probs in (None, [0, 1, 2]):
        assert macc.evaluate(frame, labels="y", probs=probs, metrics=["ece"])["ece"] == expected["ece"]
    one = macc.evaluate(frame.assign(y=LABELS == 1), labels="y", probs=1, metrics=["positive_ece"])
    assert one["positive_ece"] == macc.evaluate(PROBS[:, 1], (LABELS == 1).astype(int))["positive_ece"]


def test_columns_that_cannot_be_named_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(PROBS, columns=NAMES)
    with pytest.raises(ValueError, match="several columns of the frame are called 'cat'; give each a name"):
        macc.evaluate(pandas.concat([frame, frame], axis=1).assign(y=WORDS), labels="y", probs=NAMES)
    levels = frame.set_axis(pandas.MultiIndex.from_product([["p"], NAMES]), axis=1)
    with pytest.raises(ValueError, match="the columns of the frame have names of several levels"):
        macc.evaluate(levels, labels="y")
    lazy = pytest.importorskip("polars").LazyFrame({"y": WORDS})
    with pytest.raises(ValueError, match=r"LazyFrame is not in memory yet; pass its `.collect\(\)`"):
        macc.evaluate(lazy, labels="y")


def test_words_say_whether_answers_are_right():
    right = PROBS.argmax(1) == LABELS
    expected = macc.evaluate(PROBS.max(1), right.astype(int), answers=True)
    frame = frame_of("polars", {"confidence": PROBS.max(1), "correct": np.where(right, "Yes", "no")})

    report = macc.evaluate(frame, labels="correct", probs="confidence", answers=True)
    assert report.to_dict() == expected.to_dict()
    for words in (("false", "true"), ("wrong", "right")):
        assert (
            macc.evaluate(PROBS.max(1), np.array(words)[right.astype(int)], answers=True).to_dict()
            == expected.to_dict()
        )


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
        (
            {"age": [56], "a": [0.9], "b": [0.1], "y": [1]},
            {"labels": "y"},
            r"probs\[0\] sums to 57.*Taken of the frame: labels from 'y', probabilities from 'age', 'a', 'b'; probs=",
        ),
        ({"age": [56], "a": [0.9], "y": [7]}, {"labels": "y"}, "Taken of the frame: labels from 'y'"),
        (
            {"a": [0.9], "b": [0.9], "y": [1]},
            {"labels": "y", "probs": ["a", "b"]},
            r"probs\[0\] sums to 1.8[^…]*$",
        ),
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
