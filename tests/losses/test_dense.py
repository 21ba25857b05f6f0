"""Dense prediction: every loss of a map is that of its pixels as rows, without those that are
ignored.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import macc
from macc import LogitMoments, losses
from macc.losses import _mmce

NAMES = sorted(
    name
    for name, value in vars(losses).items()
    if isinstance(value, type)
    and issubclass(value, losses.Task | losses.Penalty)
    and not getattr(value, "__abstractmethods__", None)
    and not getattr(value, "independent_labels", False)
)
IGNORED = 255


def maps(ignored: int = 7) -> tuple[LogitMoments, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(2, 5, 3, 4, generator=generator, dtype=torch.float64)
    variance = torch.rand(2, 5, 3, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (2, 3, 4), generator=generator)
    labels.view(-1)[torch.randperm(24, generator=generator)[:ignored]] = IGNORED
    return LogitMoments(mean, variance), labels


def by_hand(output: LogitMoments, labels: torch.Tensor) -> tuple[LogitMoments, torch.Tensor]:
    """The pixels with a label, one after another."""
    places = [(n, y, x) for n in range(2) for y in range(3) for x in range(4) if labels[n, y, x] != IGNORED]
    rows = LogitMoments(*(torch.stack([part[n, :, y, x] for n, y, x in places]) for part in output))
    return rows, torch.stack([labels[place] for place in places])


@pytest.mark.parametrize("name", NAMES)
class TestEveryLoss:
    def test_of_a_map_is_that_of_its_labelled_pixels(self, name):
        loss, (output, labels) = getattr(losses, name)(), maps()
        leaves = LogitMoments(*(part.clone().requires_grad_() for part in output))
        value = loss(leaves, labels, ignore_index=IGNORED)
        value.backward()

        torch.testing.assert_close(value, loss(*by_hand(output, labels)))
        unlabelled = (labels == IGNORED).unsqueeze(1).expand_as(output.mean)
        assert leaves.mean.grad is None or leaves.mean.grad[unlabelled].eq(0).all()

    def test_in_a_criterion(self, name):
        output, labels = maps()
        term = getattr(losses, name)()
        criterion = (
            term + losses.MACC() if isinstance(term, losses.Task) else losses.CrossEntropy() + 2 * term
        )
        rows = by_hand(output, labels)

        torch.testing.assert_close(criterion(output, labels, ignore_index=IGNORED), criterion(*rows))
        torch.testing.assert_close(
            criterion.parts(output, labels, ignore_index=IGNORED), criterion.parts(*rows)
        )
        torch.testing.assert_close(
            criterion.measured(output, labels, ignore_index=IGNORED), criterion.measured(*rows)
        )

    def test_rows_can_be_ignored_too(self, name):
        loss, (output, labels) = getattr(losses, name)(), maps(ignored=0)
        rows, row_labels = by_hand(output, labels)
        fewer = LogitMoments(*(part[3:] for part in rows))

        torch.testing.assert_close(
            loss(rows, row_labels.index_fill(0, torch.arange(3), -100), ignore_index=-100),
            loss(fewer, row_labels[3:]),
        )

    def test_maps_on_the_meta_device_and_in_one_graph(self, name):
        loss, (output, labels) = getattr(losses, name)(), maps(ignored=0)
        elsewhere = LogitMoments(*(part.to("meta") for part in output))
        assert loss(elsewhere, labels.to("meta")).shape == ()

        torch._dynamo.reset()
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(output, labels), loss(output, labels))


def test_cross_entropy_is_torchs():
    output, labels = maps()
    expected = F.cross_entropy(output.mean, labels, ignore_index=IGNORED)

    torch.testing.assert_close(losses.CrossEntropy()(output.mean, labels, ignore_index=IGNORED), expected)
    own = nn.CrossEntropyLoss(ignore_index=IGNORED) + losses.MACC()
    torch.testing.assert_close(own.parts(output, labels, ignore_index=IGNORED)["CrossEntropyLoss"], expected)


def test_macc_takes_class_means_over_pixels():
    output, labels = maps(ignored=0)
    gap = (output.mean.softmax(1) - (1 - output.variance.tanh())).mean((0, 2, 3))

    torch.testing.assert_close(losses.MACC()(output, labels), gap.abs().mean())
    torch.testing.assert_close(losses.MACC().diagnostics(output).gap, gap)


def test_one_logit_a_pixel():
    """Of a map, with labels with and without the axis of the one class."""
    output, labels = maps()
    output = LogitMoments(*(part[:, :1] for part in output))
    labels = torch.where(labels == IGNORED, labels, labels % 2)
    criterion = losses.BinaryCrossEntropy() + losses.MACC()
    kept = labels != IGNORED
    expected = F.binary_cross_entropy_with_logits(output.mean[:, 0][kept], labels[kept].double())

    torch.testing.assert_close(
        criterion.parts(output, labels, ignore_index=IGNORED)["BinaryCrossEntropy"], expected
    )
    clean = labels.clamp(max=1)
    torch.testing.assert_close(criterion(output, clean[:, None]), criterion(output, clean))


def test_soft_labels_of_maps():
    output, _ = maps()
    soft = torch.rand(2, 5, 3, 4, dtype=torch.float64).softmax(1)

    torch.testing.assert_close(losses.CrossEntropy()(output, soft), F.cross_entropy(output.mean, soft))
    with pytest.raises(ValueError, match="`ignore_index` is for class indices"):
        losses.CrossEntropy()(output, soft, ignore_index=IGNORED)


def test_refusals():
    output, labels = maps()
    loss = losses.CrossEntropy()
    with pytest.raises(
        ValueError, match="got 255 at index .*pass `ignore_index=255` to leave such samples out"
    ):
        loss(output, labels)
    with pytest.raises(ValueError, match="every label of the batch is the ignored 255; skip the batch"):
        loss(output, torch.full_like(labels, IGNORED), ignore_index=IGNORED)
    with pytest.raises(ValueError, match="`ignore_index` must be a whole number, got 'void'"):
        loss(output, labels, ignore_index="void")
    with pytest.raises(
        ValueError, match=r"must have shape \(2, 3, 4\), got \(2, 1, 3, 4\); use `labels.squeeze\(1\)`"
    ):
        loss(output, labels[:, None])
    with pytest.raises(ValueError, match=r"must have shape \(2, 3, 4\), got \(2, 6, 8\); resize the logits"):
        loss(output, torch.zeros(2, 6, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="shape of the mean"):
        losses.MACC()(LogitMoments(output.mean, output.variance[:1]), labels, ignore_index=IGNORED)


@pytest.mark.parametrize("width", [0.01, 0.4])
@pytest.mark.parametrize("knobs", [{}, {"weighted": False}, {"legacy": True}])
def test_mmce_of_many_rows_is_that_of_all_pairs(monkeypatch, knobs, width):
    output, labels = maps(ignored=0)
    loss = losses.MMCE(width=width, **knobs)
    values, gradients = [], []
    for many in (4096, 3):
        monkeypatch.setattr(_mmce, "MANY", many)
        mean = output.mean.clone().requires_grad_()
        values.append(loss(mean, labels))
        gradients.append(torch.autograd.grad(values[-1], mean)[0])

    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


def test_an_attached_network_learns_maps():
    torch.manual_seed(0)
    model = macc.attach(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)))
    images = torch.randn(4, 1, 8, 8)
    labels = (images[:, 0] > 0).long()
    labels[:, 0] = IGNORED
    criterion = losses.Focal(gamma=2) + 0.1 * losses.MACC()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        criterion(model(images), labels, ignore_index=IGNORED).backward()
        optimizer.step()

    right = model.eval()(images).argmax(1) == labels
    assert right[:, 1:].float().mean() > 0.95


def kept_bytes(step) -> int:
    """What autograd keeps for the backward pass of a step, each storage once."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step().backward()
    return sum(storage.nbytes() for storage in kept.values())


def test_closed_form_keeps_at_most_half_as_much_again_as_plain_dropout():
    conv = nn.Conv2d(64, 21, 1)
    head = macc.MCDropoutConv2d.from_conv(conv, estimator="analytic")
    images = torch.randn(2, 64, 32, 32, requires_grad=True)
    labels = torch.randint(0, 21, (2, 32, 32))
    criterion = losses.CrossEntropy() + losses.MACC()
    plain = kept_bytes(lambda: F.cross_entropy(conv(F.dropout(images, 0.2)), labels))
    ours = kept_bytes(lambda: criterion(head(images), labels))

    assert ours < 1.5 * plain
