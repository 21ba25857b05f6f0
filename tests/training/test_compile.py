"""``compile: true``: what the compiler is asked for. It takes minutes on a cold machine, so it is
not called here.
"""

import pytest
import torch
from torch import nn

from helpers.small_training import own_recipe, trained
from macc.training.runs import run_hash


def test_each_shape_of_a_batch_is_compiled_by_itself(tmp_path, monkeypatch):
    """Code for any shape would depend on the shapes seen before, and a run that resumes has not
    seen them.
    """
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: asked.append((module, options)))
    run, model = trained(own_recipe(compile=True), out=tmp_path)
    trained(own_recipe(), out=tmp_path)

    ((module, options),) = asked
    assert module.model is model
    assert options == {"dynamic": False}
    assert run.weights().keys() == model.state_dict().keys()


def test_where_nothing_compiles_it_is_said(tmp_path, monkeypatch):
    def no_compiler(*_, **__):
        raise RuntimeError("no working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    with pytest.raises(
        ValueError,
        match=r"compile: torch.compile does not work here \(no working C\+\+ compiler found\); .* compile: false",
    ):
        trained(own_recipe(compile=True), out=tmp_path)


def test_it_is_part_of_the_hash_and_its_absence_is_not():
    plain, compiled = own_recipe(), own_recipe(compile=True)

    assert "compile" not in plain.deciding()
    assert run_hash(plain, "data") != run_hash(compiled, "data")
