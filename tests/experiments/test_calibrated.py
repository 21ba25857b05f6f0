"""Every method is tested as it was trained, and after the calibrators of its runs."""

from collections import Counter

import pytest

from helpers.made_up_runs import jobs_of, made_up, train
from macc import metrics
from macc.experiments import measure, tables
from macc.experiments.gather import gather
from macc.experiments.result import load_result
from macc.io.json import write_json
from macc.training.calibrating import fitted_to

METHODS = [
    {"name": "CE", "loss": "CrossEntropy"},
    {"name": "FL", "loss": "Focal"},
    {"name": "CE+MACC", "loss": "CrossEntropy + MACC"},
]


def experiment(tmp_path, seeds, calibrate="temperature", without=()):
    """Three methods whose logits have the wrong scale, and calibrators that know it."""
    values = {
        "columns": ["accuracy", "nll", "temperature"],
        "set": {"calibrate": calibrate},
        "tests": {"test": "test"},
    }
    ledger = made_up(tmp_path, seeds=seeds, methods=METHODS, **values)
    for title, scale in (("CE", 3.0), ("FL", 0.5), ("CE+MACC", 4.0)):
        for job in jobs_of(ledger, title, seeds=range(seeds)):
            run = train(ledger, job, scale=scale)
            if title not in without:
                found = fitted_to(*run.predictions("val"), calibrate, [str(i) for i in range(10)])
                found.save(run.path / "calibrator.json")
    return ledger


@pytest.mark.parametrize(("calibrate", "then"), [("temperature", "temperature"), ("auto", "its calibrator")])
def test_a_row_is_what_the_calibrators_of_its_runs_give(tmp_path, calibrate, then):
    ledger = experiment(tmp_path, 2, calibrate)
    result = gather(ledger)
    title = f"CE+MACC, then {then}"

    assert result.calibrated[title] == "CE+MACC"
    assert result.methods[3:] == list(result.calibrated)
    for seed, job in enumerate(jobs_of(ledger, "CE+MACC", seeds=range(2))):
        run = ledger.run(job)
        logits, labels = run.predictions("test")
        expected = metrics.nll(run.calibrator(logits.double()), labels)
        assert result.cell("digits", "test", title, "nll").values[seed] == pytest.approx(expected, rel=1e-6)
    raw, after = (result.cell("digits", "test", name, "nll").mean for name in ("CE+MACC", title))
    assert after < raw - 0.5
    if calibrate == "temperature":
        found = result.cell("digits", "test", title, "temperature")
        assert found.mean == pytest.approx(4, rel=0.2)


def test_methods_are_tested_among_their_kind(tmp_path):
    result = gather(experiment(tmp_path, 3))
    pairs = {(row.a, row.b) for row in result.comparisons}

    assert all((a in result.calibrated) == (b in result.calibrated) for a, b in pairs)
    macc = [row for row in result.comparisons if row.a == "CE+MACC, then temperature" and row.why != "best"]
    assert {(row.why, row.b) for row in macc} == {
        ("task", "CE, then temperature"),
        ("competitor", "FL, then temperature"),
    }
    said = [text for text in result.findings if text.startswith("digits, after calibration: ")]
    assert len(said) == len(metrics.headline())
    assert any(text.startswith("digits, “CE+MACC, then temperature” (ECE ") for text in result.findings)


def test_the_same_scale_is_the_same_method_after_it_is_mended(tmp_path):
    """The made-up methods differ in nothing but their scale."""
    result = gather(experiment(tmp_path, 3))

    assert result.best("digits", "test", "val_accuracy", "nll") == ["FL"]
    after = [result.cell("digits", "test", name, "nll").mean for name in result.calibrated]
    assert max(after) - min(after) < 0.02


def test_tables_and_files_have_both(tmp_path):
    result = gather(experiment(tmp_path, 2))
    table = next(iter(tables.tables(result)))

    assert [row[0].text for row in table.rows] == [
        *("CE", "FL", "CE+MACC"),
        *(f"{name}, then temperature" for name in ("CE", "FL", "CE+MACC")),
    ]
    write_json(tmp_path / "result.json", result.to_dict())
    again = load_result(tmp_path / "result.json")
    assert again.calibrated == result.calibrated
    old = {key: value for key, value in result.to_dict().items() if key != "calibrated"}
    write_json(tmp_path / "old.json", old)
    assert load_result(tmp_path / "old.json").calibrated == {}


def test_a_method_with_a_run_without_a_calibrator_is_raw_only(tmp_path):
    result = gather(experiment(tmp_path, 2, without=["FL"]))

    assert list(result.calibrated) == ["CE, then temperature", "CE+MACC, then temperature"]


def test_with_one_seed_files_are_read_and_predictions_resampled_once(tmp_path, monkeypatch):
    ledger = experiment(tmp_path, 1)
    reads, resampled = Counter(), []
    read, sampled = measure.read, measure.sampled_means
    monkeypatch.setattr(measure, "read", lambda path, name: reads.update([(path, name)]) or read(path, name))
    monkeypatch.setattr(
        measure, "sampled_means", lambda *args, **options: resampled.append(1) or sampled(*args, **options)
    )
    result = gather(ledger)

    assert {row.basis for row in result.comparisons} == {"samples"}
    assert set(reads.values()) == {1}
    assert len(resampled) == 6  # three methods before, three after
