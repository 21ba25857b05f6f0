"""Hand-computed values, slow references, composition, warm-up and diagnostics of the losses."""

import copy
import math
import pickle
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import macc
import reference
from macc import LogitMoments, losses

LOG2 = math.log(2)


def random_batch(rows=40, classes=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    variance = 2 * torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    return LogitMoments(logits, variance), torch.randint(0, classes, (rows,), generator=generator)


class TestKnownAnswers:
    """Two classes, logits (log 3, 0): s = (3/4, 1/4)."""

    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    right = torch.tensor([0])
    wrong = torch.tensor([1])

    @pytest.mark.parametrize(
        ("text", "if_right", "if_wrong"),
        [
            ("CrossEntropy", math.log(4 / 3), math.log(4)),
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


class TestClassWeights:
    weight = (0.5, 1.0, 3.0)

    def test_cross_entropy_is_torchs(self):
        output, labels = random_batch(classes=3)
        theirs = nn.CrossEntropyLoss(weight=torch.tensor(self.weight, dtype=torch.float64))

        torch.testing.assert_close(
            losses.CrossEntropy(weight=self.weight)(output.mean, labels), theirs(output.mean, labels)
        )

    @pytest.mark.parametrize("name", ["Focal", "FLSD", "Brier", "LabelSmoothing"])
    def test_the_mean_is_weighted_by_the_class_of_each_sample(self, name):
        output, labels = random_batch(rows=8, classes=3)
        plain, weighted = getattr(losses, name)(), getattr(losses, name)(weight=self.weight)
        each = torch.stack([plain(output.mean[i : i + 1], labels[i : i + 1]) for i in range(8)])
        share = torch.tensor(self.weight, dtype=torch.float64)[labels]

        torch.testing.assert_close(weighted(output.mean, labels), (each * share).sum() / share.sum())

    def test_a_wrong_number_of_weights(self):
        output, labels = random_batch(classes=4)
        with pytest.raises(ValueError, match="one entry per class, got 3 for 4 classes"):
            losses.Focal(weight=self.weight)(output.mean, labels)

    @pytest.mark.parametrize("weight", [[-1.0, 1.0], [math.nan, 1.0], [[1.0, 1.0]], [], {1: 2}, "abc"])
    def test_bad_weights(self, weight):
        with pytest.raises(ValueError, match="one finite, non-negative number per class"):
            losses.CrossEntropy(weight=weight)


class TestKnobs:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: losses.Focal(gamma=-1), "`gamma` must be a number at least 0, got -1"),
            (lambda: losses.Focal(gamma="3"), "got '3'"),
            (lambda: losses.Focal(gamma=10**400), "`gamma` must be a number"),
            (lambda: losses.MDCA(sync="no"), "`sync` must be True or False, got 'no'"),
            (lambda: losses.MACC(warmup=10**30), "`warmup` must be"),
            (lambda: losses.LabelSmoothing(alpha=5.0), r"`alpha` must be a number in \[0, 1\], got 5.0"),
            (lambda: losses.LabelSmoothing(over="none"), "'others' or 'all', got 'none'"),
            (lambda: losses.MMCE(width=0), "`width`"),
            (lambda: losses.MMCE(weighted=False, legacy=True), "belongs to the weighted form"),
            (lambda: losses.MbLS(margin=-1), "`margin`"),
            (lambda: losses.MACC(warmup=-1), "`warmup` must be a whole number of steps"),
            (lambda: losses.MACC(warmup=0.5), "got 0.5"),
            (lambda: -1 * losses.MACC(), "`weight of a penalty` must be a number at least 0, got -1"),
            (lambda: math.nan * losses.MACC(), "got nan"),
        ],
    )
    def test_out_of_range(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    def test_knobs_are_keyword_only(self):
        with pytest.raises(TypeError):
            losses.Focal(3)

    def test_label_smoothing_beyond_uniform(self):
        with pytest.raises(ValueError, match=r"at most \(K-1\)/K = 0.5 for 2 classes"):
            losses.LabelSmoothing(alpha=0.6)(torch.zeros(1, 2), torch.tensor([0]))


class TestComposition:
    def test_adds_weighted_penalties_to_the_task(self):
        output, labels = random_batch()
        criterion = losses.Focal(gamma=3) + 10 * losses.MACC() + 0.1 * losses.MbLS(margin=2)
        expected = (
            losses.Focal(gamma=3)(output, labels)
            + 10 * losses.MACC()(output, labels)
            + 0.1 * losses.MbLS(margin=2)(output, labels)
        )

        torch.testing.assert_close(criterion(output, labels), expected)
        torch.testing.assert_close(criterion.task(output.mean, labels), losses.Focal(gamma=3)(output, labels))

    def test_order_and_side_of_the_weight_do_not_matter(self):
        output, labels = random_batch()
        first = losses.CrossEntropy() + 2 * losses.MDCA()

        for other in (2 * losses.MDCA() + losses.CrossEntropy(), losses.CrossEntropy() + losses.MDCA() * 2):
            assert str(other) == str(first) == "CrossEntropy + 2*MDCA"
            torch.testing.assert_close(other(output, labels), first(output, labels))

    def test_parts_are_bare_values(self):
        output, labels = random_batch()
        criterion = (
            losses.Focal()
            + 10 * losses.MACC(warmup=100)
            + 0.1 * losses.MbLS(margin=2)
            + losses.MbLS(margin=1)
        )
        parts = criterion.parts(output, labels)

        assert list(parts) == ["Focal", "MACC", "MbLS", "MbLS(margin=1)"]
        assert len((criterion + losses.MbLS(margin=1) + losses.MbLS(margin=1)).parts(output, labels)) == 6
        torch.testing.assert_close(parts["MACC"], losses.MACC()(output, labels))
        torch.testing.assert_close(parts["MbLS"], losses.MbLS(margin=2)(output, labels))
        assert losses.CrossEntropy().parts(output, labels).keys() == {"CrossEntropy"}

    def test_labels_for_tables(self):
        assert (losses.Focal() + 10 * losses.MACC()).label == "FL+MACC"
        assert (losses.CrossEntropy() + 0.1 * losses.MbLS()).label == "NLL+MbLS"
        assert losses.LabelSmoothing().label == "LS"

    def test_text(self):
        assert str(losses.Focal(gamma=3) + 10 * losses.MACC()) == "Focal(gamma=3) + 10*MACC"
        assert str(losses.CrossEntropy() + 0.1 * losses.MbLS(margin=6) + losses.DCA(sync=False)) == (
            "CrossEntropy + 0.1*MbLS(margin=6) + DCA(sync=False)"
        )
        assert str(losses.CrossEntropy(weight=[0.1, 2])) == "CrossEntropy(weight=[0.1, 2])"

    def test_a_users_own_module_is_a_task(self):
        output, labels = random_batch()
        own = nn.CrossEntropyLoss(weight=torch.arange(1, 7).double())
        criterion = own + 10 * losses.MACC()

        torch.testing.assert_close(
            criterion(output, labels), own(output.mean, labels) + 10 * losses.MACC()(output, labels)
        )
        torch.testing.assert_close(criterion.task(output, labels), own(output.mean, labels))
        assert criterion.parts(output, labels).keys() == {"CrossEntropyLoss", "MACC"}
        assert criterion.label == "CrossEntropyLoss+MACC"
        assert str(criterion) == "<CrossEntropyLoss> + 10*MACC"
        with pytest.raises(ValueError, match="module of your own: it prints but is not read back"):
            losses.parse(str(criterion))

    def test_a_users_own_module_must_return_a_scalar(self):
        output, labels = random_batch()
        with pytest.raises(ValueError, match=r"scalar batch mean, CrossEntropyLoss returned \(40,\)"):
            (nn.CrossEntropyLoss(reduction="none") + losses.MDCA())(output, labels)

    def test_one_task_is_needed(self):
        with pytest.raises(ValueError, match="got 2 task losses in CrossEntropy [+] Brier"):
            losses.CrossEntropy() + losses.Brier()
        with pytest.raises(ValueError, match="got no task loss in 10[*]MACC [+] MDCA"):
            10 * losses.MACC() + losses.MDCA()
        with pytest.raises(TypeError):
            losses.CrossEntropy() + 3
        with pytest.raises(
            ValueError, match="a task loss has weight 1, got 2 for CrossEntropy; scale the penalties"
        ):
            2 * losses.CrossEntropy()

    def test_moves_and_saves_as_a_module(self):
        criterion = losses.CrossEntropy(weight=[1.0, 2.0]) + 10 * losses.MACC(warmup=5)

        assert set(criterion.state_dict()) == {"task.weight", "penalties.0.penalty.step"}
        assert criterion.to("meta").task.weight.device.type == "meta"

    def test_a_users_own_penalty(self):
        class Norm(losses.Penalty):
            def measure(self, output, labels):
                logits, _ = self.checked(output, labels)
                return logits.square().mean()

        output, labels = random_batch()
        criterion = losses.CrossEntropy() + 0.5 * Norm(warmup=3)

        assert criterion.label == "NLL+Norm"
        assert str(criterion) == "CrossEntropy + 0.5*Norm(warmup=3)"
        torch.testing.assert_close(criterion(output, labels), losses.CrossEntropy()(output, labels))


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


class TestEvaluation:
    """Frameworks call the criterion in evaluation too, where a model gives plain logits."""

    @staticmethod
    def pair():
        output, labels = random_batch()
        return losses.CrossEntropy() + 10 * losses.MACC() + 0.5 * losses.MDCA(), output, labels

    @pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
    def test_a_term_that_needs_a_variance_is_left_out_and_that_is_said_once(self, how):
        criterion, output, labels = self.pair()
        mode = {"eval": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[how]
        criterion.train(how != "eval")
        expected = losses.CrossEntropy()(output, labels) + 0.5 * losses.MDCA()(output, labels)
        with mode():
            with pytest.warns(UserWarning, match="MACC is left out .* `criterion.task`"):
                found = criterion(output.mean, labels)
            again, parts = criterion.measured(output.mean, labels)  # warnings are errors

            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(again, expected)
            assert list(parts) == list(criterion.parts(output.mean, labels)) == ["CrossEntropy", "MDCA"]
            assert list(criterion.parts(output, labels)) == ["CrossEntropy", "MACC", "MDCA"]

    def test_in_training_it_is_an_error(self):
        criterion, output, labels = self.pair()
        for call in (criterion, criterion.parts, criterion.measured):
            with pytest.raises(ValueError, match="MACC needs the variance of the logits"):
                call(output.mean, labels)

    def test_moments_are_measured_in_evaluation_too(self):
        criterion, output, labels = self.pair()
        torch.testing.assert_close(criterion.eval()(output, labels), criterion.train()(output, labels))

    def test_it_compiles(self):
        criterion, output, labels = self.pair()
        compiled = torch.compile(criterion.eval(), fullgraph=True, backend="eager")

        torch.testing.assert_close(
            compiled(output.mean, labels),
            losses.CrossEntropy()(output, labels) + 0.5 * losses.MDCA()(output, labels),
        )


class TestWarmup:
    def test_rises_linearly_and_stays(self):
        output, labels = random_batch()
        full = losses.MDCA()(output, labels)
        penalty = losses.MDCA(warmup=4)
        shares = [(penalty(output, labels) / full).item() for _ in range(6)]

        assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])

    def test_only_training_steps_count(self):
        output, labels = random_batch()
        penalty = losses.MDCA(warmup=4)
        with torch.no_grad():
            penalty(output, labels)
        penalty.eval()(output, labels)
        penalty.train().measure(output, labels)

        assert penalty.step.item() == 0

    def test_counts_the_steps_of_an_optimiser_if_asked_to(self):
        model, (output, labels) = nn.Linear(2, 6), random_batch()
        x = torch.randn(len(labels), 2)
        criterion = losses.CrossEntropy() + losses.MDCA(warmup=4) + losses.DCA(warmup=8) + losses.MbLS()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.count_steps(criterion, optimizer)
        shares = []
        for _ in range(3):
            for _ in range(4):
                criterion(model(x), labels).backward()
                shares.append(
                    (criterion.penalties[0].penalty(output, labels) / losses.MDCA()(output, labels)).item()
                )
            optimizer.step()

        assert [int(w.penalty.step) for w in criterion.penalties if w.penalty.warmup] == [3, 3]
        assert shares == pytest.approx([0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5])

    def test_counts_the_steps_of_the_last_optimiser_and_a_copy_counts_calls(self):
        output, labels = random_batch()
        criterion = losses.CrossEntropy() + losses.MDCA(warmup=4)
        optimizers = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(2)]
        for optimizer in optimizers:
            losses.count_steps(criterion, optimizer)
        optimizers[0].step()
        assert int(criterion.penalties[0].penalty.step) == 0
        optimizers[1].step()
        assert int(criterion.penalties[0].penalty.step) == 1

        other = pickle.loads(pickle.dumps(copy.deepcopy(criterion)))
        other(output, labels)
        optimizers[1].step()
        assert int(other.penalties[0].penalty.step) == 2
        assert int(criterion.penalties[0].penalty.step) == 2

    @pytest.mark.parametrize("resumed", [False, True])
    def test_a_resumed_optimiser_with_a_warm_up_at_0_is_said(self, resumed):
        weight = torch.zeros(1, requires_grad=True)
        weight.grad = torch.ones(1)
        criterion = losses.CrossEntropy() + losses.MDCA(warmup=4)
        before, after = (torch.optim.Adam([weight]) for _ in range(2))
        before.step()
        losses.count_steps(criterion, after)
        if resumed:
            after.load_state_dict(before.state_dict())
            with pytest.warns(
                UserWarning, match=r"warm-up of MDCA\(warmup=4\) starts at 0; .*criterion.state_dict"
            ):
                after.step()
        after.step()

    def test_what_is_no_optimiser_of_torch_is_refused(self):
        with pytest.raises(ValueError, match="must be an optimiser of torch, got Linear; with accelerate"):
            losses.count_steps(losses.CrossEntropy() + losses.MACC(warmup=3), nn.Linear(2, 2))

    def test_goes_on_from_a_state_dict(self):
        output, labels = random_batch()
        first, second = losses.MDCA(warmup=4), losses.MDCA(warmup=4)
        for _ in range(2):
            first(output, labels)
        second.load_state_dict(first.state_dict())

        torch.testing.assert_close(second(output, labels), first(output, labels))

    def test_a_large_weight_from_the_first_step_collapses_a_plain_network_and_a_warmup_prevents_it(self):
        """No batch norm, weight 10: the variance runs into the flat part of tanh and takes the task with it."""
        from sklearn.datasets import load_digits

        pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
        images = pixels.float().div(16).reshape(-1, 1, 8, 8)

        def accuracy(warmup: int) -> float:
            torch.manual_seed(0)
            model = nn.Sequential(
                *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
                *(nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
            macc.attach(model, p=0.5)
            criterion = losses.CrossEntropy() + 10 * losses.MACC(warmup=warmup)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(8):
                for rows in torch.randperm(len(labels)).split(64):
                    optimiser.zero_grad()
                    criterion(model(images[rows]), labels[rows]).backward()
                    optimiser.step()
            return (model.eval()(images).argmax(1) == labels).float().mean().item()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            at_once, faded_in = accuracy(0), accuracy(232)  # all of training

        assert at_once < 0.2
        assert faded_in > 0.8


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


def test_focal_without_discount_is_cross_entropy_to_the_last_digits():
    logits, labels = torch.tensor([[100.0, 90.0], [0.0, 9.0]]), torch.tensor([0, 0])

    torch.testing.assert_close(
        losses.Focal(gamma=0)(logits, labels), losses.CrossEntropy()(logits, labels), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_focal_of_masked_classes_has_finite_gradients(gamma):
    logits = torch.tensor([[1.0, -torch.inf, -torch.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    labels = torch.tensor([0, 1])
    loss = losses.Focal(gamma=gamma)(logits, labels)
    loss.backward()

    assert logits.grad[0].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[1].isfinite().all()
    if gamma == 0:
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_focal_of_a_label_that_is_masked_is_infinite(gamma):
    logits = torch.tensor([[1.0, -torch.inf, 0.0], [0.0, 1.0, 2.0]])
    assert losses.Focal(gamma=gamma)(logits, torch.tensor([1, 1])) == torch.inf


def test_focal_agrees_with_the_textbook_formula_and_gradient():
    output, labels = random_batch()
    logits = output.mean.clone().requires_grad_()
    log_s = F.log_softmax(logits, 1).gather(1, labels[:, None]).squeeze(1)
    textbook = (-((1 - log_s.exp()) ** 2) * log_s).mean()
    ours = losses.Focal(gamma=2)(logits, labels)
    (theirs_grad,) = torch.autograd.grad(textbook, logits)
    (our_grad,) = torch.autograd.grad(ours, logits)

    torch.testing.assert_close(ours, textbook)
    torch.testing.assert_close(our_grad, theirs_grad)


@pytest.mark.parametrize(
    "text", ["Focal(gamma=2)", "CrossEntropy + 10*MACC(warmup=3) + 0.1*MbLS + 2*MbLS(margin=1)"]
)
def test_measured_is_forward_and_parts_at_once(text):
    torch.manual_seed(0)
    output, labels = LogitMoments(torch.randn(8, 3), torch.rand(8, 3)), torch.arange(8) % 3
    once, twice = losses.parse(text), losses.parse(text)
    for _ in range(4):
        expected, parts = twice(output, labels), twice.parts(output, labels)
        total, measured = once.measured(output, labels)

        assert total == expected
        assert measured == parts


def test_a_criterion_knows_whether_it_needs_a_head():
    assert losses.parse("Focal + 0.1*MbLS + MACC").needs_moments
    assert not losses.parse("Focal + 0.1*MbLS").needs_moments
    assert not losses.parse("Brier").needs_moments
