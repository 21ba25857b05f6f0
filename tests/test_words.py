"""Text of other people is shown on one line, without anything that a terminal would obey."""

import os
import sys

import numpy as np
import pytest

import macc
from helpers.command import run
from macc.words import listed, quoted, shown


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain – 😀", "plain – 😀"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\r\nlines\x85\u2028", r"two\r\nlines\x85\u2028"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("a\u202eb\ufeff", r"a\u202eb\ufeff"),
        (os.fsdecode(b"caf\xe9"), r"caf\xe9"),
        ("می\u200cخواهم 1\u00a0000", "می\u200cخواهم 1\u00a0000"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, safe):
    assert shown(text) == safe
    assert quoted(text) == f"'{safe}'"
    shown(text).encode()


def test_long_text_is_cut():
    assert len(shown("x" * 10_000)) == 200
    assert shown("x" * 10_000, None) == "x" * 10_000
    assert listed(["a"] * 20) == ", ".join(["a"] * 12) + ", …"
    assert listed([]) == "none"


def test_class_names_in_tables_are_safe():
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet([1, 1], 50), rng.integers(0, 2, 50)
    text = str(macc.evaluate(probs, labels, classes=["a\x1b[2J\nb", "y" * 5000]))

    assert r"a\x1b[2J\nb" in text
    assert "\x1b" not in text
    assert "y" * 60 not in text  # the name is cut wherever it stands


def test_errors_of_the_command_line_are_one_safe_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("evaluate", "no\nsuch\x1b[31m.npz")
    assert (code, out) == (2, "")
    assert err.startswith("macc: no\\nsuch\\x1b[31m.npz does not exist")
    assert err.count("\n") == 1
    code, _, err = run("evaluate", "x" * 100_000 + ".npz")
    assert code == 2
    assert len(err) < 3000


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_file_name_that_is_not_utf8_is_shown_as_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.csv")
    (tmp_path / name).write_text("label,a\n")
    _, _, err = run("evaluate", name)

    assert r"caf\xe9.csv" in err
    err.encode()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
@pytest.mark.parametrize(
    "words",
    [
        ["compare", "{}.npz", "{}.npz"],
        ["plot", "reliability", "{}.npz", "-o", "{}.svg"],
        ["report", "{}.npz", "-o", "{}.html"],
    ],
)
def test_names_that_are_not_utf8_are_printed_drawn_and_written(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9")
    rng = np.random.default_rng(0)
    np.savez(f"{name}.npz", probs=rng.dirichlet([1, 1, 1], 60), labels=rng.integers(0, 3, 60))
    code, out, err = run(*(word.format(name) for word in words))

    assert code == 0, err
    assert r"caf\xe9" in out
    out.encode()


def test_control_characters_of_a_file_name_do_not_reach_standard_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a\x1b[2J.npz", probs=np.eye(2) * 0.8 + 0.1, labels=[0, 1])
    _, out, _ = run("compare", "a\x1b[2J.npz", "a\x1b[2J.npz")

    assert out.startswith("A  a\\x1b[2J.npz\n")
    assert "\x1b" not in out
