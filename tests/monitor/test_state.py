"""The state: parts and machines give what the whole gives, and bad batches leave nothing behind."""

import json
import math

import numpy as np
import pytest

import macc
from macc.monitor import Monitor
from macc.monitor.times import moment, read_times, seconds

DAY = 86400.0


def draw(rows, seed=0, *, broken=False, start=0.0):
    """Probabilities, labels and times: a row a minute."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(rows, 3))
    labels = (logits + (3.0 if broken else 1.0) * rng.gumbel(size=logits.shape)).argmax(1)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, labels, start + 60.0 * np.arange(rows)


def without_batches(monitor):
    """All of a state except which batches it is of."""
    content = monitor.to_dict()
    for stream in content["by_stream"].values():
        del stream["batches"]
    return content


def close(one, two):
    """Whether two states agree but for the last digits of sums."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(close(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(close, one, two))
    return one == pytest.approx(two, rel=1e-9, abs=1e-9) if isinstance(one, float) else one == two


def test_windows_hold_what_happened_in_them():
    probs, labels, times = draw(4000)
    monitor = Monitor(3, window="1d")
    monitor.update(probs, labels, times, batch="a")
    day = (times // DAY) == 1
    window = monitor.windows()[DAY]
    report = macc.evaluate(probs[day], labels[day], metrics=["accuracy", "ece"])

    assert window.rows == window.labelled == day.sum()
    assert window.mean_confidence == pytest.approx(probs[day].max(1).mean())
    assert vars(window.accuracy()) == pytest.approx(vars(report["accuracy"]))
    assert window.ece().value == pytest.approx(report["ece"].value)
    assert window.ece().noise_floor == pytest.approx(report["ece"].noise_floor, rel=0.15)
    assert monitor.total().rows == 4000


def test_the_interval_of_the_error_contains_it():
    """Labels of 70 % accuracy at 80 % confidence: the error is 10 points, in at least 90 of 100
    samples.
    """
    hits = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        monitor = Monitor(2)
        monitor.update(np.full(300, 0.8), rng.random(300) < 0.7, np.arange(300.0), batch="a")
        found = monitor.total().ece()
        hits += found.low <= 0.1 <= found.high

    assert hits >= 90


def test_parts_late_labels_and_files_give_what_the_whole_gives(tmp_path):
    probs, labels, times = draw(3000)
    whole = Monitor(3)
    whole.update(probs, labels, times, batch="all")
    parts = Monitor(3)
    for number, at in enumerate(range(0, 3000, 500)):
        part = slice(at, at + 500)
        parts.update(probs[part], np.full(500, -1), times[part], batch=f"{number}")
        assert parts.windows()[0.0].labelled == min(at, 1440)
        parts.update(probs[part], labels[part], times[part], batch=f"{number} late", late=True)
        parts.save(tmp_path / "state.json")
        parts = Monitor.load(tmp_path / "state.json")

    assert close(without_batches(parts), without_batches(whole))


def test_rows_without_labels_have_an_estimated_accuracy():
    probs, labels, times = draw(5000)
    monitor = Monitor(3, tolerance=0.0, window="1w")
    monitor.update(probs, np.where(times < 2e5, labels, -1), times, batch="a")
    left = times >= 2e5
    found = monitor.total().estimated_accuracy(0.0, 0.0)

    assert found.value == pytest.approx(probs[left].max(1).mean())
    assert found.low < (probs.argmax(1) == labels)[left].mean() < found.high
    wider = monitor.total().estimated_accuracy(-0.05, 0.02)
    assert (found.low - wider.low, wider.high - found.high) == pytest.approx((0.05, 0.02))


def machines(*, broken=False):
    """Two machines that see every other row."""
    probs, labels, times = draw(4000, broken=broken)
    found = []
    for machine in (0, 1):
        monitor = Monitor(3, streams=2)
        monitor.update(
            probs[machine::2], labels[machine::2], times[machine::2], batch="a", stream=f"m{machine}"
        )
        found.append(monitor)
    return found


def test_machines_merge_in_any_order_and_as_often_as_one_likes():
    one, two = machines()
    both, other = Monitor._from_dict(one.to_dict()), Monitor._from_dict(two.to_dict())
    both.merge(two)
    other.merge(one)
    once = both.to_dict()
    both.merge(two)
    both.merge(other)

    assert both.to_dict() == once
    assert both.total().rows == 4000
    assert both.log_evidence == other.log_evidence
    expected = np.mean(
        [math.exp(each.streams[f"m{i}"].evidence.log_wealth()) for i, each in enumerate((one, two))]
    )
    assert math.exp(both.log_evidence) == pytest.approx(expected)
    # A machine goes on, and the merged state learns what is new.
    one.update(*draw(100, 9, start=1e7), batch="b", stream="m0")
    both.merge(one)
    assert both.total().rows == 4100


def test_an_alarm_of_a_machine_is_one_of_all():
    one, two = machines(broken=True)
    both = Monitor._from_dict(one.to_dict())
    both.merge(two)

    assert one.alarm is not None
    assert both.alarm.time == min(one.alarm.time, two.alarm.time)


def test_what_cannot_be_merged_is_refused():
    one, two = machines()
    with pytest.raises(ValueError, match="other monitors: alpha is 0.01 in one and 0.05 in the other"):
        one.merge(Monitor(3, alpha=0.05, streams=2))
    forked = Monitor._from_dict(one.to_dict())
    one.update(*draw(10, 5, start=1e7), batch="b", stream="m0")
    forked.update(*draw(10, 6, start=1e7), batch="c", stream="m0")
    with pytest.raises(ValueError, match="both states have batches of the stream 'm0'"):
        one.merge(forked)
    third = Monitor(3, streams=2)
    third.update(*draw(10), batch="a", stream="m2")
    one.merge(two)
    with pytest.raises(ValueError, match="3 streams, and the monitor was made for 2"):
        one.merge(third)
    with pytest.raises(ValueError, match="'m2' is another one"):
        one.update(*draw(10), batch="z", stream="m2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": "a"}, "the batch 'a' was counted before"),
        ({"times": [5e5, 4e5]}, "1970-01-05 15:06:40 is before 1970-01-06 18:53:20"),
        ({"times": [0.0, 1.0]}, "is before 1970-01-03"),
        ({"times": [9e9, math.nan]}, "times must be finite"),
        ({"times": [9e9]}, "they must pair up"),
        ({"labels": [0, 3]}, "labels must lie in"),
        ({"probs": [[0.5, 0.5], [0.5, 0.5]]}, "2 classes, and the monitor is of a model with 3"),
        ({"late": True, "times": [9e9, 9e9]}, "more late labels than rows"),
    ],
)
def test_a_bad_batch_leaves_nothing_behind(change, message):
    monitor = Monitor(3)
    monitor.update(*draw(3000), batch="a")
    before = json.dumps(monitor.to_dict())
    probs, labels, _ = draw(2)
    given = {"probs": probs, "labels": labels, "times": [9e9, 9e9], "batch": "b", **change}

    with pytest.raises(ValueError, match=message):
        monitor.update(**given)
    assert json.dumps(monitor.to_dict()) == before


def test_a_baseline_moves_what_is_expected():
    """A model that is 5 points too sure everywhere raises no alarm against itself, and one against
    its confidence.
    """
    rng = np.random.default_rng(0)
    right = rng.random(20_000) < 0.85
    known = right[:10_000] - 0.9
    plain, compared = Monitor(2), Monitor(2, baseline=known)
    for monitor in (plain, compared):
        monitor.update(np.full(10_000, 0.9), right[10_000:], np.arange(10_000.0), batch="a")

    assert plain.alarm is not None
    assert compared.alarm is None
    assert compared.settings.low < -0.05 < compared.settings.high
    assert compared.settings.limit == 2 / 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"macc_monitor": 9}, "does not say 'macc_monitor': 1"),
        ({"alpha": 3}, "alpha must lie between"),
        ({"low": 0.5}, "interval within"),
        ({"by_stream": {"a": {}}}, "must list its batches"),
        ({"by_stream": []}, "is not the state of a monitor"),
        ({"window": None}, "is not the state of a monitor"),
        ({"classes": 5}, "is not the state of a monitor"),
    ],
)
def test_a_file_that_is_no_state_is_refused(tmp_path, change, message):
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**Monitor(3).to_dict(), **change}))

    with pytest.raises(ValueError, match=message):
        Monitor.load(path)


@pytest.mark.parametrize("name", ["rows", "labelled", "bins"])
def test_sums_that_no_rows_can_have_are_refused(tmp_path, name):
    monitor = Monitor(3)
    monitor.update(*draw(10), batch="a")
    content = monitor.to_dict()
    content["by_stream"]["main"]["windows"]["0.0"][name] = -1
    (tmp_path / "state.json").write_text(json.dumps(content))

    with pytest.raises(ValueError, match="sums"):
        Monitor.load(tmp_path / "state.json")


def test_times_are_read_as_they_are_written():
    expected = [1772368200.0, 1772368200.5]
    texts = ["2026-03-01T12:30:00Z", "2026-03-01 13:30:00.5+01:00"]

    assert read_times(texts).tolist() == expected
    assert read_times(["1772368200", " 1772368200.5 "]).tolist() == expected
    assert read_times(np.array(expected)).tolist() == expected
    assert moment(expected[0]) == "2026-03-01 12:30:00"
    for bad in (["soon"], [""], ["nan"], np.array([math.nan])):
        with pytest.raises(ValueError, match="no time"):
            read_times(bad)
    for bad in ("1", "d", "0d", "-1h", "1y"):
        with pytest.raises(ValueError, match="such as 1d"):
            seconds(bad)
