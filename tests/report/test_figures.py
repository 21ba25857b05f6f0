"""Figures draw the numbers they are given: heights, places, names, and nothing for empty bins."""

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import macc
from helpers.predictions import sample
from macc import metrics
from macc.report import figures
from macc.report.figures import reliability_diagram
from macc.report.figures.style import LONGEST_NAME, line_look, look, plain, save


@pytest.fixture(scope="module")
def report():
    return macc.evaluate(*sample(300, 3, 3.0), metrics=["ece"], resamples=100)


def test_a_bar_for_every_filled_bin_and_none_for_empty_ones(report):
    figure = reliability_diagram(report)
    top, counts = figure.axes
    filled = [b for b in report.bins if b.samples]

    assert 0 < len(filled) < len(report.bins)
    accuracy, gaps = top.containers[0], top.containers[1]
    assert [bar.get_height() for bar in accuracy] == pytest.approx([b.accuracy for b in filled])
    assert [bar.get_height() for bar in gaps] == pytest.approx([b.confidence - b.accuracy for b in filled])
    assert len(counts.containers[0]) == len(filled)


def test_of_two_classes_the_positive_one_is_drawn():
    probs, labels = sample(300, 2, 3.0)
    report = macc.evaluate(probs, labels, metrics=["ece"], classes=["no", "yes_$"], resamples=100)
    top, counts = reliability_diagram(report).axes
    filled = [b for b in report.positive.bins if b.samples]

    assert [bar.get_height() for bar in top.containers[0]] == pytest.approx([b.accuracy for b in filled])
    assert top.get_ylabel() == r"share of class 'yes_\$'"
    assert counts.get_xlabel() == r"P(class 'yes_\$')"
    assert top.get_title().startswith(f"ECE of the positive class {100 * report['positive_ece'].value:.1f} %")
    assert f"top label {100 * report['ece'].value:.1f} %" in top.get_title()
    happens, mean = (float(line.get_xdata()[0]) for line in counts.lines)
    assert happens == pytest.approx(labels.mean())
    assert mean == pytest.approx(probs[:, 1].mean())


def test_bars_fade_with_the_samples_they_rest_on():
    """One sample in the last bin, hundreds in the others."""
    probs = np.array([[0.9, 0.05, 0.05]] + [[0.4, 0.3, 0.3], [0.5, 0.3, 0.2]] * 300)
    labels = np.array([0] + [0, 1] * 300)
    top, _ = reliability_diagram(macc.evaluate(probs, labels, metrics=["ece"], resamples=100)).axes
    full, full_too, single = (bar.get_facecolor()[3] for bar in top.containers[0])
    hatched = [bar.get_edgecolor()[3] for bar in top.containers[1]]

    assert single < 0.2 < 0.6 < min(full, full_too)
    assert hatched[-1] < 0.3 < 0.8 < min(hatched[:-1])
    legend = dict(zip(*reversed(top.get_legend_handles_labels()), strict=True))
    assert legend["accuracy"].get_facecolor()[3] == 0.75


def test_the_error_is_annotated_with_its_interval(report):
    ece = report["ece"]
    text = reliability_diagram(report).axes[0].get_title()

    assert f"ECE {100 * ece.value:.1f} % ({100 * ece.low:.1f} – {100 * ece.high:.1f})" in text
    assert f"by chance alone {100 * ece.noise_floor:.1f} %" in text


def test_it_draws_into_given_axes(report):
    figure = Figure()
    ax = figure.subplots()

    assert reliability_diagram(report, ax=ax) is figure
    assert figure.axes == [ax]
    assert ax.get_xlabel() == "confidence"


def test_a_report_draws_itself_and_notebooks_show_it(report):
    """Notebooks ask for ``_repr_png_``; every figure comes from one place and has it."""
    figure = report.plot()

    assert figure.axes[0].get_title() == reliability_diagram(report).axes[0].get_title()
    assert figure._repr_png_().startswith(b"\x89PNG")
    probs, labels = labelled()
    assert figures.risk_coverage({"mine": (probs, labels)})._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(b"\x89PNG")


def test_no_global_state_of_matplotlib_is_touched():
    code = (
        "import sys\n"
        "import macc\n"
        "from macc.report.figures import reliability_diagram\n"
        "assert 'matplotlib' not in sys.modules\n"
        "report = macc.evaluate([[0.8, 0.2], [0.4, 0.6]], [0, 0], metrics=['ece'], resamples=100)\n"
        "reliability_diagram(report)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_without_matplotlib_the_error_names_the_extra(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "macc.report.figures._figure", raising=False)
    with pytest.raises(ValueError, match=r'pip install "macc-torch\[report\]"'):
        reliability_diagram(report)


def labelled(n=400, k=4, seed=0, sharpness=1.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (logits * sharpness).softmax(1), labels


def test_several_diagrams_have_their_names_and_one_legend(report):
    figure = figures.reliability_diagrams({f"run {i}": report for i in range(5)})
    tops = [ax for ax in figure.axes if ax.get_ylabel() == "accuracy" or "run" in ax.get_title()]

    assert [ax.get_title().split("\n")[0] for ax in tops] == [f"run {i}" for i in range(5)]
    assert len(figure.legends) == 1
    assert sum(ax.axison for ax in figure.axes) == 10


def test_a_confidence_histogram_counts_every_sample_once():
    probs, labels = labelled()
    confidence, predicted = probs.max(1)
    (ax,) = figures.confidence_histogram(probs, labels, bins=10).axes
    heights = [0.0] * 10
    for bar in ax.containers[0]:
        heights[round(10 * (bar.get_x() + bar.get_width() / 2) - 0.5)] = bar.get_height()
    wanted = [
        100 * float(((confidence > i / 10) & (confidence <= (i + 1) / 10)).double().mean()) for i in range(10)
    ]

    assert heights == pytest.approx(wanted)
    assert len(ax.containers[0]) == sum(value > 0 for value in wanted)
    accuracy, mean = (float(line.get_xdata()[0]) for line in ax.lines)
    assert accuracy == pytest.approx(float((predicted == labels).double().mean()))
    assert mean == pytest.approx(float(confidence.mean()))


def test_the_confidence_of_mistakes_is_of_mistakes_alone():
    probs, labels = labelled(sharpness=2.0)
    confidence, predicted = probs.max(1)
    wrong = confidence[predicted != labels]
    (ax,) = figures.wrong_confidence(
        {"a": (probs, labels), "never wrong": (torch.eye(2), torch.arange(2))}, bins=5
    ).axes
    outline = ax.patches[0].get_data().values
    names = [text.get_text() for text in ax.get_legend().get_texts()]

    wanted = [100 * float(((wrong > i / 5) & (wrong <= (i + 1) / 5)).double().mean()) for i in range(5)]
    assert outline == pytest.approx(wanted)
    assert names[0].startswith(f"a: {len(wrong)} wrong of 400, mean confidence {100 * wrong.mean():.1f} %")
    assert names[1] == "never wrong: 0 wrong of 2"


def test_the_gap_of_certainty_is_over_samples_and_classes():
    generator = torch.Generator().manual_seed(0)
    moments = macc.LogitMoments(
        torch.randn(50, 3, generator=generator), torch.rand(50, 3, generator=generator)
    )
    gaps = (1 - moments.variance.tanh() - moments.mean.softmax(1)).abs()
    labels = torch.randint(3, (50,), generator=generator)
    (ax,) = figures.certainty_gap(moments, labels, bins=4).axes
    values = ax.patches[0].get_data().values

    wanted = [100 * float(((gaps >= i / 4) & (gaps < (i + 1) / 4)).double().mean()) for i in range(4)]
    assert list(values) == pytest.approx(wanted)
    ece = metrics.ece(moments.mean, labels, from_logits=True)
    assert f"mean {gaps.mean():.3f}; ECE {100 * ece:.2f} %" in ax.get_xlabel()


def test_groups_by_certainty_are_of_equal_size_and_in_its_order():
    probs, labels = labelled(600)
    certainty = torch.rand(600, 4, generator=torch.Generator().manual_seed(1))
    (ax,) = figures.sce_by_certainty(probs, labels, certainty, group=100).axes
    order = certainty.double().mean(1).argsort()
    points = ax.collections[0].get_offsets()

    wanted = [1000 * metrics.sce(probs[part], labels[part]) for part in order.split(100)]
    assert [float(y) for _, y in points] == pytest.approx(wanted)
    assert [float(x) for x, _ in points] == sorted(float(x) for x, _ in points)
    pearson = torch.corrcoef(torch.tensor(points.data.T))[0, 1]
    assert f"Pearson r {pearson:+.2f}".replace("-", "−") in ax.get_xlabel()
    with pytest.raises(ValueError, match="do not make two groups"):
        figures.sce_by_certainty(probs, labels, certainty, group=400)


def test_curves_over_epochs_are_means_over_seeds_with_their_range():
    (ax,) = figures.convergence({"a": [{1: 0.1, 2: 0.2}, {1: 0.3, 2: 0.2, 3: 0.9}]}, "sce").axes

    assert ax.lines[0].get_xdata().tolist() == [1, 2]
    assert ax.lines[0].get_ydata() == pytest.approx([200.0, 200.0])
    low, high = ax.collections[0].get_paths()[0].get_extents().intervaly
    assert (low, high) == pytest.approx((100.0, 300.0))
    with pytest.raises(ValueError, match="no metric is called 'mcc'; did you mean 'mce'"):
        figures.convergence({"a": [{1: 0.1}]}, "mcc")


def test_risk_coverage_ends_at_the_error_rate():
    probs, labels = labelled(1000)
    (ax,) = figures.risk_coverage({"a": (probs, labels)}).axes
    x, y = ax.lines[0].get_data()

    assert x[-1] == 100
    assert y[-1] == pytest.approx(100 * (1 - metrics.accuracy(probs, labels)))
    middle = min(range(len(x)), key=lambda i: abs(x[i] - 90))
    assert y[middle] == pytest.approx(
        100 * metrics.risk_at_coverage(probs, labels, coverage=x[middle] / 100), abs=1e-9
    )
    assert len(x) <= 300


def test_the_front_is_what_no_other_beats():
    from macc.report.figures._trade_offs import front

    points = {"a": (0.9, 0.01), "b": (0.9, 0.02), "c": (0.95, 0.03), "d": (0.8, 0.01), "e": (0.9, 0.01)}

    assert front(points) == ["a", "e", "c"]


def test_a_hostile_name_is_drawn_letter_by_letter():
    name = r"$\frac{</script>"
    figure = figures.wrong_confidence({name: labelled(), "_hidden": labelled(seed=1)})
    file = io.BytesIO()
    save(figure, file, "svg")

    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert shown[0].startswith(r"\$\frac{</script>:")
    assert shown[1].startswith("\u200b_hidden:")
    assert b"</script>" not in file.getvalue()


def test_long_names_keep_what_tells_them_apart():
    one, two = (plain(f"resnet50_imagenet_pretrained_finetuned_chest_xray_seed{seed}") for seed in (1, 2))

    assert one.endswith("seed1")
    assert two.endswith("seed2")
    assert len(one) == len(two) == LONGEST_NAME


def test_samples_are_those_whose_confidence_changes_most():
    from macc.report.figures._samples import contrast

    a, labels = labelled(300, seed=1)
    b, _ = labelled(300, seed=1, sharpness=0.7)
    b = b.flip(0).roll(3, 0).flip(0)  # other samples in part
    found = contrast(a, b, labels, 4)
    gains = [
        (float(b[i].max() - a[i].max()), i)
        for i in range(300)
        if a[i].argmax() == labels[i] and b[i].argmax() == labels[i]
    ]
    drops = [
        (float(a[i].max() - b[i].max()), i)
        for i in range(300)
        if a[i].argmax() != labels[i] and b[i].argmax() != labels[i]
    ]

    assert found.gains == [i for _, i in sorted(gains, reverse=True)[:4]]
    assert found.drops == [i for _, i in sorted(drops, reverse=True)[:4]]


def test_figures_look_the_same_whatever_the_users_style():
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "black", "text.color": "yellow"}):
        (ax,) = figures.confidence_histogram(*labelled()).axes
        assert matplotlib.rcParams["text.color"] == "yellow"

    assert ax.get_facecolor()[3] == 0
    assert ax.get_legend().get_texts()[0].get_color() != "yellow"


@pytest.mark.parametrize(("count", "shown"), [(3, "m1"), (7, "1")])
def test_many_models_on_a_front_are_numbered(count, shown):
    points = {
        f"m{k}": (metrics.Estimate(0.8 + k / 100, 0.7, 0.95), metrics.Estimate(0.02, 0.01, 0.03))
        for k in range(1, count + 1)
    }
    (axes,) = figures.pareto(points).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]

    assert axes.texts[0].get_text() == shown
    assert ("1  m1" in names) == (shown == "1")


def lightness(colour):
    """Of a colour printed in grey, from 0 to 1."""
    from matplotlib.colors import to_rgb

    return sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), to_rgb(colour), strict=True))


def test_every_line_of_a_figure_can_be_told_from_the_others():
    looks = [line_look(index, 300) for index in range(16)]

    assert len({each["color"] for each in looks[:8]}) == 8
    # Without colour.
    assert len({(each["marker"], each["fillstyle"]) for each in looks}) == 16
    for first in range(8):
        for second in range(first):
            one, other = look(first), look(second)
            grey = abs(lightness(one["color"]) - lightness(other["color"]))
            assert one["linestyle"] != other["linestyle"] or grey > 0.1
    # Markers of lines that lie on one another are seen all the same.
    starts = [each["markevery"][0] for each in looks[:8]]
    assert len(set(starts)) == 8


@pytest.mark.parametrize(("count", "beside"), [(2, False), (11, True)])
def test_a_legend_of_many_names_stands_beside_the_lines(count, beside):
    predictions = ([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])
    figure = figures.risk_coverage({f"run {k}": predictions for k in range(count)})
    (ax,) = figure.axes
    figure.draw_without_rendering()
    left = ax.get_legend().get_window_extent().x0

    assert (left >= ax.get_window_extent().x1) == beside
