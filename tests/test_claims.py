"""What the pages say of the results in words is what the results say."""

import re

import pytest
from benchmarks import calibrated, fashion
from benchmarks._results import ROOT
from benchmarks.calibrated import BASE, METRICS, then, trained

FASHION = fashion.found()
LOW, MIDDLE = "NLL+MACC p 0.1", "NLL+MACC p 0.2"
MUCH, LITTLE = "NLL+dropout p 0.5", "NLL+dropout p 0.2"
DOUBLED = "NLL, logits \N{MULTIPLICATION SIGN} 2"
OWN = {method for method in trained(FASHION) if "MACC" in method}
SHIFTED = ("noise", "rotation")


def marked(sign, metric="nll", test="in domain", rule="last"):
    """The methods that differ from cross-entropy on Fashion-MNIST, both after a temperature."""
    verdicts = calibrated.against_base(FASHION, fashion.DATA, test, rule, metric)
    return {method for method, (_, mark) in verdicts.items() if mark == sign}


def against(own, rival, metric="nll", test="in domain"):
    """The sign of MACC against one of its simpler rivals, as its table has it."""
    rivals = [method for method in fashion.SIMPLER if method in trained(FASHION)]
    pairs = [(then(own), then(each)) for each in rivals]
    return dict(zip(rivals, fashion.signs(FASHION, test, metric, pairs), strict=True))[rival]


def everywhere(own, rival):
    """Every sign of a row of that table."""
    return {against(own, rival, metric, test) for test, metric in fashion.PLACES}


def between(first, second, metric="nll", test="in domain"):
    """The sign of one rate against another, as their table has it."""
    pairs = [pair for pair in fashion.RATES if {*pair} <= {*trained(FASHION)}]
    signs = fashion.signs(FASHION, test, metric, [(then(a), then(b)) for a, b in pairs])
    return dict(zip(pairs, signs, strict=True))[first, second]


def as_trained(metric="nll"):
    """Every method of Fashion-MNIST before a temperature."""
    return {method: fashion.value(FASHION, "in domain", metric, method) for method in trained(FASHION)}


CLAIMS = {
    "README.md": {
        "a network trained until it fits has a lower NLL with MACC than without, and as low a one with dropout": (
            lambda: against(LOW, BASE) == "+" and against(LOW, MUCH) == "·"
        ),
    },
    "docs/results.md": {
        "a network trained until it fits its images has a lower NLL with it than without, but plain "
        "dropout in the same place does as much": (
            lambda: LOW in marked("+") and MUCH in marked("+") and against(LOW, MUCH) == "·"
        ),
        "add dropout of p 0.5 before the classifier, or MACC at p 0.1; both lower the NLL that is left": (
            lambda: marked("+") == {MUCH, LOW}
        ),
        "as trained, on Fashion-MNIST, it had the highest NLL of all": (
            lambda: max(as_trained(), key=as_trained().get) in OWN
        ),
        "after a temperature it is nowhere significantly better there": (
            lambda: (
                not any(
                    OWN & marked("+", metric, test, rule)
                    for metric in METRICS
                    for test in SHIFTED
                    for rule in calibrated.RULES
                )
            )
        ),
        "Dropout at p 0.5 and MACC at p 0.1 have a significantly lower NLL, and both and MACC at p 0.2 a "
        "significantly lower SCE": (
            lambda: marked("+") == {MUCH, LOW} and marked("+", "sce") == {MUCH, LOW, MIDDLE}
        ),
        "No difference in ECE, accuracy or Brier score is significant in the last epoch": (
            lambda: not any(marked(sign, metric) for sign in "+-" for metric in ("ece", "accuracy", "brier"))
        ),
        "Under noise nothing is significantly better; under rotation only dropout at p 0.5 is": (
            lambda: (
                not any(marked("+", metric, "noise") for metric in METRICS)
                and {method for metric in METRICS for method in marked("+", metric, "rotation")} == {MUCH}
            )
        ),
        "Plain dropout at p 0.5 in the same head has no higher NLL than MACC at p 0.1 and a "
        "significantly lower one than MACC at p 0.2": (
            lambda: mended_nll(MUCH) <= mended_nll(LOW) and against(MIDDLE, MUCH) == "-"
        ),
        "MACC at p 0.1 keeps a significantly lower SCE": lambda: against(LOW, MUCH, "sce") == "+",
        "At the same rate of 0.2 the two do not differ significantly": (
            lambda: everywhere(MIDDLE, LITTLE) == {"·"}
        ),
        "doubling them does not change the NLL significantly": (
            lambda: DOUBLED not in marked("+") | marked("-")
        ),
        "MACC at p 0.1 has a significantly lower NLL than at p 0.2, and dropout at p 0.5 than at p 0.2": (
            lambda: between(LOW, MIDDLE) == between(MUCH, LITTLE) == "+"
        ),
    },
    "docs/results-after-temperature.md": {
        "cross-entropy on doubled logits is no better than cross-entropy, and MACC is significantly "
        "better than it in NLL and SCE": (
            lambda: (
                not any(DOUBLED in marked("+", metric) for metric in METRICS)
                and {against(own, DOUBLED, metric) for own in (LOW, MIDDLE) for metric in ("nll", "sce")}
                == {"+"}
            )
        ),
        "At the same rate of 0.2 no difference between MACC and plain dropout is significant": (
            lambda: everywhere(MIDDLE, LITTLE) == {"·"}
        ),
        "MACC at p 0.1 is significantly better than dropout at 0.2 in NLL, SCE and ECE": (
            lambda: {against(LOW, LITTLE, metric) for metric in ("nll", "sce", "ece")} == {"+"}
        ),
        "Against dropout at 0.5 it has the significantly lower SCE, no significant difference in NLL, "
        "and a significantly higher NLL under rotation": (
            lambda: (
                [
                    against(LOW, MUCH, "sce"),
                    against(LOW, MUCH),
                    against(LOW, MUCH, test="rotation"),
                ]
                == ["+", "·", "-"]
            )
        ),
        "MACC at p 0.2 has a significantly higher NLL than dropout at 0.5": (
            lambda: against(MIDDLE, MUCH) == "-"
        ),
    },
}


def mended_nll(method):
    return fashion.value(FASHION, "in domain", "nll", then(method))


@pytest.mark.parametrize(
    ("page", "claim"), [(page, claim) for page, claims in CLAIMS.items() for claim in claims]
)
def test_a_sentence_is_on_its_page_and_true(page, claim):
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())

    assert claim in text
    assert CLAIMS[page][claim]()
