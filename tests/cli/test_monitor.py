"""The monitor as a command: logs, states, kills, machines, and what it refuses."""

import csv
import json
import sys
from subprocess import check_output

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from helpers.command import run

NAMES = ["cat", "dog", "owl"]


def rows_of(count, seed=0, *, broken=False, start=0, labelled=True):
    """Rows of a log: time, id, three probabilities, label; ten a day."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(count, 3))
    labels = (logits + (4.0 if broken else 1.0) * rng.gumbel(size=logits.shape)).argmax(1)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return [
        [start + 600 * i, f"{seed}-{i}", *map(float, probs[i]), NAMES[labels[i]] if labelled else ""]
        for i in range(count)
    ]


def write(path, rows, header=("t", "id", *NAMES, "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


ROW = ("--time", "t", "--ignore", "id")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "good.csv", rows_of(1500))
    write(tmp_path / "bad.csv", rows_of(1500, broken=True))
    return tmp_path


def test_a_log_is_shown_and_the_alarm_is_the_exit_code(folder):
    good = run("monitor", folder / "good.csv", *ROW)
    bad = run(
        *("monitor", folder / "bad.csv", *ROW, "--window", "2d", "--json", folder / "n.json"),
        *("--plot", folder / "p.png", "--prometheus", folder / "m.prom"),
    )

    assert (good.code, good.err) == (0, "")
    assert "No alarm after 1 500 labels" in good.out
    assert (bad.code, bad.err) == (1, "")
    assert "ALARM: the model is less often right than it says" in bad.out
    numbers = json.loads((folder / "n.json").read_text())
    assert numbers["alarm"]["direction"] == "less often right than it says"
    assert sum(window["rows"] for window in numbers["windows"]) == 1500
    assert (folder / "p.png").stat().st_size > 5000
    text = (folder / "m.prom").read_text()
    assert 'macc_monitor_alarm{model=""} 1\n' in text
    assert 'macc_monitor_rows_total{model=""} 1500\n' in text


def test_kinds_of_files_and_times_agree(folder):
    rows = rows_of(1500)
    columns = dict(zip(("t", "id", *NAMES, "label"), map(list, zip(*rows, strict=True)), strict=True))
    columns["t"] = arrow.array([1000 * t for t in columns["t"]], arrow.timestamp("ms"))
    parquet.write_table(arrow.table(columns), folder / "good.parquet")
    one = run("monitor", folder / "good.csv", *ROW)
    two = run("monitor", "--time", "t", folder / "good.parquet", "--row-id", "id")

    assert two.code == 0, two.err
    assert one.out == two.out


def test_batches_one_by_one_give_what_the_log_gives(folder):
    rows = rows_of(1500)
    for number in range(3):
        part = rows[500 * number : 500 * (number + 1)]
        unlabelled = [[*row[:-1], ""] for row in part]
        early = write(folder / f"e{number}.csv", unlabelled)
        late = write(folder / f"l{number}.csv", part)
        for _ in range(2):  # given again, as after a kill
            assert run("monitor", "update", folder / "s.json", early, *ROW).code == 0
            again = run(
                "monitor", "update", folder / "s.json", late, *ROW, "--late", "--batch", f"late {number}"
            )
    whole = run("monitor", folder / "good.csv", *ROW)
    shown = run("monitor", "show", folder / "s.json")

    assert "was counted before; nothing to add" in again.out
    assert shown.out == whole.out


def test_machines_are_merged(folder):
    rows = rows_of(1500)
    for machine in range(2):
        part = write(folder / f"part{machine}.csv", rows[machine::2])
        run(
            *("monitor", "update", folder / f"s{machine}.json", part, *ROW),
            *("--stream", f"m{machine}", "--streams", 2, "--model", "pets"),
        )
    merged = run("monitor", "merge", folder / "s0.json", folder / "s1.json", "-o", folder / "all.json")

    assert (merged.code, merged.err) == (0, "")
    assert "No alarm after 1 500 labels" in merged.out
    assert run("monitor", "show", folder / "all.json").out == merged.out


# Forks and runs the command in children, which may kill themselves:
# ``python -c FORKING STEPS WORDS...``.
FORKING = """
import json, os, signal, sys
import macc.cli, macc.monitor, macc.monitor.logs, macc.monitor.report

sync, rename = os.fsync, os.replace

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def after(*names):
    rename(*names)
    die()

children = []
for step, words in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.fsync = die if step == "sync" else sync
        os.replace = die if step == "before" else after if step == "after" else rename
        sys.argv = ["macc", *words]
        try:
            macc.cli.main()
        finally:
            os._exit(0)
    children.append(child)
    if step:
        assert os.WTERMSIG(os.waitpid(children.pop(), 0)[1]) == signal.SIGKILL
        print(open(words[2]).read(), end="")
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


def forked(*commands):
    """Commands in processes of their own: killed at a step one after the other, or all at once."""
    words = json.dumps([[step, [str(word) for word in command]] for step, command in commands])
    return check_output([sys.executable, "-c", FORKING, words], text=True)


def test_a_state_survives_kills_at_every_step(folder):
    """A process is killed when it is about to sync the state, about to put it in place, and right
    after that.
    """
    state = folder / "s.json"
    batch = write(folder / "b.csv", rows_of(300, 5, start=10**7))
    run("monitor", "update", state, folder / "good.csv", *ROW)
    before = state.read_text()
    words = ["monitor", "update", state, batch, *ROW]
    states = forked(*((step, words) for step in ("sync", "before", "after"))).splitlines(keepends=True)
    again = run(*words)

    assert states[:2] == [before, before]
    assert states[2] == state.read_text() != before
    assert "was counted before" in again.out
    assert "1 800" in again.out


def test_two_at_a_time_lose_nothing(folder):
    state = folder / "s.json"
    paths = (folder / "good.csv", write(folder / "more.csv", rows_of(700, 3)))
    forked(
        *(
            ("", ["monitor", "update", state, path, *ROW, "--streams", 2, "--stream", path.stem])
            for path in paths
        )
    )

    assert "2 200" in run("monitor", "show", state).out


def refused(folder, *words):
    ended = run("monitor", *words)
    assert ended.code == 2, ended
    assert ended.err.count("\n") == 1
    return ended.err


def test_bad_logs_are_refused_with_their_line(folder):
    rows = rows_of(5)
    swapped = [rows[0], rows[2], rows[1], *rows[3:]]
    cases = [
        (rows, ("--time", "when"), "has no column 'when'; its columns are t, id"),
        ([["soon", *rows[0][1:]]], ROW, "line 2: 'soon' is no time"),
        ([["", *rows[0][1:]]], ROW, "line 2: there is no time"),
        (swapped, ROW, "line 4: the time 1970-01-01 00:10:00 is before 1970-01-01 00:20:00"),
        ([*rows[:3], rows[2]], ROW, "line 5: the row is the same as the one above it"),
        (
            [*rows[:3], rows[2]],
            ("--time", "t", "--row-id", "id"),
            "line 5: the row 0-2 of 1970-01-01 00:20:00",
        ),
        ([*rows[:3], [*rows[3][:-1], "cow"]], ROW, "line 5"),
        (rows, (*ROW, "--window", "1y"), "such as 1d"),
        (rows, (*ROW, "--alpha", "2"), "alpha must lie between 0 and 1"),
        (rows, (*ROW, "--plot", "x.txt"), "written as .png, .pdf or .svg"),
    ]
    for number, (content, words, message) in enumerate(cases):
        path = write(folder / f"case{number}.csv", content)
        assert message in refused(folder, path, *words)
    np.savez(folder / "p.npz", probs=np.full((2, 2), 0.5), labels=[0, 1])
    assert "a log is a .csv or .parquet" in refused(folder, folder / "p.npz", "--time", "t")


def test_a_state_is_untouched_by_what_is_refused(folder):
    state = folder / "s.json"
    run("monitor", "update", state, folder / "good.csv", *ROW, "--model", "pets", "--batch", "one")
    before = state.read_bytes()
    later = rows_of(50, 8, start=10**7)
    two = [[row[0], row[1], 0.5, 0.5, "cat"] for row in later]
    cases = [
        (later, (*ROW, "--model", "cars"), "is of the model 'pets', not of 'cars'"),
        (later, (*ROW, "--window", "2d"), "was begun with another --window"),
        (later, (*ROW, "--alpha", "0.05"), "was begun with another --alpha"),
        (
            later,
            (*ROW, "--baseline", folder / "good.csv", "--ignore", "t"),
            "was begun with another --baseline",
        ),
        (later, (*ROW, "--batch", "one"), "was counted before with another content"),
        (later, (*ROW, "--stream", "other"), "'other' is another one"),
        (later, (*ROW, "--late"), "more late labels than rows"),
        (rows_of(50, 8), ROW, "which was counted already"),
        ([*later[:20], later[0]], ROW, "line 22"),
    ]
    for number, (content, words, message) in enumerate(cases):
        path = write(folder / f"case{number}.csv", content)
        assert message in refused(folder, "update", state, path, *words)
        assert state.read_bytes() == before
    path = write(folder / "two.csv", two, ("t", "id", "cat", "dog", "label"))
    assert "is of a model with 3 classes" in refused(folder, "update", state, path, *ROW)
    other = write(folder / "other.csv", later, ("t", "id", "dog", "cat", "owl", "label"))
    assert "with the classes cat, dog, owl" in refused(folder, "update", state, other, *ROW)
    assert "counted before as 'one'" in refused(
        folder, "update", state, folder / "good.csv", *ROW, "--batch", "two"
    )
    state.write_text("{}")
    assert "is not the state of a monitor" in refused(folder, "update", state, folder / "good.csv", *ROW)
