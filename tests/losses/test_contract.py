"""What every loss of the namespace promises, checked without anyone listing it."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import Tensor, nn

from macc import LogitMoments, losses

NAMES = sorted(
    name
    for name, value in vars(losses).items()
    if inspect.isclass(value)
    and issubclass(value, losses.Task | losses.Penalty)
    and not inspect.isabstract(value)
)
VARIANTS = [
    *NAMES,
    "CrossEntropy(scale=2)",
    "Focal(gamma=0.5)",
    "Focal(gamma=0)",
    "LabelSmoothing(over='all')",
    "MMCE(weighted=False)",
    "MMCE(legacy=True)",
    "MbLS(margin=0)",
    "DualFocal(gamma=0.5)",
    "SoftECE(norm=1)",
    "AvUC(threshold=1)",
    *(
        f"{name}({knob}=[0.5, 1, 2, 1, 1])"
        for name in NAMES
        for knob in ("weight", "pos_weight")
        if knob in inspect.signature(getattr(losses, name)).parameters
    ),
    "BinaryFocal(gamma=0.5)",
    "BinaryFocal(gamma=0, pos_weight=3)",
    *(
        f"BinaryCrossEntropy + {name}"
        for name in NAMES
        if issubclass(getattr(losses, name), losses.Penalty)
        and getattr(losses, name).measure_labels is not losses.Penalty.measure_labels
    ),
]


def make(text: str) -> nn.Module:
    """A term from its text; a penalty has no text form of its own, so a task is put before it."""
    if text.split("(")[0] in NAMES and issubclass(getattr(losses, text.split("(")[0]), losses.Penalty):
        return losses.parse(f"CrossEntropy + {text}").penalties[0].penalty
    return losses.parse(text)


def on_labels(text: str) -> bool:
    """Whether the logits are independent labels, which the task says."""
    loss = make(text)
    return isinstance(loss, losses.Task | losses.Criterion) and loss.task.independent_labels


def for_task(text: str, classes: Tensor) -> Tensor:
    """Class indices as they are, or as independent labels of which a row has one to three."""
    if not on_labels(text):
        return classes
    return sum(nn.functional.one_hot(classes * step % 5, 5) for step in (1, 2, 3)).clamp(max=1)


ON_LABELS = [text for text in VARIANTS if on_labels(text)]
ON_CLASSES = [text for text in VARIANTS if not on_labels(text)]


def batch(
    text: str = "CrossEntropy", rows: int = 12, classes: int = 5, dtype=torch.float64, scale: float = 2.0
) -> tuple[LogitMoments, Tensor]:
    generator = torch.Generator().manual_seed(rows * classes)
    mean = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    variance = torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes - 1, (rows,), generator=generator)  # the last class is absent
    return LogitMoments(mean.to(dtype), variance.to(dtype)), for_task(text, labels)


def value_and_grads(loss: nn.Module, output: LogitMoments, labels: Tensor):
    leaves = LogitMoments(*(part.clone().requires_grad_() for part in output))
    value = loss(leaves, labels)
    value.backward()
    return value, [part.grad for part in leaves if part.grad is not None]


def test_all_losses_are_there():
    assert set(NAMES) == {
        *("CrossEntropy", "LabelSmoothing", "Focal", "FLSD", "Brier", "DualFocal", "BSCEGRA"),
        *("BinaryCrossEntropy", "BinaryFocal"),
        *("MMCE", "DCA", "MDCA", "MbLS", "MACC", "ACLS", "EntropyPenalty", "SoftECE", "AvUC", "CLUE"),
    }


@pytest.mark.parametrize("text", VARIANTS)
class TestContract:
    def test_is_a_finite_scalar_with_finite_gradients(self, text):
        value, grads = value_and_grads(make(text), *batch(text, dtype=torch.float32))

        assert value.shape == ()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert value >= 0
        assert grads
        assert all(grad.isfinite().all() for grad in grads)

    def test_gradient_is_that_of_the_value(self, text):
        # No two predictions tie and no gap is zero here, so the absolute values are smooth.
        output, labels = batch(text, rows=6)
        parts = tuple(part.clone().requires_grad_() for part in output)
        loss = make(text)
        if "BSCEGRA" in text:
            pytest.skip(
                "its weights are constants for the gradient; tests/losses/test_bsce_gra.py looks at it"
            )
        if "FLSD" in text:  # its exponent has no gradient but does jump; stay away from 0.2
            probability = output.probs[torch.arange(6), labels]
            assert ((probability - 0.2).abs() > 1e-3).all()

        assert torch.autograd.gradcheck(lambda m, v: loss(LogitMoments(m, v), labels), parts)

    def test_order_of_the_batch_does_not_matter(self, text):
        output, labels = batch(text)
        loss, order = make(text), torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        permuted = LogitMoments(*(part[order] for part in output))

        torch.testing.assert_close(loss(permuted, labels[order]), loss(output, labels))

    def test_a_shift_of_all_logits_does_not_matter(self, text):
        if "ACLS" in text:
            pytest.skip("it looks at the largest logit itself; tests/losses/test_acls.py says so")
        if on_labels(text):
            pytest.skip("a sigmoid looks at the logit itself")
        output, labels = batch(text)
        loss = make(text)

        torch.testing.assert_close(loss(output._replace(mean=output.mean + 7), labels), loss(output, labels))

    @pytest.mark.parametrize("kind", ["right", "wrong", "mixed"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_saturated_logits_give_finite_values_and_gradients(self, text, kind, dtype):
        labels = torch.tensor([0, 1, 2, 3])
        aim = {"right": labels, "wrong": (labels + 1) % 4, "mixed": torch.tensor([0, 2, 2, 1])}[kind]
        mean = torch.full((4, 5), -1e4, dtype=dtype).scatter(1, aim[:, None], 1e4)
        loss = make(text).eval()  # not a training step: a saturated variance would warn
        for variance in (torch.zeros_like(mean), torch.full_like(mean, 1e4)):
            value, grads = value_and_grads(loss, LogitMoments(mean, variance), for_task(text, labels))

            assert value.isfinite()
            assert all(grad.isfinite().all() for grad in grads)

    @pytest.mark.parametrize("right", [True, False])
    def test_all_right_and_all_wrong_batches(self, text, right):
        output, _ = batch(text)
        labels = for_task(text, output.mean.argmax(1) if right else output.mean.argmin(1))
        value, grads = value_and_grads(make(text), output, labels)

        assert value.isfinite()
        assert all(grad.isfinite().all() for grad in grads)

    def test_a_batch_of_one(self, text):
        value, grads = value_and_grads(make(text), *batch(text, rows=1))

        assert value.isfinite()
        assert all(grad.isfinite().all() for grad in grads)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("autocast", [True, False])
    def test_half_precision_is_computed_in_single(self, text, dtype, autocast):
        output, labels = batch(text, dtype=dtype)
        loss = make(text)
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            value, grads = value_and_grads(loss, output, labels)

        assert value.dtype == torch.float32
        assert all(grad.isfinite().all() for grad in grads)
        torch.testing.assert_close(value, loss(LogitMoments(*(p.float() for p in output)), labels))

    def test_runs_on_the_meta_device(self, text):
        """A hidden look at a value fails here, and would wait for the device on an accelerator."""
        output, labels = batch(text, dtype=torch.float32)
        loss = make(text).to("meta")
        moments = LogitMoments(*(part.to("meta").requires_grad_() for part in output))
        value = loss(moments, labels.to("meta"))
        value.backward()

        assert value.device.type == "meta"
        assert moments.mean.grad.shape == moments.mean.shape

    def test_compiles_without_a_graph_break(self, text):
        torch._dynamo.reset()
        output, labels = batch(text)
        loss = make(text)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")

        torch.testing.assert_close(compiled(output, labels), loss(output, labels))

    def test_survives_deepcopy_pickle_and_state_dict(self, text):
        output, labels = batch(text)
        loss = make(text)
        expected = loss(output, labels)
        fresh = make(text)
        fresh.load_state_dict(loss.state_dict())

        for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), fresh):
            torch.testing.assert_close(twin(output, labels), expected)

    def test_text_form_reads_back(self, text):
        output, labels = batch(text)
        loss = make(text)
        again = make(str(loss))

        assert str(again) == str(loss)
        torch.testing.assert_close(again(output, labels), loss(output, labels), rtol=0, atol=0)

    def test_float_logits_only(self, text):
        output, labels = batch(text)
        with pytest.raises(ValueError, match="floating point"):
            make(text)(LogitMoments(output.mean.long(), output.variance), labels)

    def test_bad_labels_are_refused(self, text):
        output, labels = batch(text)
        loss = make(text)
        if on_labels(text):
            with pytest.raises(ValueError, match="labels must be 0 or 1, got 2 in row 3, column 0"):
                loss(output, labels.index_fill(0, torch.tensor([3]), 2))
            with pytest.raises(ValueError, match=r"shape \(12, 5\), .*got \(12,\); .* such as CrossEntropy"):
                loss(output, labels[:, 0])
            with pytest.raises(ValueError, match="labels must be a Tensor"):
                loss(output, labels.tolist())
            return

        with pytest.raises(ValueError, match=r"labels must lie in \[0, 4\] for 5 classes, got 5 at index 3"):
            loss(output, labels.index_fill(0, torch.tensor([3]), 5))
        with pytest.raises(ValueError, match="got -100 at index 0"):
            loss(output, labels.index_fill(0, torch.tensor([0]), -100))
        with pytest.raises(ValueError, match=r"use `labels.squeeze\(1\)`"):
            loss(output, labels[:, None])
        with pytest.raises(ValueError, match=r"shape \(12,\).*got \(11,\)"):
            loss(output, labels[1:])
        with pytest.raises(ValueError, match=r"use `labels.long\(\)`"):
            loss(output, labels.double())
        with pytest.raises(ValueError, match="use a task such as BinaryCrossEntropy"):
            loss(output, torch.ones(12, 5, dtype=torch.long))
        with pytest.raises(ValueError, match="class indices|use a task such as BinaryCrossEntropy"):
            loss(output, torch.ones(12, 5))
        with pytest.raises(ValueError, match="labels must be a Tensor"):
            loss(output, labels.tolist())

    def test_bad_outputs_are_refused(self, text):
        output, labels = batch(text)
        loss = make(text)

        with pytest.raises(ValueError, match=r"shape \(N, K\).* got \(12, 5, 1\)"):
            loss(LogitMoments(*(part[..., None] for part in output)), labels)
        if not on_labels(text):
            with pytest.raises(ValueError, match="for one logit .* BinaryCrossEntropy"):
                loss(LogitMoments(*(part[:, :1] for part in output)), labels)
        with pytest.raises(ValueError, match="the batch is empty"):
            loss(LogitMoments(*(part[:0] for part in output)), labels[:0])
        with pytest.raises(ValueError, match="NaN, first in row 2"):
            loss(output._replace(mean=output.mean.index_fill(0, torch.tensor([2]), torch.nan)), labels)

        class Bunch:
            logits = output.mean

        with pytest.raises(ValueError, match=r"got Bunch; pass its `.logits`"):
            loss(Bunch(), labels)


@pytest.mark.parametrize("text", ON_LABELS)
class TestLabels:
    """What losses of independent labels promise beside that."""

    def test_labels_are_numbers_of_any_type(self, text):
        output, labels = batch(text)
        loss = make(text)
        for dtype in (torch.float32, torch.float64, torch.int8, torch.bool):
            torch.testing.assert_close(loss(output, labels.to(dtype)), loss(output, labels))

    def test_one_logit_takes_labels_of_either_shape(self, text):
        if "[" in text:
            pytest.skip("it has weights of five labels")
        output, labels = batch(text)
        one = LogitMoments(*(part[:, :1] for part in output))
        loss = make(text)

        torch.testing.assert_close(loss(one, labels[:, 0]), loss(one, labels[:, :1]))

    def test_labels_between_are_taken_or_refused_by_name(self, text):
        output, labels = batch(text)
        loss = make(text)
        if loss.task.soft_targets:
            assert loss(output, 0.8 * labels + 0.1).isfinite()
        else:
            with pytest.raises(ValueError, match=f"{type(loss).__name__} takes nothing between them"):
                loss(output, 0.8 * labels + 0.1)


@pytest.mark.parametrize("text", ON_CLASSES)
def test_soft_labels_that_are_one_hot_equal_class_indices(text):
    output, labels = batch()
    loss = make(text)
    name = type(loss).__name__
    soft = torch.nn.functional.one_hot(labels, 5).double()
    if loss.soft_targets:
        torch.testing.assert_close(loss(output, soft), loss(output, labels))
    else:
        with pytest.raises(ValueError, match=f"{name} is defined for class indices"):
            loss(output, soft)


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(getattr(losses, n), losses.Task)])
def test_gradients_per_sample_through_vmap(name):
    output, labels = batch(name)
    loss = make(name)
    per_sample = torch.func.vmap(torch.func.grad(lambda z, y: loss(z[None], y[None])))(output.mean, labels)
    one_by_one = [
        torch.func.grad(lambda z, y=y: loss(z[None], y[None]))(z)
        for z, y in zip(output.mean, labels, strict=True)
    ]

    torch.testing.assert_close(per_sample, torch.stack(one_by_one))


@pytest.mark.parametrize("name", [n for n in NAMES if not getattr(losses, n).needs_variance])
def test_plain_logits_are_the_mean(name):
    output, labels = batch(name)

    torch.testing.assert_close(make(name)(output.mean, labels), make(name)(output, labels))


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_says_what_tables_call_it(name):
    assert getattr(losses, name).label in {
        *("NLL", "LS", "FL", "FLSD", "BS", "MMCE", "DCA", "MDCA", "MbLS", "MACC"),
        *("DFL", "BSCE-GRA", "ACLS", "ECP", "SB-ECE", "AvUC", "CLUE", "BCE", "BFL"),
    }
    assert "Example:" in getattr(losses, name).__doc__


def test_no_label_is_left_out_unseen():
    """-100 is what `F.cross_entropy` skips; here it is out of range, in compiled code too."""
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, -100, -100])
    for loss in (losses.CrossEntropy(), losses.LabelSmoothing()):
        with pytest.raises(ValueError, match="got -100 at index 2"):
            loss(logits, labels)
        with pytest.raises((IndexError, RuntimeError), match="-100 is out of bounds"):
            torch.compile(loss, backend="eager")(logits, labels)


def test_soft_labels_in_half_precision_and_with_negative_entries():
    thirds = torch.full((1, 3), 1 / 3, dtype=torch.bfloat16)
    assert losses.CrossEntropy()(torch.zeros(1, 3), thirds).isfinite()
    with pytest.raises(ValueError, match=r"row 0 has the entry -0\.5"):
        losses.CrossEntropy()(torch.zeros(1, 2), torch.tensor([[1.5, -0.5]]))


def test_a_criterion_in_half_precision_prints():
    assert str(losses.CrossEntropy(weight=[1, 2.5]).bfloat16()) == "CrossEntropy(weight=[1, 2.5])"
