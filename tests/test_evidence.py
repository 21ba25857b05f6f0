"""How the committed results are put together."""

from dataclasses import replace

import pytest
from benchmarks import seeds
from benchmarks.evidence import RESULTS

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
