"""Answers with a confidence and no class vector: `confidence` and `correct` are enough."""

import csv

import numpy as np
import pytest

import macc
from helpers.command import run
from macc import metrics, posthoc
from macc.metrics.correctness import metrics_of_answers


def answers(seed, count=1500):
    """Over-confident answers, of confidence c and right with probability c squared."""
    draw = np.random.default_rng(seed)
    confidence = draw.beta(5, 2, count)
    return confidence, draw.random(count) < confidence**2


def written(path, confidence, correct):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "confidence", "correct", "question"])
        writer.writerows(
            [i, c, bool(y), f"what is {i}"] for i, (c, y) in enumerate(zip(confidence, correct, strict=True))
        )
    return path


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "val.csv", *answers(0)), written(tmp_path / "test.csv", *answers(1))


def test_evaluate_measures_what_answers_have_and_says_what_was_taken(files):
    confidence, correct = answers(0)
    report = macc.evaluate(confidence, correct.astype(int), answers=True)

    assert set(report.metrics) == set(metrics_of_answers())
    assert "accuracy" not in report.metrics
    # By hand: the gap of each of 15 bins of confidence, weighted by its samples.
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = [abs((correct[bins == b] - confidence[bins == b]).sum()) for b in range(15)]
    assert report["positive_ece"].value == pytest.approx(sum(gaps) / len(correct))
    ended = run("evaluate", files[0])
    assert ended.code == 0
    assert str(report) in ended.out
    assert "Each sample is an answer" in ended.out
    streamed = run("evaluate", files[0], "--max-rows-in-memory", 10)
    assert "ECE, positive class" in streamed.out
    assert "Each sample is an answer" in streamed.out


def test_names_of_metrics_are_those_of_classes(files):
    assert "ECE, positive class" in run("evaluate", files[0], "--metrics", "ece").out
    ended = run("evaluate", files[0], "--metrics", "accuracy")
    assert ended.code == 2
    assert "accuracy needs a probability of every class, which answers do not have" in ended.err
    with pytest.raises(ValueError, match="eec is no metric"):
        metrics_of_answers(["eec"])


def test_check_keeps_a_limit_on_answers(files):
    assert run("check", files[0], "--max-ece", "0.5").code == 0
    ended = run("check", files[0], "--max-ece", "0.02")
    assert ended.code == 1
    assert "is above the limit of 2 %" in ended.out


def test_a_threshold_is_about_the_confidence_of_answers(files):
    confidence, correct = answers(0)
    found = posthoc.threshold(confidence, correct.astype(int), risk=0.2, answers=True)

    above = confidence >= found.threshold
    assert (found.accepted, found.wrong) == (above.sum(), (above & ~correct).sum())
    ended = run("threshold", files[0], "--risk", "0.2", "--check", files[1])
    assert str(found) in ended.out
    # Below one half an answer is not taken for the other class.
    low = posthoc.threshold(np.full(500, 0.3), np.ones(500, dtype=int), risk=0.1, answers=True)
    assert low.accepted == 500
    assert low.wrong == 0
    with pytest.raises(ValueError, match="answers have one confidence each"):
        posthoc.threshold(np.full((5, 3), 1 / 3), np.zeros(5, dtype=int), risk=0.1, answers=True)


@pytest.mark.parametrize("method", ["platt", "isotonic", "beta"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_calibrated_answers_are_a_file_of_answers(files, method, ending, tmp_path):
    output = tmp_path / f"out.{ending}"
    ended = run(
        "calibrate",
        "--resamples",
        "100",
        "--fit",
        files[0],
        "--apply",
        files[1],
        "--method",
        method,
        "-o",
        output,
    )
    assert ended.code == 0, ended.err

    again = run("evaluate", output, "--json", tmp_path / "numbers.json", "--metrics", "ece")
    assert again.code == 0, again.err
    confidence, correct = answers(1)
    before = metrics.positive_ece(confidence, correct.astype(int))
    logits = [np.log(np.column_stack([1 - c, c])) for c, _ in (answers(0), answers(1))]
    by_hand = posthoc.by_name(method).fit(logits[0], answers(0)[1].astype(int))(logits[1])[:, 1]
    assert f"{100 * metrics.positive_ece(by_hand, correct.astype(int)):.1f} %" in again.out
    assert metrics.positive_ece(by_hand, correct.astype(int)) < before / 3


def test_other_columns_come_along_and_later_answers_can_be_calibrated(files, tmp_path):
    run("calibrate", "--resamples", "100", "--fit", files[0], "--apply", files[1])
    with (tmp_path / "test-calibrated.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "confidence", "correct", "question"]
    assert rows[3]["question"] == "what is 3"

    ended = run("apply", tmp_path / "test-calibrated.json", files[0], "-o", tmp_path / "more.csv")
    assert ended.code == 0, ended.err
    assert run("evaluate", tmp_path / "more.csv").code == 0


def test_two_models_are_compared_by_their_answers(files, tmp_path):
    run("calibrate", "--resamples", "100", "--fit", files[0], "--apply", files[1])
    ended = run("compare", files[1], tmp_path / "test-calibrated.csv")

    assert ended.code == 0, ended.err
    assert "B better" in ended.out
    (tmp_path / "classes.csv").write_text("label,a,b\n" + "0,0.9,0.1\n" * 1500)
    assert run("compare", files[1], tmp_path / "classes.csv").code == 2


def test_answers_in_a_data_frame():
    frames = pytest.importorskip("polars")
    confidence, correct = answers(0)
    frame = frames.DataFrame({"confidence": confidence, "correct": correct})
    report = macc.evaluate(frame, labels="correct", probs="confidence", answers=True)

    assert report.to_dict() == macc.evaluate(confidence, correct.astype(int), answers=True).to_dict()


def test_what_is_not_about_answers_keeps_its_words(files):
    assert "leave --positive out" in run("evaluate", files[0], "--positive", "right").err
    ended = run("sets", "--fit", files[0])
    assert ended.code == 2
    assert "has no column 'label'" in ended.err


def test_answers_over_time_are_watched(tmp_path):
    """Honest answers give no alarm, over-confident ones do; a confidence below one half is not
    turned round.
    """
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.1, 0.9, 3000)
    for name, chance in (("honest", confidence), ("boastful", confidence**2)):
        correct = draw.random(3000) < chance
        rows = [
            f"{60 * i},{c},{'' if i % 10 == 0 else int(y)}"
            for i, (c, y) in enumerate(zip(confidence, correct, strict=True))
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,confidence,correct", *rows]))
    honest, boastful = (
        run("monitor", "log", tmp_path / f"{name}.csv", "--time", "time") for name in ("honest", "boastful")
    )

    assert honest.code == 0, honest.out + honest.err
    assert boastful.code == 1
    assert "2 700" in honest.out or "2700" in honest.out


def test_answers_get_a_map_that_moves_one_half_too(files):
    """At one half a temperature changes nothing."""
    ended = run("calibrate", "--fit", files[0], "--apply", files[1], "-o", "mended.csv", "--resamples", 100)

    assert ended.code == 0, ended.err
    assert "Platt (" in ended.out
    assert (
        "Temperature ("
        in run("calibrate", "--fit", files[0], "--apply", files[1], "--grid", "-o", "grid.csv").out
    )


@pytest.mark.filterwarnings("always:.* of the answers to ")
def test_wrong_claims_of_certainty_leave_room_for_the_others(tmp_path, monkeypatch):
    """A judge says one of a few values, often 1; what it is right at rises by steps in between."""
    monkeypatch.chdir(tmp_path)
    share = {0.5: 0.3, 0.7: 0.5, 0.9: 0.7, 1.0: 0.9}
    confidence = np.repeat(list(share), 100)
    correct = np.concatenate([np.arange(100) < 100 * each for each in share.values()])
    file = written(tmp_path / "judge.csv", confidence, correct)

    ended = run("calibrate", "--fit", file, "--apply", file, "--method", "platt", "-o", "mended.csv")

    assert ended.code == 0, ended.err
    assert "100 of the answers to fit to claim more than 99.9 % or less than 0.1 %" in ended.err
    with (tmp_path / "mended.csv").open(newline="") as mended:
        values = [float(row["confidence"]) for row in csv.DictReader(mended)][::100]
    assert np.abs(np.subtract(values, list(share.values()))).max() < 0.1
    applied = run("apply", "mended.json", file, "-o", "again.csv")
    assert "count as that much" in applied.err
    with (tmp_path / "again.csv").open(newline="") as again:
        assert [float(row["confidence"]) for row in csv.DictReader(again)][::100] == pytest.approx(values)


def test_an_npz_of_answers_is_refused_with_the_cure(tmp_path):
    np.savez(tmp_path / "answers.npz", confidence=[0.5, 0.9], correct=[0, 1])

    ended = run("evaluate", tmp_path / "answers.npz")

    assert ended.code == 2
    assert "it has confidence, correct; answers are columns of a .csv or .parquet" in ended.err
