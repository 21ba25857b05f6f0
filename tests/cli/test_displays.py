"""What a person sees while a command works."""

import io

import pytest
from rich.console import Console

from macc.cli import displays
from macc.metrics import headline

ROW = {
    "epoch": 3,
    "train/loss": 9.0,
    "train/CrossEntropy": 0.25,
    **{f"val/{name}": 0.125 for name in headline()},
}


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock is ten seconds later."""
    seconds = iter(range(10, 100_000, 10))
    monkeypatch.setattr(displays.time, "monotonic", lambda: float(next(seconds)))


def test_a_line_an_epoch_has_its_numbers_and_the_time_left(clock, capsys):
    lines = displays.Lines()
    lines.begin(epochs=12, steps=5, done=10)  # two epochs were done before
    lines.step(11)
    lines.epoch(ROW)
    lines.end()

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("epoch  3/12  CrossEntropy 0.250  | val accuracy 12.5")
    assert line.endswith("| 1 min 30 s left")  # ten seconds for one epoch, and nine are left


def test_a_bar_shows_the_epoch_and_the_numbers_of_the_last(clock):
    file = io.StringIO()
    bar = displays.Bar(Console(file=file, force_terminal=True, width=120))
    bar.begin(epochs=4, steps=5, done=0)
    bar.step(7)
    (task,) = bar.bar.tasks
    assert (task.description, task.completed) == ("epoch 2/4", 7)
    bar.say("checkpoint [written]")
    bar.epoch(ROW)
    bar.end()

    shown = file.getvalue()
    assert "epoch 4/4" in shown
    assert "after epoch 3: CrossEntropy 0.250" in shown
    assert "checkpoint [written]" in shown


def test_trainings_are_told_in_a_line_each(clock, capsys):
    listener = displays.Trainings()
    listener.total = 2
    listener.tell(("begin", "digits: Focal, seed 0"))
    listener.tell(("done", "digits: Focal, seed 0"))
    listener.tell(("say", "trying again"))

    assert capsys.readouterr().err.splitlines() == ["1/2  digits: Focal, seed 0  (10 s)", "trying again"]
