"""The report: one file, whole, that shows hostile names and runs nothing but its own script."""

import base64
import hashlib
import html
import math
import re
import shlex
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import macc
from helpers.command import run
from helpers.report_runs import HOSTILE, IMAGE, digits_runs, hostile_csv, hostile_run, plain_run
from macc import posthoc, training
from macc.data import Part, Splits
from macc.metrics import Estimate, metrics_of
from macc.report import building, page
from macc.report.tables import _apart
from macc.tables import html_name

pytestmark = pytest.mark.xdist_group("report")


class Reader(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    shares = []
    assert page.write(digits_runs(), path, on_progress=shares.append) == path
    assert shares == sorted(shares)
    assert shares[-1] == 1
    return path.read_text()


def test_it_needs_nothing_outside_itself(written):
    reader = Reader(written)
    addresses = [
        value
        for _, attributes in reader.elements
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "srcset", "data")
    ]

    assert len(addresses) > 20
    assert all(value.startswith(("#", "data:")) for value in addresses)
    assert not re.search(r"url\((?!#)", written)
    assert "@import" not in written
    assert len(written) < 5e6


def test_only_its_own_script_may_run(written):
    reader = Reader(written)
    scripts = re.findall(r"<script>(.*?)</script>", written, re.DOTALL)
    assert len(scripts) == sum(tag == "script" for tag, _ in reader.elements) == 1
    policy = next(a["content"] for t, a in reader.elements if a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not any(name.startswith("on") for _, a in reader.elements for name in a)


def test_identifiers_are_unique_and_point_somewhere(written):
    reader = Reader(written)
    ids = [a["id"] for _, a in reader.elements if "id" in a]

    assert len(ids) == len(set(ids))
    for _, attributes in reader.elements:
        for name in ("href", "xlink:href"):
            if attributes.get(name, "").startswith("#"):
                assert attributes[name][1:] in ids
        for name in ("aria-controls", "aria-labelledby"):
            if name in attributes:
                assert attributes[name] in ids
    assert set(re.findall(r"url\(#([^)]*)\)", written)) <= set(ids)


def test_it_says_what_was_measured(written):
    text = Reader(written).text.replace("\u00a0", " ")
    run = training.open_run(digits_runs()[1])
    report = macc.evaluate(*run.predictions("test"), from_logits=True)

    assert f"NLL+MACC: {report.verdict()}" in text
    assert re.search(r"NLL\+MACC is (neither )?significantly .* calibrated than NLL\. Its ECE is ", text)
    assert "These runs have a reduced scale (smoke), not the paper's settings." in text
    assert "Worst calibrated classes: " in text or "No class has a calibration error" in text
    for word in ("CrossEntropy + 5*MACC(warmup=10)", "data_sha256", "dropout 0.2, 10 masks, sampled"):
        assert word in text
    for title in ("Is the confidence right?", "Under shift", "Certainty against confidence", "Training"):
        assert title in text


def test_the_table_has_the_numbers_of_the_metrics(written):
    run = training.open_run(digits_runs()[0])
    logits, labels = run.predictions("test")
    values = re.search(r'<table class="sortable" id="table-0">.*?</table>', written, re.DOTALL)[0]
    first = re.findall(r"<tr>.*?</tr>", values, re.DOTALL)[1]
    numbers = [float(value) for value in re.findall(r'data-value="([^"]*)"', first)]

    gap, *numbers = numbers
    confidence = logits.double().softmax(1).amax(1).mean()
    assert gap == pytest.approx(float(confidence) - macc.metrics.accuracy(logits, labels, from_logits=True))
    shown = [metric for metric in metrics_of(10).values() if metric.prominence <= 2]
    for metric, value in zip(shown, numbers, strict=True):
        assert value == pytest.approx(metric(logits, labels, from_logits=True))
    assert first.count("chance") == 4  # ECE, SCE, smooth ECE, MCE


def test_the_most_confident_mistakes_are_shown_with_their_images(written):
    logits, labels = training.open_run(digits_runs()[0]).predictions("test")
    confidence, predicted = logits.double().softmax(1).max(1)
    wrong = (predicted != labels).nonzero()[:, 0]
    order = wrong[confidence[wrong].argsort(descending=True)][:12]
    article = re.search(r'<article class="run" id="run-0".*?</article>', written, re.DOTALL)[0]
    shown = re.findall(r'alt="Sample (\d+), which is (\d)"', article)

    assert [(int(i), int(k)) for i, k in shown] == [(int(i), int(labels[i])) for i in order]
    assert article.count("data:image/png;base64,") == len(order)


def test_mistakes_on_texts_are_shown_with_their_words(tmp_path, monkeypatch):
    torch.manual_seed(0)
    words = ("", "<b>good</b>", "bad", "plain")

    def part(count):
        tokens = torch.randint(4, (count, 6))
        tokens[:, 0] = 1
        return Part(inputs=tokens, labels=torch.randint(2, (count,)))

    splits = Splits(
        name="reviews", kind="tokens", classes=("no", "yes"), train=part(60), val=part(20), test=part(20),
        vocabulary=4, words=words,
    )  # fmt: skip
    recipe = training.Recipe(
        dataset="reviews", model="mine", loss="CrossEntropy", epochs=1, batch_size=20,
        optimiser={"name": "sgd", "lr": 0.01},
    )  # fmt: skip
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(18, 2))
    run = training.fit(recipe, model=model, data=splits, out=tmp_path)
    monkeypatch.setattr("macc.report.sources.splits_for", lambda *_, **__: splits)
    text = page.write([run.path], tmp_path / "a.html").read_text()
    quoted = re.findall("<blockquote>(.*?)</blockquote>", text, re.DOTALL)

    assert quoted
    assert all(quote.startswith("&lt;b&gt;good&lt;/b&gt;") for quote in quoted)
    assert {word for quote in quoted for word in quote.split()[1:]} <= {
        "&lt;b&gt;good&lt;/b&gt;",
        "bad",
        "plain",
    }


def test_hostile_names_are_shown_and_not_run(tmp_path):
    paths = [hostile_run(tmp_path), hostile_csv(tmp_path)]
    title = "</title><script>window.hacked = 4</script>"
    text = page.write(paths, tmp_path / "a.html", title=title).read_text()
    reader = Reader(text)

    assert sum(tag == "script" for tag, _ in reader.elements) == 1
    assert not any("onerror" in attributes for _, attributes in reader.elements)
    assert all(
        attributes.get("src", "data:").startswith("data:")
        for tag, attributes in reader.elements
        if tag == "img"
    )
    for name in (HOSTILE, IMAGE, r"$\frac{", title, "<img src=x onerror=alert(3)>"):
        assert name in reader.text


def test_names_that_look_like_styles_leave_figures_whole(tmp_path):
    path = tmp_path / "font-family: zzz #0072b2.csv"
    path.write_text("label,a,b\n" + "a,0.9,0.1\nb,0.4,0.6\nb,0.8,0.2\n" * 20)
    text = page.write([path], tmp_path / "a.html").read_text()

    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert figures
    for figure in figures:
        ElementTree.fromstring(figure)
    assert any("font-family: zzz #0072b2" in figure for figure in figures)


def test_without_the_data_classes_are_numbered_and_it_says_so(tmp_path):
    path = hostile_run(tmp_path)
    (tmp_path / "evil.npz").unlink()
    text = Reader(page.write([path], tmp_path / "a.html").read_text()).text

    assert "there is no file" in text
    assert "sample" in text


def test_one_run_has_no_tabs_and_no_marks(tmp_path):
    text = page.write([plain_run()], tmp_path / "a.html").read_text()

    body = text.partition("</style>")[2]
    assert 'role="tab"' not in body
    assert 'class="best"' not in body
    assert "has no predictions under levels of shift; make them with" in text


def test_what_stands_between_backticks_is_code(tmp_path):
    text = page.write([plain_run()], tmp_path / "a.html", title="What `<b>` is").read_text()

    assert "<h1>What <code>&lt;b&gt;</code> is</h1>" in text
    assert re.search(r"make them with <code>macc predict \S+ --on digits</code>", text)
    assert "`" not in re.sub(r"<(script|style|pre)>.*?</\1>", "", text, flags=re.DOTALL)


def test_the_first_screen_answers_three_questions_and_names_a_repair_that_works(tmp_path):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(1500, 4))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(tmp_path / "sure.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "right.npz", logits=logits / 2, labels=labels)
    made = page.write([tmp_path / "sure.npz", tmp_path / "right.npz"], tmp_path / "r.html").read_text()
    answers = re.search(r'<dl class="answers">(.*?)</dl>', made, re.DOTALL)[1]
    said = Reader(answers).text.replace("\u00a0", " ")

    assert re.findall("<dt>(.*?)</dt>", answers) == [
        "How calibrated is it?",
        "Better than what?",
        "What to do next?",
    ]
    assert "right is significantly better calibrated than sure" in said
    before, after = map(
        float, re.search(r"Fit a temperature to sure \(ECE ([\d.]+) % → ([\d.]+) %", said).groups()
    )
    assert before == pytest.approx(100 * macc.metrics.ece(logits, labels, from_logits=True), abs=0.1)
    # By hand, the same halves: what is fitted to one is measured on the other.
    half = np.random.default_rng(0).permutation(1500) % 2 == 0
    fixed = np.empty_like(logits)
    for one in (half, ~half):
        fixed[~one] = posthoc.Temperature.fit(logits[one], labels[one])(logits[~one])
    assert after == pytest.approx(100 * macc.metrics.ece(fixed, labels), abs=0.1)
    assert "macc calibrate --fit VAL.npz --apply" in said
    # The picture stands beside the answers, and once.
    assert made.count("<strong>Is the confidence right?</strong>") == 1
    assert made.index("Is the confidence right?") < made.index('id="comparison"')


def test_the_next_steps_can_be_run(tmp_path):
    text = page.write([plain_run()], tmp_path / "a.html").read_text().partition('id="comparison"')[0]
    steps = [
        shlex.split(html.unescape(step)) for step in re.findall(r"<code>macc (.*?)</code>", text, re.DOTALL)
    ]

    assert [step[0] for step in steps][-1] == "threshold"
    for step in steps:
        result = run(*step, *(["-o", tmp_path / "out.npz"] if step[0] == "calibrate" else []))
        assert result.code in (0, 1), result.err


def test_names_break_beside_their_signs():
    shown = html_name("CrossEntropy + 5*MACC(warmup=10), p 0.2, my_run <b>")

    assert "CrossEntropy" in shown
    assert "MACC<wbr>(<wbr>warmup<wbr>=<wbr>10" in shown
    assert "0.2" in shown
    assert "my_<wbr>run" in shown
    assert "&lt;" in shown
    assert "<b>" not in shown


def test_captions_say_which_runs_a_figure_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "MOST_DRAWN", 1)
    paths = [plain_run(), *digits_runs()]
    text = page.write(paths, tmp_path / "a.html").read_text()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text.partition('id="runs"')[0], re.DOTALL)

    assert len(captions) >= 5
    for caption in captions:
        assert "Shown are the first 1 of 3 rows of the table; there was no room for " in caption
        assert "NLL+MACC." in caption


def test_runs_on_other_data_are_not_compared(tmp_path):
    text = Reader(page.write([plain_run(), hostile_csv(tmp_path)], tmp_path / "a.html").read_text()).text

    assert "calibrated than" not in text


def test_the_best_is_marked_where_its_interval_lies_apart():
    apart = [Estimate(0.02, 0.01, 0.03), Estimate(0.05, 0.04, 0.06), Estimate(0.08, 0.07, 0.09)]
    assert (_apart(apart, "lower"), _apart(apart, "higher")) == (0, 2)
    assert _apart([*apart, Estimate(0.035, 0.025, 0.045)], "lower") is None
    assert _apart([*apart, Estimate(0.5, math.nan, math.nan)], "lower") is None
    assert _apart(apart[:1], "lower") is None


def test_errors_leave_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="the report is an .html file"):
        page.write([plain_run()], tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="give at least one run folder"):
        page.write([], tmp_path / "a.html")
    with pytest.raises(ValueError, match="has no predictions 'nothing'"):
        page.write([plain_run()], tmp_path / "a.html", split="nothing")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_how_to_open_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("report", plain_run(), "-o", "a.html")

    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "report: a.html",
        f"  open it in a browser: {(tmp_path / 'a.html').as_uri()}",
    ]
    assert result.err == ""


def test_without_jinja_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r'pip install "macc-torch\[report\]"'):
        page.write([plain_run()], tmp_path / "a.html")
