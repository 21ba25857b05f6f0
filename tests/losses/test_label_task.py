"""Losses of one logit and of independent labels: values, what goes with them, and what is
refused.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import macc
import reference
from helpers.moments import random_batch
from macc import losses

OUTPUT, _ = random_batch(rows=30, classes=4)
LABELS = torch.randint(0, 2, (30, 4), generator=torch.Generator().manual_seed(1))
PROBS = [[reference.sigmoid(z) for z in row] for row in OUTPUT.mean.tolist()]


class TestValues:
    def test_by_hand(self):
        """One logit of log 3: s = 3/4."""
        logit = torch.tensor([[math.log(3)]], dtype=torch.float64)
        for label, s in ((1, 3 / 4), (0, 1 / 4)):
            labels = torch.tensor([label])
            assert float(losses.BinaryCrossEntropy()(logit, labels)) == pytest.approx(-math.log(s))
            assert float(losses.BinaryFocal(gamma=2)(logit, labels)) == pytest.approx(
                -((1 - s) ** 2) * math.log(s)
            )
            weighted = losses.BinaryCrossEntropy(pos_weight=5)(logit, labels)
            assert float(weighted) == pytest.approx((5 if label else 1) * -math.log(s))

    @pytest.mark.parametrize("pos_weight", [None, 3, [0.5, 1, 2, 3]])
    def test_cross_entropy_is_that_of_torch(self, pos_weight):
        given = None if pos_weight is None else torch.as_tensor(pos_weight, dtype=torch.float64)
        oracle = nn.BCEWithLogitsLoss(pos_weight=given)
        own = losses.BinaryCrossEntropy(pos_weight=pos_weight)

        torch.testing.assert_close(own(OUTPUT, LABELS), oracle(OUTPUT.mean, LABELS.double()))
        soft = torch.rand(30, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        torch.testing.assert_close(own(OUTPUT, soft), oracle(OUTPUT.mean, soft))

    @pytest.mark.parametrize("gamma", [0, 0.5, 2])
    def test_focal_is_the_slow_loop(self, gamma):
        own = losses.BinaryFocal(gamma=gamma, pos_weight=3)(OUTPUT, LABELS)
        slow = reference.binary_focal(OUTPUT.mean.flatten().tolist(), LABELS.flatten().tolist(), gamma, 3)

        assert float(own) == pytest.approx(slow, rel=1e-12)

    def test_one_logit_is_two_classes_of_which_one_logit_is_zero(self):
        logits, labels = OUTPUT.mean[:, :1], LABELS[:, 0]
        two = torch.cat([torch.zeros_like(logits), logits], dim=1)

        torch.testing.assert_close(
            losses.BinaryCrossEntropy()(logits, labels), losses.CrossEntropy()(two, labels)
        )
        torch.testing.assert_close(
            losses.BinaryFocal(gamma=2)(logits, labels), losses.Focal(gamma=2)(two, labels)
        )
        one = losses.BinaryCrossEntropy() + losses.EntropyPenalty()
        torch.testing.assert_close(
            one.parts(logits, labels)["EntropyPenalty"], losses.EntropyPenalty()(two, labels)
        )


class TestPenalties:
    @pytest.mark.parametrize("task", ["BinaryCrossEntropy", "BinaryFocal(gamma=2)"])
    def test_macc_compares_sigmoid_and_certainty_label_by_label(self, task):
        criterion = losses.parse(f"{task} + 10*MACC")
        certainty = [[1 - math.tanh(u) for u in row] for row in OUTPUT.variance.tolist()]
        gap = reference.label_gap(PROBS, certainty)

        assert float(criterion.parts(OUTPUT, LABELS)["MACC"]) == pytest.approx(gap, rel=1e-12)
        total, parts = criterion.measured(OUTPUT, LABELS)
        torch.testing.assert_close(total, criterion(OUTPUT, LABELS))
        torch.testing.assert_close(total, criterion.task(OUTPUT, LABELS) + 10 * parts["MACC"])

    def test_mdca_compares_sigmoid_and_frequency_label_by_label(self):
        value = (losses.BinaryCrossEntropy() + losses.MDCA()).parts(OUTPUT, LABELS)["MDCA"]

        assert float(value) == pytest.approx(reference.label_gap(PROBS, LABELS.tolist()), rel=1e-12)

    def test_entropy_is_that_of_each_label(self):
        value = (losses.BinaryCrossEntropy() + losses.EntropyPenalty()).parts(OUTPUT, LABELS)[
            "EntropyPenalty"
        ]
        slow = [math.log(2) - reference.entropy([s, 1 - s]) for row in PROBS for s in row]

        assert float(value) == pytest.approx(sum(slow) / len(slow), rel=1e-12)

    @pytest.mark.parametrize(
        "name", ["MMCE", "DCA", "MbLS", "ACLS", "SoftECE", "AvUC", "CLUE"]
    )  # the others have a form
    def test_those_of_exclusive_classes_are_refused_when_added(self, name):
        with pytest.raises(
            ValueError, match=rf"{name}.* is defined for classes that exclude each other and Binary"
        ):
            losses.parse(f"BinaryCrossEntropy + {name}")

    def test_a_penalty_may_stand_beside_both_kinds_of_task(self):
        shared = 2 * losses.MACC(warmup=4)
        on_classes, on_labels = losses.CrossEntropy() + shared, losses.BinaryCrossEntropy() + shared
        again = losses.Criterion(losses.CrossEntropy(), on_labels.penalties[0])
        classes = LABELS.argmax(1)

        assert on_classes.parts(OUTPUT, classes)["MACC"] != on_labels.parts(OUTPUT, LABELS)["MACC"]
        torch.testing.assert_close(again.parts(OUTPUT, classes), on_classes.parts(OUTPUT, classes))
        on_labels(OUTPUT, LABELS)
        assert int(shared.penalty.step) == 1
        assert str(losses.parse(str(on_labels))) == str(on_labels) == "BinaryCrossEntropy + 2*MACC(warmup=4)"

    def test_a_module_of_ones_own_says_so_or_is_torchs(self):
        class Own(nn.Module):
            independent_labels = True

            def forward(self, logits, labels):
                return (logits.sigmoid() - labels).square().mean()

        expected = (losses.BinaryCrossEntropy() + losses.MACC()).parts(OUTPUT, LABELS)["MACC"]
        for task in (Own(), nn.BCEWithLogitsLoss()):
            found = (task + losses.MACC()).parts(OUTPUT, LABELS.double())
            torch.testing.assert_close(found["MACC"], expected)

    def test_in_evaluation_macc_is_left_out_with_a_warning(self):
        criterion = (losses.BinaryCrossEntropy() + losses.MACC()).eval()
        with pytest.warns(UserWarning, match="MACC is left out"):
            value = criterion(OUTPUT.mean, LABELS)
        torch.testing.assert_close(value, criterion.task(OUTPUT.mean, LABELS))

    def test_diagnostics_of_labels(self):
        found = losses.MACC().diagnostics(OUTPUT, independent_labels=True)
        torch.testing.assert_close(found.confidence, OUTPUT.mean.sigmoid().mean(0))
        assert found.fixed_point == pytest.approx(float((1 - found.confidence).atanh().mean()))

        scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
        scaled = macc.LogitMoments(OUTPUT.mean * scale.exp(), OUTPUT.variance * (2 * scale).exp())
        (losses.BinaryCrossEntropy() + losses.MACC()).parts(scaled, LABELS)["MACC"].backward()
        assert found.scale_slope == pytest.approx(float(scale.grad), rel=1e-9)


@pytest.mark.parametrize("bad", [-1, math.nan, [], [[1.0]], "2", True])
def test_pos_weight_is_checked(bad):
    with pytest.raises(ValueError, match="`pos_weight` must be one finite, non-negative number per label"):
        losses.BinaryCrossEntropy(pos_weight=bad)


def test_pos_weight_of_other_labels():
    with pytest.raises(ValueError, match="one entry per label, got 3 for 4 labels"):
        losses.BinaryCrossEntropy(pos_weight=[1, 2, 3])(OUTPUT, LABELS)


def test_one_logit_trains_with_macc_as_in_the_plain_loop():
    """A line between two clouds is found, and the penalty moves the certainty towards the
    confidence.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator) + 2.0 * y[:, None]
    torch.manual_seed(0)
    model = macc.attach(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)), estimator="analytic")
    criterion = losses.BinaryCrossEntropy() + losses.MACC()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    start = criterion.parts(model(x), y)["MACC"].item()
    for _ in range(100):
        optimiser.zero_grad()
        criterion(model(x), y).backward()
        optimiser.step()

    assert criterion.parts(model(x), y)["MACC"].item() < 0.3 * start
    assert float(((model.eval()(x)[:, 0] > 0) == (y == 1)).float().mean()) > 0.9


class TestUnknownLabels:
    """Single labels are ignored: of each sample those that are known count."""

    KNOWN = torch.rand(30, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    GIVEN = torch.where(KNOWN, LABELS, -1)

    def test_a_task_is_the_mean_over_the_known(self):
        weight = torch.tensor([1.0, 2, 3, 4])
        leaf = OUTPUT.mean.clone().requires_grad_()
        value = losses.BinaryCrossEntropy(pos_weight=weight)(leaf, self.GIVEN, ignore_index=-1)
        value.backward()
        each = F.binary_cross_entropy_with_logits(
            OUTPUT.mean, LABELS.double(), pos_weight=weight.double(), reduction="none"
        )

        torch.testing.assert_close(value, each[self.KNOWN].mean())
        assert torch.equal(leaf.grad != 0, self.KNOWN)
        logits, labels = OUTPUT.mean[self.KNOWN].tolist(), LABELS[self.KNOWN].tolist()
        focal = losses.BinaryFocal(gamma=2)(OUTPUT, self.GIVEN.double(), ignore_index=-1)
        assert float(focal) == pytest.approx(reference.binary_focal(logits, labels, 2, 1), rel=1e-12)

    @pytest.mark.parametrize("name", ["MACC", "MDCA", "EntropyPenalty"])
    def test_a_penalty_takes_each_label_from_where_it_is_known(self, name):
        criterion = losses.parse(f"BinaryCrossEntropy + 2*{name}")
        rows = [self.KNOWN[:, k] for k in range(4)]
        of_each = [
            criterion.parts(
                macc.LogitMoments(*(part[rows[k], k : k + 1] for part in OUTPUT)), LABELS[rows[k], k]
            )
            for k in range(4)
        ]
        counts = (
            torch.tensor([int(each.sum()) for each in rows]) if name == "EntropyPenalty" else torch.ones(4)
        )
        expected = sum(float(each[name] * count) for each, count in zip(of_each, counts, strict=True))

        found = criterion.parts(OUTPUT, self.GIVEN, ignore_index=-1)[name]
        assert float(found) == pytest.approx(expected / float(counts.sum()), rel=1e-12)
        total, parts = criterion.measured(OUTPUT, self.GIVEN, ignore_index=-1)
        torch.testing.assert_close(total, criterion(OUTPUT, self.GIVEN, ignore_index=-1))
        torch.testing.assert_close(total, parts["BinaryCrossEntropy"] + 2 * found)

    def test_maps_with_and_without_an_axis_of_the_one_label(self):
        criterion = losses.BinaryCrossEntropy() + losses.MACC()
        maps = macc.LogitMoments(*(part.reshape(2, 3, 5, 4).movedim(-1, 1) for part in OUTPUT))
        labels = self.GIVEN.reshape(2, 3, 5, 4).movedim(-1, 1)
        torch.testing.assert_close(
            criterion(maps, labels, ignore_index=-1), criterion(OUTPUT, self.GIVEN, ignore_index=-1)
        )

        one = macc.LogitMoments(*(part[:, :1] for part in maps))
        torch.testing.assert_close(
            criterion(one, labels[:, :1], ignore_index=-1), criterion(one, labels[:, 0], ignore_index=-1)
        )

    def test_a_label_that_nobody_has_adds_nothing(self):
        nobody = self.GIVEN.index_fill(1, torch.tensor([3]), -1)
        criterion = losses.BinaryCrossEntropy() + losses.MDCA()
        three = criterion.parts(OUTPUT.mean[:, :3], nobody[:, :3], ignore_index=-1)
        four = criterion.parts(OUTPUT.mean, nobody, ignore_index=-1)

        torch.testing.assert_close(four["BinaryCrossEntropy"], three["BinaryCrossEntropy"])
        torch.testing.assert_close(4 * four["MDCA"], 3 * three["MDCA"])

    def test_what_cannot_be_is_refused(self):
        loss = losses.BinaryCrossEntropy()
        with pytest.raises(
            ValueError, match="got -1 in row .*; pass `ignore_index=-1` to leave such labels out"
        ):
            loss(OUTPUT, self.GIVEN)
        with pytest.raises(ValueError, match="every label of the batch is the ignored -1; skip the batch"):
            loss(OUTPUT, torch.full_like(LABELS, -1), ignore_index=-1)
        with pytest.raises(
            ValueError, match="for the labels of BinaryCrossEntropy and BinaryFocal, got labels of"
        ):
            (nn.BCEWithLogitsLoss() + losses.MACC())(OUTPUT, self.GIVEN.double(), ignore_index=-1)
