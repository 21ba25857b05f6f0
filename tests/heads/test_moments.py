"""Moments of a whole model, in one pass and by the conventional ten."""

import copy

import pytest
import torch
from torch import nn

import macc
from helpers.small_models import IMAGES, Body, Cnn
from macc import LogitMoments, MCDropoutLinear


class TestMoments:
    def test_runs_in_evaluation_mode_and_restores_every_mode(self):
        model = macc.attach(nn.Sequential(Body(), nn.Dropout(0.0), nn.Linear(6, 4)), estimator="analytic")
        model[1].p = 0.9
        model[0].bn.eval()
        statistics = model[0].bn.running_mean.clone()
        x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        first, second = macc.moments(model, x), macc.moments(model, x)

        torch.testing.assert_close(first, second)
        torch.testing.assert_close(model[0].bn.running_mean, statistics)
        assert model.training
        assert not model[0].bn.training
        torch.testing.assert_close(first.mean, model.eval()(x))

    def test_one_pass_through_the_body(self):
        model = macc.attach(Cnn()).eval()
        calls = []
        model.conv.register_forward_hook(lambda *_: calls.append(1))
        macc.moments(model, IMAGES, samples=20)

        assert len(calls) == 1

    def test_works_for_ordinary_dropout_when_told_how(self):
        model = macc.attach(Cnn(), samples=1)

        assert macc.moments(model, IMAGES, samples=10).variance.shape == (2, 4)
        with pytest.raises(ValueError, match="samples=10"):
            macc.moments(model, IMAGES)

    def test_a_head_with_layers_of_its_own_is_evaluated_too(self):
        inner = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))
        model = nn.Sequential(Body(), macc.MCDropout(inner, p=0.0))
        x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        before = copy.deepcopy(model.state_dict())
        output = macc.moments(model, x)

        torch.testing.assert_close(output.variance, torch.zeros(5, 4))
        torch.testing.assert_close(dict(model.state_dict()), dict(before))
        assert inner.training

    def test_a_compiled_model(self):
        torch._dynamo.reset()
        plain = macc.attach(Cnn(), estimator="analytic")
        model = torch.compile(plain, backend="eager")
        model(IMAGES)
        model.eval()(IMAGES)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(macc.moments(model, IMAGES), macc.moments(plain, IMAGES))

    def test_a_head_called_by_keyword_or_twice(self):
        class Keyword(Cnn):
            def forward(self, x):
                return self.fc(input=Body.forward(self, x))

        class Never(Cnn):
            def forward(self, x):
                return Body.forward(self, x)

        assert macc.moments(macc.attach(Keyword()), IMAGES).mean.shape == (2, 4)
        twice = macc.attach(Cnn())
        twice.after = lambda logits: twice.fc(torch.zeros(2, 6))
        with pytest.raises(ValueError, match="2 times and not once"):
            macc.moments(twice, IMAGES)
        with pytest.raises(ValueError, match="0 times and not once"):
            macc.moments(macc.attach(Never()), IMAGES)

    def test_two_heads_are_ambiguous(self):
        model = nn.Sequential(MCDropoutLinear(6, 6), MCDropoutLinear(6, 4))
        with pytest.raises(ValueError, match=r"2 MC-dropout heads \(0, 1\)"):
            macc.moments(model, torch.zeros(1, 6))


class TestConventional:
    def test_passes_go_through_the_whole_network(self):
        model = macc.attach(Cnn(), samples=4)
        calls = []
        model.conv.register_forward_hook(lambda *_: calls.append(1))
        output = macc.conventional_moments(model, IMAGES, samples=6)

        assert len(calls) == 6
        assert output.variance.shape == (2, 4)
        assert (model.fc.samples, model.fc.training) == (4, True)

    def test_agrees_with_the_efficient_form(self):
        """Where the body is deterministic both estimate the same moments."""
        torch.manual_seed(0)
        model = macc.attach(Cnn(), p=0.3).eval()
        x = torch.randn(3, 3, 8, 8)
        exact = macc.moments(model, x, estimator="analytic")
        passes = macc.conventional_moments(model, x, samples=4000)

        assert ((passes.mean - exact.mean).abs() / (exact.variance / 4000).sqrt()).max() < 4.5
        assert ((passes.variance - exact.variance).abs() / exact.variance).max() < 4.5 * (5 / 4000) ** 0.5
        assert not model.fc.training

    def test_one_pass_has_no_variance(self):
        with pytest.raises(ValueError, match="at least two"):
            macc.conventional_moments(macc.attach(Cnn()), IMAGES, samples=1)


@pytest.mark.parametrize("estimator", ["sampled", "analytic"])
def test_one_logit_has_moments_and_no_softmax(estimator):
    model = macc.attach(nn.Sequential(nn.Linear(6, 1)).double(), p=0.25, estimator=estimator)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    output = macc.moments(model, x, samples=40_000) if estimator == "sampled" else model(x)
    expected = 0.25 / 0.75 * (x**2 * model[0].weight[0] ** 2).sum(1, keepdim=True)

    torch.testing.assert_close(output.variance, expected, rtol=0.05, atol=0)
    torch.testing.assert_close(output.mean, model.eval()(x), rtol=0.05, atol=0.02)
    assert output.certainty.shape == (3, 1)
    with pytest.raises(ValueError, match=r"`probs` compares the classes.*`output.mean.sigmoid\(\)`"):
        output.probs  # noqa: B018 - reading it is the test
    with pytest.raises(ValueError, match="`separation` compares"):
        output.separation  # noqa: B018
    assert type(macc.detach(model)[0]) is nn.Linear


def test_moments_are_not_computed_with_as_logits():
    output = LogitMoments(torch.zeros(2, 3), torch.ones(2, 3))
    for compute in (lambda: 2 * output, lambda: output / 2, lambda: output + output, lambda: -output):
        with pytest.raises(TypeError, match=r"compute with `output\.mean`"):
            compute()


def test_separation_is_the_margin_in_standard_deviations():
    mean = torch.tensor([[1.0, 4.0, 0.0], [2.0, 2.0, 1.0], [0.0, 0.0, 3.0], [5.0, float("nan"), 0.0]])
    variance = torch.tensor([[3.0, 6.0, 100.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    found = LogitMoments(mean, variance).separation

    assert found[:3].tolist() == [1.0, 0.0, float("inf")]
    assert found[3].isnan()


def test_separation_of_nothing_but_equal_logits_is_zero():
    assert LogitMoments(torch.zeros(1, 3), torch.zeros(1, 3)).separation.tolist() == [0.0]
