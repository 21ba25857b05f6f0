"""What the pages say of the results in words is what the results say."""

import re
from statistics import fmean

import pytest
from benchmarks import calibrated, evidence, fashion, posthoc_page
from benchmarks._results import ROOT, read, versus
from benchmarks.calibrated import BASE, METRICS, then, trained
from benchmarks.posthoc_field import difference, means, win_rates

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


def gap(method, classes, size=5000, metric="nll", **options):
    """What a calibrator has more than the temperature on real networks, and the interval's ends."""
    values = means(posthoc_page.field(**options)[classes, size], metric)
    return difference(values, method)


def mean_brier(method, classes):
    return fmean(means(posthoc_page.field()[classes, 5000], "brier")[method].values())


def brier_wins(method, classes):
    return win_rates(means(posthoc_page.field()[classes, 5000], "brier"))[method]


SMS, SVS = "probmetrics SMS", "probmetrics SVS"
MAPS = ("VectorScaling", "MatrixScaling", "Dirichlet")
FEW = [(classes, size) for classes in (10, 100) for size in (1000, 500)]
OF_CALIBRATORS = {
    "With 5000 samples `Mixture` has the least NLL on every network": (
        lambda: all(
            own <= min(each[name] for each in values.values())
            for values in (means(posthoc_page.field()[k, 5000], "nll") for k in (10, 100))
            for name, own in values["Mixture"].items()
        )
    ),
    "It, local temperature, matrix, Dirichlet and vector scaling are better than the temperature "
    "beyond chance": (
        lambda: all(gap(name, k)[2] < 0 for name in ("Mixture", "LocalTemperature", *MAPS) for k in (10, 100))
    ),
    "With 1000 and 500 samples `Mixture` is the one to take with 10 classes, and local temperature "
    "scaling with 100": (
        lambda: all(
            gap({10: "Mixture", 100: "LocalTemperature"}[column[0]], *column)[0]
            <= min(gap(name, *column)[0] for name in ("Mixture", "LocalTemperature", *MAPS, SMS, SVS))
            for column in FEW
        )
    ),
    "where the mixture is close behind": (
        lambda: all(
            gap("Mixture", 100, size)[0] < gap("LocalTemperature", 100, size)[0] + 1e-3
            for size in (1000, 500)
        )
    ),
    "The maps of classes win little, and lose nothing beyond chance": (
        lambda: all(gap(name, *column)[1] <= 0 for name in MAPS for column in FEW)
    ),
    "SMS loses there with 100 classes": lambda: all(gap(SMS, 100, size)[1] > 0 for size in (1000, 500)),
    "Vector scaling is not behind the temperature with 100 classes at any of the three sizes": (
        lambda: all(gap("VectorScaling", 100, size)[0] <= 0 for size in (5000, 1000, 500))
    ),
    "In Brier score, with 5000 samples, `Mixture` is first in the mean and local temperature scaling "
    "second": (
        lambda: all(
            mean_brier("Mixture", k)
            <= mean_brier("LocalTemperature", k)
            <= min(mean_brier(name, k) for name in (*MAPS, SMS, SVS))
            for k in (10, 100)
        )
    ),
    "Vector, matrix and Dirichlet scaling are equal to SVS or better in the mean": (
        lambda: all(mean_brier(name, k) < mean_brier(SVS, k) + 5e-5 for name in MAPS for k in (10, 100))
    ),
    "with 10 classes SVS wins a few more duels than vector and matrix scaling do": (
        lambda: brier_wins(SVS, 10) > max(brier_wins(name, 10) for name in MAPS[:2])
    ),
    "Accuracy falls by about a tenth of a point of CIFAR-10 with matrix and Dirichlet scaling": (
        lambda: all(-0.2 < 100 * gap(name, 10, metric="accuracy")[0] < -0.05 for name in MAPS[1:])
    ),
    "`best` has the best mean rank of all except `Mixture`, which it nearly always takes": (
        lambda: (
            re.findall(r"\n\| (`\S+`) \|", posthoc_page.best())[:2] == ["`Mixture`", "`best`"]
            and int(re.search(r"took `Mixture` in (\d+) of", posthoc_page.choice())[1]) > 175
        )
    ),
}


def mended_nll(method):
    """NLL after a temperature."""
    return fashion.value(FASHION, "in domain", "nll", then(method))


def places(rival, metric, sign):
    """Where MACC differs from a rival as trained: data, test and form of it, once for each rule."""
    found = []
    for result in filter(None, map(read, evidence.COMPARED)):
        for dataset, test, rule in evidence.chosen_blocks(result):
            for method in (method for method in result.methods if "+MACC" in method):
                if rival == evidence.CONTROL and not evidence.same_rate(result, dataset, rule, method):
                    continue
                row = evidence.judged(result, dataset, test, rule, method)[rival]
                if row and row[metric][1] == sign:
                    found.append((result.name, evidence.where_of(test), method))
    return found


def contradicted_as_often(claim):
    """Whether a claim of the paper is found no more often than its contrary, in ECE or in SCE."""
    tally, _ = evidence.tallied()
    where, rival = evidence.CLAIMS[claim]
    return any(
        tally[where, rival, metric, "+"] <= tally[where, rival, metric, "-"] for metric in ("ece", "sce")
    )


def of_setting(method, test, rule):
    """The sign of a setting's ECE on digits against cross-entropy, without correction."""
    found = versus(read("ablation"), "digits", test, rule, "ece", method, BASE)
    return found.sign(-1, found.p)


ONLY_ON_SMOOTHING = "Over its task loss all gains in ECE are on label smoothing"
NO_OTHER_CLAIM = "no other claim is found more often than its contrary in both ECE and SCE"
AS_THE_PAPER_SAYS = {
    f"{ONLY_ON_SMOOTHING}; {NO_OTHER_CLAIM}": (
        lambda: (
            {method for *_, method in places("task loss", "ece", "+")} == {"LS+MACC"}
            and all(map(contradicted_as_often, list(evidence.CLAIMS)[1:]))
        )
    )
}

CLAIMS = {
    "docs/posthoc.md": OF_CALIBRATORS,
    "README.md": {
        "a network trained until it fits its images has a lower NLL with MACC; plain dropout does as much": (
            lambda: against(LOW, BASE) == "+" and against(LOW, MUCH) == "·"
        ),
    },
    "docs/results.md": {
        **AS_THE_PAPER_SAYS,
        "weight 10 and a start without warm-up have a higher ECE than cross-entropy under noise and "
        "rotation (p < .05, not corrected for the number of settings); in domain no rate differs "
        "significantly from it, nor does the closed form": (
            lambda: (
                {
                    of_setting(method, test, rule)
                    for method in ("weight 10", "from the first step")
                    for test in SHIFTED
                    for rule in evidence.RULES
                }
                == {"-"}
                and {
                    of_setting(method, "in domain", rule)
                    for method in (read("ablation").methods[1], "p 0.05", "p 0.5", "closed form")
                    for rule in evidence.RULES
                }
                == {"·"}
            )
        ),
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
    "docs/results-as-trained.md": {
        **AS_THE_PAPER_SAYS,
        "no gain in ECE or SCE is significant at the same dropout rate": (
            lambda: not any(places(evidence.CONTROL, metric, "+") for metric in ("ece", "sce"))
        ),
        "under shift it is significantly worse in ECE once (PACS from each domain, label smoothing) and in "
        "SCE twice (digits under rotation)": (
            lambda: (
                places(evidence.CONTROL, "ece", "-") == [("pacs_b", "other domains", "LS+MACC")]
                and [place[:2] for place in places(evidence.CONTROL, "sce", "-")]
                == 2 * [("digits", "rotation")]
            )
        ),
        "no gain under shift is significant over its task loss or that control": (
            lambda: (
                {
                    where
                    for rival in ("task loss", evidence.CONTROL)
                    for _, where, _ in places(rival, "nll", "+")
                }
                <= {"in domain"}
            )
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
        "as trained, without a temperature, MACC at 0.2 has the lower NLL of the two": (
            lambda: as_trained()[MIDDLE] < as_trained()[LOW]
        ),
    },
}


@pytest.mark.parametrize(
    ("page", "claim"), [(page, claim) for page, claims in CLAIMS.items() for claim in claims]
)
def test_a_sentence_is_on_its_page_and_true(page, claim):
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())

    assert claim in text
    assert CLAIMS[page][claim]()
