"""Every loss has the values computed by hand and by slow loops."""

import math

import pytest
import torch

import reference
from helpers.moments import random_batch
from macc import LogitMoments, losses


class TestKnownAnswers:
    """Two classes, logits (log 3, 0): s = (3/4, 1/4)."""

    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    right = torch.tensor([0])
    wrong = torch.tensor([1])

    @pytest.mark.parametrize(
        ("text", "if_right", "if_wrong"),
        [
            ("CrossEntropy", math.log(4 / 3), math.log(4)),
            ("CrossEntropy(scale=2)", math.log(10 / 9), math.log(10)),  # of logits (2 log 3, 0)
            (
                "LabelSmoothing(alpha=0.1)",
                0.9 * math.log(4 / 3) + 0.1 * math.log(4),
                0.1 * math.log(4 / 3) + 0.9 * math.log(4),
            ),
            (
                "LabelSmoothing(alpha=0.1, over='all')",
                0.95 * math.log(4 / 3) + 0.05 * math.log(4),
                0.05 * math.log(4 / 3) + 0.95 * math.log(4),
            ),
            ("Focal(gamma=2)", (1 / 16) * math.log(4 / 3), (9 / 16) * math.log(4)),
            ("FLSD", (1 / 64) * math.log(4 / 3), (27 / 64) * math.log(4)),
            ("Brier", 2 / 16, 2 * 9 / 16),
        ],
    )
    def test_tasks(self, text, if_right, if_wrong):
        loss = losses.parse(text)

        assert loss(self.logits, self.right).item() == pytest.approx(if_right, abs=1e-12)
        assert loss(self.logits, self.wrong).item() == pytest.approx(if_wrong, abs=1e-12)

    def test_flsd_discounts_the_hopeless_more(self):
        logits = torch.tensor([[math.log(9), 0.0]], dtype=torch.float64)  # s = (0.9, 0.1)

        assert losses.FLSD()(logits, self.wrong).item() == pytest.approx(0.9**5 * math.log(10), abs=1e-12)

    def test_dca_and_mdca(self):
        assert losses.DCA()(self.logits, self.right).item() == pytest.approx(0.25)
        assert losses.DCA()(self.logits, self.wrong).item() == pytest.approx(0.75)
        assert losses.MDCA()(self.logits, self.right).item() == pytest.approx(0.25)

    def test_mdca_of_a_batch_that_is_right_on_average_is_zero(self):
        logits, labels = self.logits.expand(4, 2), torch.tensor([0, 0, 0, 1])

        assert losses.MDCA()(logits, labels).item() == pytest.approx(0, abs=1e-12)

    def test_mmce(self):
        logits, labels = self.logits.expand(2, 2), torch.tensor([0, 1])  # both 3/4 sure, one right
        weighted = math.sqrt((0.25 - 0.75) ** 2 + 1e-10)

        assert losses.MMCE()(logits, labels).item() == pytest.approx(weighted)
        assert losses.MMCE(legacy=True)(logits, labels).item() == pytest.approx(weighted)
        assert losses.MMCE(weighted=False)(logits, labels).item() == pytest.approx((0.25 - 0.75) ** 2 / 4)
        assert losses.MMCE()(self.logits, self.right).item() == 0

    def test_mbls(self):
        logits = torch.tensor([[10.0, 4.0, -2.0], [1.0, 1.0, 1.0]])

        assert losses.MbLS(margin=6)(logits, torch.tensor([0, 0])).item() == pytest.approx(6 / 6)

    def test_macc(self):
        # One sample: confidence (3/4, 1/4), certainty 1 - tanh(atanh(1/2)) = 1/2 and 1.
        output = LogitMoments(self.logits, torch.tensor([[math.atanh(0.5), 0.0]], dtype=torch.float64))

        assert losses.MACC()(output, self.right).item() == pytest.approx((0.25 + 0.75) / 2)

    @pytest.mark.parametrize("classes", [2, 7, 10, 200])
    def test_macc_starts_at_one_minus_one_over_k_and_rests_at_its_fixed_point(self, classes):
        labels = torch.zeros(3, dtype=torch.long)
        start = LogitMoments(torch.zeros(3, classes).double(), torch.zeros(3, classes).double())
        rest = start._replace(variance=torch.full_like(start.variance, math.atanh(1 - 1 / classes)))

        assert losses.MACC()(start, labels).item() == pytest.approx(1 - 1 / classes)
        assert losses.MACC()(rest, labels).item() == pytest.approx(0, abs=1e-12)

    def test_macc_gradient_of_the_variance(self):
        """sign(D) sech²(u) / (K N), as derived by hand."""
        output, labels = random_batch(rows=5, classes=3)
        variance = output.variance.clone().requires_grad_()
        losses.MACC()(LogitMoments(output.mean, variance), labels).backward()
        gap = (output.probs - output.certainty).mean(0)

        torch.testing.assert_close(variance.grad, gap.sign() / output.variance.cosh().square() / 15)


REFERENCES = {
    "CrossEntropy": reference.cross_entropy,
    "LabelSmoothing(alpha=0.05)": lambda z, y: reference.label_smoothing(z, y, 0.05, "others"),
    "LabelSmoothing(alpha=0.05, over='all')": lambda z, y: reference.label_smoothing(z, y, 0.05, "all"),
    "Focal(gamma=3)": lambda z, y: reference.focal(z, y, 3),
    "Focal(gamma=0.5)": lambda z, y: reference.focal(z, y, 0.5),
    "FLSD": reference.flsd,
    "Brier": reference.brier,
    "MMCE": lambda z, y: reference.mmce(z, y, weighted=True),
    "MMCE(legacy=True)": lambda z, y: reference.mmce(z, y, weighted=True, legacy=True),
    "MMCE(weighted=False, width=0.2)": lambda z, y: reference.mmce(z, y, weighted=False, width=0.2),
    "DCA": reference.dca,
    "MDCA": reference.mdca,
    "MbLS(margin=2)": lambda z, _: reference.mbls(z, 2),
}


@pytest.mark.parametrize("text", REFERENCES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_matches_the_slow_reference(text, seed):
    output, labels = random_batch(seed=seed)
    name = text.split("(")[0]
    if issubclass(getattr(losses, name), losses.Penalty):
        value = losses.parse(f"CrossEntropy + {text}").penalties[0](output.mean, labels)
    else:
        value = losses.parse(text)(output.mean, labels)

    assert value.item() == pytest.approx(REFERENCES[text](output.mean.tolist(), labels.tolist()), rel=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_macc_is_equation_1(seed):
    output, labels = random_batch(seed=seed)

    assert losses.MACC()(output, labels).item() == pytest.approx(
        reference.macc(output.mean.tolist(), output.variance.tolist()), rel=1e-10
    )


def test_mdca_with_half_the_mass_in_soft_labels():
    logits = torch.zeros(2, 2)

    assert losses.MDCA()(logits, torch.full((2, 2), 0.5)).item() == pytest.approx(0)
