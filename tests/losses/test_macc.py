"""MACC needs a variance, and says when it saturates."""

import math

import pytest
import torch
from torch import nn

import macc
from helpers.moments import random_batch
from macc import LogitMoments, losses


class TestMACCNeedsVariance:
    def test_plain_logits_are_refused_with_the_cure(self):
        with pytest.raises(
            ValueError, match=r"MACC needs the variance.*macc.attach.*train mode.*criterion.task"
        ):
            losses.MACC()(torch.zeros(2, 3), torch.tensor([0, 1]))

    def test_ordinary_dropout_is_refused_by_name(self):
        model = macc.attach(nn.Sequential(nn.Linear(4, 3)), samples=1)
        with pytest.raises(ValueError, match="samples=1 has no variance"):
            losses.MACC()(model(torch.ones(2, 4)), torch.tensor([0, 1]))

    @pytest.mark.parametrize("entry", [-0.1, math.nan])
    def test_negative_or_nan_variance(self, entry):
        output = LogitMoments(torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [0.0, entry], [0.0, 0.0]]))
        with pytest.raises(ValueError, match="negative or NaN entry in row 1"):
            losses.MACC()(output, torch.tensor([0, 1, 0]))
        with pytest.raises(ValueError, match="negative or NaN entry in row 1"):
            losses.MACC().diagnostics(output)

    def test_moments_in_another_dress(self):
        labels = torch.tensor([0, 1, 0])
        with pytest.raises(
            ValueError, match=r"got tuple; if these are the two moments, pass `macc.LogitMoments"
        ):
            losses.MACC()((torch.zeros(3, 2), torch.zeros(3, 2)), labels)
        with pytest.raises(ValueError, match="variance must be a floating-point tensor.*got None"):
            losses.MACC()(LogitMoments(torch.zeros(3, 2), None), labels)

    def test_shapes_must_agree(self):
        with pytest.raises(ValueError, match=r"shape of the mean, \(3, 2\).*of \(3, 1\)"):
            losses.MACC()(LogitMoments(torch.zeros(3, 2), torch.zeros(3, 1)), torch.tensor([0, 1, 0]))

    def test_nan_logits_in_diagnostics(self):
        output = LogitMoments(torch.tensor([[0.0, math.nan]]), torch.zeros(1, 2))
        with pytest.raises(ValueError, match="NaN, first in row 0"):
            losses.MACC().diagnostics(output)


class TestDiagnostics:
    def test_reports_what_it_says(self):
        output, _ = random_batch(classes=4)
        found = losses.MACC().diagnostics(output)

        torch.testing.assert_close(found.confidence, output.probs.mean(0))
        torch.testing.assert_close(found.certainty, output.certainty.mean(0))
        torch.testing.assert_close(found.gap, found.confidence - found.certainty)
        assert found.mean_u == pytest.approx(output.variance.mean().item())
        assert found.fixed_point == pytest.approx(math.atanh(0.75))
        assert found.saturated == 0

    @pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
    def test_direction_is_the_slope_along_the_logit_scale(self, scale):
        output, labels = random_batch(classes=4)
        output = LogitMoments(scale * output.mean, scale**2 * output.variance)
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        losses.MACC().eval()(
            LogitMoments(t.exp() * output.mean, (2 * t).exp() * output.variance), labels
        ).backward()
        found = losses.MACC().diagnostics(output)

        assert found.scale_slope == pytest.approx(t.grad.item())
        if found.saturated <= 0.5:
            assert ("raising" in found.sentence) == (t.grad.item() < 0)

    def test_a_new_network_is_raised_and_a_loud_one_lowered(self):
        mean = torch.eye(3)
        quiet = losses.MACC().diagnostics(LogitMoments(mean, torch.full((3, 3), 0.1)))
        loud = losses.MACC().diagnostics(LogitMoments(mean, torch.full((3, 3), 2.0)))

        assert quiet.sentence == "MACC is now raising the logit scale: certainty is above confidence."
        assert loud.sentence == "MACC is now lowering the logit scale: certainty is below confidence."

    def test_saturation_is_said(self):
        found = losses.MACC().diagnostics(LogitMoments(torch.eye(3), torch.full((3, 3), 9.0)))

        assert found.saturated == 1
        assert "hardly any gradient left" in str(found)

    def test_saturation_that_lasts_warns_once_with_the_cures(self):
        saturated, labels = LogitMoments(torch.eye(3), torch.full((3, 3), 9.0)), torch.tensor([0, 1, 2])
        ordinary = LogitMoments(torch.eye(3), torch.tensor([[9.0, 9.0, 0.1]] * 3))
        penalty = losses.MACC()
        for output in [*[saturated] * 24, ordinary, *[saturated] * 24]:
            penalty(output, labels)  # warnings are errors in these tests
        with pytest.warns(
            UserWarning,
            match=r"25 training steps in a row more than 90%.*smaller dropout rate p, a smaller weight or a warm-up",
        ):
            penalty(saturated, labels)
        for _ in range(60):
            penalty(saturated, labels)
            losses.MACC().eval()(saturated, labels)

    def test_the_recommended_start_on_a_plain_cnn_does_not_warn(self):
        """Above half of the variances are beyond 4 in many of its steps, and it learns."""
        from sklearn.datasets import load_digits

        pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
        images = pixels.float().div(16).reshape(-1, 1, 8, 8)
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
        )
        macc.attach(model, p=0.2)
        criterion = losses.CrossEntropy() + losses.MACC(warmup=116)  # half of 8 epochs of 29 steps
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        shares = []
        for _ in range(8):
            for rows in torch.randperm(len(labels)).split(64):
                optimiser.zero_grad()
                output = model(images[rows])
                criterion(output, labels[rows]).backward()
                optimiser.step()
                shares.append((output.variance > 4).float().mean().item())

        assert max(shares) > 0.5
        assert (model.eval()(images).argmax(1) == labels).float().mean() > 0.95
