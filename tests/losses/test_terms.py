"""Composition, class weights, evaluation and warm-up: what the algebra of losses promises."""

import copy
import math
import pickle
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import macc
from helpers.moments import random_batch
from macc import LogitMoments, losses

LOG2 = math.log(2)


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
        """No batch norm, weight 10: the variance runs into the flat part of tanh and takes the task
        with it.
        """
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
