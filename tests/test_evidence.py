"""How the committed results are put together."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import calibrated, ensembles, fashion, newsgroups_bag, people, seeds
from benchmarks._results import RESULTS

from macc import experiments
from macc.experiments.findings import add_findings
from macc.experiments.ledger import open_ledger
from macc.experiments.result import Result


@pytest.fixture(scope="module")
def digits() -> Result:
    return experiments.load_result(RESULTS / "digits.json")


def one_seed(result: Result, seed: int) -> Result:
    cells = [replace(cell, values=(cell.values[seed],), low=-1.0, high=-1.0) for cell in result.cells]
    runs = [run for run in result.runs if run.seed == seed]
    return replace(result, seeds=1, cells=cells, runs=runs, comparisons=[], findings=[])


def test_seeds_run_apart_give_what_they_give_together(digits, tmp_path):
    whole = experiments.load(RESULTS / "digits.yaml", scale=digits.scale)
    joined = seeds.together(whole, [one_seed(digits, seed) for seed in range(digits.seeds)])
    add_findings(joined, open_ledger(whole, tmp_path, None))

    def keyed(result):
        return {(c.dataset, c.test, c.method, c.rule, c.metric): c for c in result.cells}

    assert keyed(joined).keys() == keyed(digits).keys()
    for key, cell in keyed(digits).items():
        assert keyed(joined)[key].values == cell.values
        assert (keyed(joined)[key].low, keyed(joined)[key].high) == pytest.approx(
            (cell.low, cell.high), rel=1e-5, abs=1e-7
        )
        assert keyed(joined)[key].pooled == (None if cell.pooled is None else pytest.approx(cell.pooled))
    assert joined.findings == digits.findings
    assert [run.folder for run in joined.runs if run.method == "NLL"] == [
        run.folder
        for seed in range(digits.seeds)
        for run in digits.runs
        if run.method == "NLL" and run.seed == seed
    ]


def test_methods_run_apart_give_what_they_give_together(digits):
    whole = experiments.load(RESULTS / "digits.yaml", scale=digits.scale)
    first = one_seed(digits, 0)
    early = replace(first, cells=[cell for cell in first.cells if cell.method == "FL"])
    late = replace(first, cells=[cell for cell in first.cells if cell.method != "FL"])
    found = seeds.together(whole, [early, late])
    assert found.seeds == 1
    assert sorted(map(repr, found.cells)) == sorted(map(repr, first.cells))


def test_a_method_is_kept_before_the_next_one_is_trained(digits, tmp_path, monkeypatch):
    def stopped(_ledger, method, *, train):
        assert train
        if method.title == "LS":
            raise KeyboardInterrupt
        cells = [cell for cell in digits.cells if cell.method == method.title]
        return replace(one_seed(digits, 0), cells=[replace(c, values=c.values[:1]) for c in cells], runs=[])

    monkeypatch.setattr(seeds, "SEEDS", tmp_path)
    monkeypatch.setattr(seeds, "of_method", stopped)
    monkeypatch.setattr(
        seeds, "write_result", lambda result, path: path.write_text(experiments.render(result, "json"))
    )
    with pytest.raises(KeyboardInterrupt):
        seeds.keep("features", "full", 0, tmp_path, tmp_path, ["NLL", "LS"], train=True)
    kept = experiments.load_result(tmp_path / "features-0.json")
    assert {cell.method for cell in kept.cells} == {"NLL"}


def test_methods_after_their_calibrators_are_joined_too():
    fashion = experiments.load_result(RESULTS / "fashion.json")
    whole = experiments.load(RESULTS / "fashion.yaml", scale=fashion.scale)
    whole = whole.model_copy(update={"methods": [whole.method(title) for title in fashion.stages[0]]})
    joined = seeds.together(whole, [one_seed(fashion, seed) for seed in range(fashion.seeds)])

    assert (joined.methods, joined.calibrated) == (fashion.methods, fashion.calibrated)
    assert len(joined.calibrated) == len(fashion.stages[0]) > 0
    assert sorted((repr(c.values), c.method) for c in joined.cells) == sorted(
        (repr(c.values), c.method) for c in fashion.cells
    )


def test_what_is_complete_is_joined_and_the_rest_is_left(digits):
    def only(seed, *methods):
        part = one_seed(digits, seed)
        return replace(
            part,
            cells=[cell for cell in part.cells if cell.method in methods],
            runs=[run for run in part.runs if run.method in methods],
        )

    parts = [only(0, "NLL", "LS", "FL"), only(1, "NLL", "FL"), only(2, "NLL", "FL"), only(3, "NLL")]
    methods, kept = seeds.complete(digits.methods, parts)
    assert methods == {"NLL", "FL"}
    assert [{run.seed for run in part.runs} for part in kept] == [{0}, {1}, {2}]
    assert {cell.method for part in kept for cell in part.cells} == methods
    assert seeds.complete(digits.methods, []) == (set(), [])


def test_distances_to_people_are_those_by_hand():
    shares = torch.tensor([[0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
    given = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    assert people.distances(given, shares) == {"cross": pytest.approx(0.69315), "moved": 0.375}
    assert people.distances(shares, shares)["moved"] == 0
    assert people.distances(1 - shares, shares)["cross"] < 100  # an impossible label costs much, not all


def test_a_method_is_held_against_cross_entropy_treated_alike():
    fashion = experiments.load_result(RESULTS / "fashion.json")
    verdicts = calibrated.against_base(fashion, "Fashion-MNIST", "in domain", "last", "nll")
    verdict, mark = verdicts["NLL+MACC p 0.1"]
    own, base = (
        fashion.cell("Fashion-MNIST", "in domain", calibrated.then(method), "nll", "last")
        for method in ("NLL+MACC p 0.1", "NLL")
    )
    assert verdict.difference == pytest.approx(own.mean - base.mean)
    assert (mark, verdicts["NLL, logits \N{MULTIPLICATION SIGN} 2"][1]) == ("+", "·")


def test_a_text_is_the_mean_and_the_largest_vector_of_its_known_words():
    vectors = torch.tensor([[0.0, 0.0], [2.0, -4.0], [4.0, -2.0], [0.0, 0.0]])
    found = newsgroups_bag.features(torch.tensor([[0, 1, 2, 3], [0, 3, 0, 0]]), vectors)
    assert found.tolist() == [[3.0, -3.0, 4.0, -2.0], [0.0, 0.0, 0.0, 0.0]]


def kept(folder, seed, parts=("val", "test")):
    """A run folder with the logits of a validation and a test set."""
    (folder / "predictions" / "epochs").mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    for part in parts:
        labels = torch.arange(90) % 3
        logits = torch.eye(3)[labels] + torch.randn(len(labels), 3, generator=generator)
        np.savez(folder / "predictions" / f"{part}.npz", logits=logits.numpy(), labels=labels.numpy())
    return folder


def test_an_ensemble_is_the_mean_of_its_members_probabilities(tmp_path):
    def part(p, label=0):
        return {"val": (torch.tensor([[p, 1 - p]]).log(), torch.tensor([label]))}

    logits, _ = ensembles.together([part(0.9), part(0.5), part(0.1)])["val"]
    assert logits.exp().tolist() == [pytest.approx([0.5, 0.5])]
    with pytest.raises(ValueError, match="not the same val samples"):
        ensembles.together([part(0.9), part(0.9, label=1)])


def test_every_three_seeds_are_an_ensemble(tmp_path):
    different = ensembles.collected("NLL", [kept(tmp_path / str(seed), seed) for seed in range(4)])
    assert [row["seeds"] for row in different] == [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    assert all(row["together"]["nll"] < row["one"]["nll"] for row in different)

    (alike,) = ensembles.collected("NLL", [kept(tmp_path / f"again {copy}", 0) for copy in range(3)])
    assert alike["together"] == pytest.approx(alike["one"], abs=2e-5)


def test_a_training_that_is_repeated_must_be_the_same(tmp_path, monkeypatch):
    folder = kept(tmp_path / "run", 0, ["epochs/val-1", "epochs/val-2"])
    run = SimpleNamespace(path=folder, history=[{"val/nll": 0.5}, {"val/nll": 0.123456}])
    monkeypatch.setattr(fashion, "_again", lambda *_: {"NLL": run})
    monkeypatch.setattr(fashion, "DURING", tmp_path / "kept.json")
    rows = [{"method": "NLL", "seed": seed, "nll": [0.5, 0.12346]} for seed in (0, 1)]
    fashion.kept(rows)

    first, second = fashion.with_epochs(tmp_path, tmp_path, 0)
    assert len(first["sizes"]) == len(first["temperatures"]) == 2
    assert all(temperature > 0 for temperature in first["temperatures"])
    assert second == rows[1]

    fashion.kept([{**row, "nll": [0.5, 0.12345]} for row in rows])
    with pytest.raises(ValueError, match="seed 0 of NLL gave another validation NLL this time"):
        fashion.with_epochs(tmp_path, tmp_path, 0)
