"""Half precision where the processor has it, and a refusal where it needs an accelerator."""

import subprocess
import sys

import pytest
import torch

from helpers.small_training import own_recipe, tabular, trained
from macc.training._bf16 import ensure_bf16_runs


@pytest.fixture
def bf16():
    try:
        ensure_bf16_runs()
    except ValueError as error:
        pytest.skip(str(error))


def test_bf16_in_a_process_of_its_own(tmp_path):
    """On a machine that names matrix tiles and does not execute them, too."""
    command = ["train", "digits", "--scale", "smoke", "--set", "precision=bf16", "--out", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "macc", *command], capture_output=True, text=True, timeout=120
    )

    assert result.returncode == 0, result.stderr
    assert "cpu, bf16" in result.stdout or torch.accelerator.is_available()


@pytest.mark.usefixtures("bf16")
def test_bf16_trains_and_predicts_in_float32(tmp_path):
    run, model = trained(own_recipe(precision="bf16", loss="CrossEntropy + MACC"), out=tmp_path)
    logits, _ = run.predictions("test")
    x, _ = tabular()["test"]

    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(x), rtol=1e-6, atol=1e-6)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.usefixtures("bf16")
def test_recipes_of_different_precision_train_in_one_process(tmp_path):
    for precision in ("bf16", "fp32", "bf16"):
        run, _ = trained(own_recipe(precision=precision, epochs=1), out=tmp_path)
        assert run.recipe.precision == precision


def test_fp16_without_an_accelerator_is_refused(tmp_path):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(ValueError, match="precision: fp16 needs an accelerator .* write bf16 or fp32"):
        trained(own_recipe(precision="fp16"), out=tmp_path)
