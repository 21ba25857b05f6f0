"""The reliability diagram draws what the report says and nothing for empty bins."""

import subprocess
import sys

import pytest
from matplotlib.figure import Figure

import macc
from macc.report.figures import reliability_diagram
from test_metrics_errors import sample


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


def test_the_error_is_annotated_with_its_interval(report):
    ece = report["ece"]
    texts = [text.get_text() for text in reliability_diagram(report).axes[0].texts]

    assert any(
        f"ECE {100 * ece.value:.1f} % ({100 * ece.low:.1f} – {100 * ece.high:.1f})" in text for text in texts
    )


def test_it_draws_into_given_axes(report):
    figure = Figure()
    ax = figure.subplots()

    assert reliability_diagram(report, ax=ax) is figure
    assert figure.axes == [ax]
    assert ax.get_xlabel() == "confidence"


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
    with pytest.raises(ValueError, match=r'pip install "macc-torch\[report\]"'):
        reliability_diagram(report)
