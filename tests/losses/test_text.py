"""Reading losses from text: every failure is one sentence that points at the place."""

import pytest

from macc import losses


@pytest.mark.parametrize(
    "text",
    [
        "CrossEntropy",
        "Focal(gamma=3) + 10*MACC",
        "Focal(gamma=3) + 10*MACC(warmup=500)",
        "LabelSmoothing(alpha=0.05, over='all') + 5*MDCA(sync=False)",
        "CrossEntropy(weight=[0.25, 1, 3.5]) + 4*MMCE(legacy=True) + 0.1*MbLS(margin=6)",
        "Brier + DCA",
        "FLSD + 0*MACC",
        "CrossEntropy + 1e-05*MMCE(weighted=False, width=0.2)",
    ],
)
def test_what_is_printed_is_read(text):
    assert str(losses.parse(text)) == text


def test_spelling_is_free():
    expected = "Focal(gamma=2) + 10*MACC(warmup=5)"

    for text in (
        "  Focal( gamma = 2.0 )+MACC(warmup=5)*10 ",
        "10*MACC(warmup=5) + Focal(gamma=2)",
        "(Focal(gamma=2)) + (10*MACC(warmup=5))",
    ):
        assert str(losses.parse(text)) == expected
    assert str(losses.parse("CrossEntropy() + 10.0*MACC()")) == "CrossEntropy + 10*MACC"


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("Focl(gamma=3)", 1, "no loss is called 'Focl'; did you mean 'Focal'?"),
        ("CrossEntropy + 10*macc", 19, "did you mean 'MACC'?"),
        ("  Zebra", 3, "no loss is called 'Zebra'; there are ACLS, AvUC, BSCEGRA, Binary"),
        ("Focal(gama=3)", 12, "Focal has no knob 'gama'; did you mean 'gamma'?"),
        ("Focal(3)", 7, "write the knob's name, as in Focal(gamma=...)"),
        ("Focal(gamma=-1)", 1, "`gamma` must be a number at least 0, got -1"),
        ("Focal(gamma=x)", 13, "expected a number"),
        ("Focal(gamma=__import__('os'))", 13, "expected a number"),
        ("Focal(gamma=1e999)", 13, "expected a finite number"),
        ("Focal(**{'gamma': 3})", 9, "Focal has no knob None"),
        ("CrossEntropy + 10*Brier", 19, "only a penalty takes a weight"),
        ("CrossEntropy + Brier", 1, "got 2 task losses"),
        ("10*MACC", 1, "10*MACC is no criterion; it needs a task loss, as in CrossEntropy + 10*MACC"),
        ("MACC", 1, "MACC is no criterion"),
        ("CrossEntropy + -1*MACC", 16, "at least 0, got -1"),
        ("CrossEntropy + 'a'*MACC", 16, "got 'a'"),
        ("CrossEntropy - MACC", 1, "expected a loss"),
        ("CrossEntropy + 3", 16, "expected a loss"),
        ("CrossEntropy.__class__", 1, "expected a loss"),
        ("lambda: 0", 1, "expected a loss"),
        ("CrossEntropy +", 15, "not a sum of losses"),
        ("", 1, "not a sum of losses"),
        ("CrossEntropy\n  + 2*MACX", 20, "did you mean 'MACC'?"),
        ("Focal(gamma=3) + 10*MACC)", 25, "not a sum of losses"),
        ("Task", 1, "no loss is called 'Task'"),
        ("CE + MACC", 1, "did you mean 'CrossEntropy'?"),
        ("FL + MACC", 1, "did you mean 'Focal'?"),
        ("CrossEntropy  # the task\n + 10*MACC", 15, "a comment is not part of a loss"),
        ("Focal(gamma=1, gamma=2)", 22, "Focal is given 'gamma' twice"),
        ("Focal(gamma={[]: 1})", 13, "expected a number"),
        ("Focal(gamma=" + "9" * 400 + ")", 1, "`gamma` must be a number at least 0"),
        ("CrossEntropy(weight='abc')", 1, "one finite, non-negative number per class, got 'abc'"),
        ("CrossEntropy + '5'*MACC", 16, "got '5'"),
        ("CrossEntropy + ＭＡＣＣＣ", 16, "did you mean 'MACC'?"),
    ],
)
def test_a_mistake_is_pointed_at(text, place, reason):
    with pytest.raises(ValueError) as caught:
        losses.parse(text)

    message = str(caught.value)
    assert message.startswith(f"cannot read loss {text!r} at character {place}: ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["(" * 900, "-" * 900 + "1", "CrossEntropy+" * 76, "\x00", "\ud800", "[" * 400 + "]" * 400]
)
def test_hostile_text_is_a_value_error(text):
    with pytest.raises(ValueError):
        losses.parse(text)


def test_too_long_and_not_a_string():
    with pytest.raises(
        ValueError, match="1000 characters, got 1001; build one with so many class weights in Python"
    ):
        losses.parse("C" * 1001)
    with pytest.raises(ValueError, match="from a string, got NoneType"):
        losses.parse(None)
