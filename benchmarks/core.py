"""The head and the losses: what MACC costs, and what the closed form and one backbone pass save."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import macc
from benchmarks._timing import Ratio, best_times
from macc import LogitMoments, losses
from macc.heads import MCDropoutLinear


def _step(
    model: nn.Module,
    criterion: nn.Module,
    x: Tensor,
    y: Tensor,
    forward: Callable[[nn.Module, Tensor], Tensor | LogitMoments] = lambda model, x: model(x),
) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        criterion(forward(model, x), y).backward()
        optimiser.step()

    return step


def resnet56(repeats: int = 6) -> Iterator[Ratio]:
    """A training step of the paper's network with and without MACC."""
    torch.manual_seed(0)
    x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    criterion = losses.Focal() + 10 * losses.MACC()

    def network() -> nn.Module:
        return macc.models.build("resnet56", num_classes=10)

    plain = _step(network(), losses.CrossEntropy(), x, y)
    sampled = _step(macc.attach(network()), criterion, x, y)
    analytic = _step(macc.attach(network(), estimator="analytic"), criterion, x, y)
    conventional = _step(
        macc.attach(network()), criterion, x, y, lambda model, x: macc.conventional_moments(model, x, 10)
    )
    base, with_samples, closed = best_times(plain, sampled, analytic, repeats=repeats)
    efficient, passes = best_times(sampled, conventional, repeats=2)
    yield Ratio(
        "ResNet-56 step, FL + 10*MACC (sampled, N = 10) over cross-entropy", with_samples / base, at_most=1.05
    )
    yield Ratio("ResNet-56 step, FL + 10*MACC (analytic) over cross-entropy", closed / base, at_most=1.03)
    yield Ratio(
        "ResNet-56 step, ten conventional passes over the efficient form", passes / efficient, at_least=7
    )


def head_only(repeats: int = 30) -> Iterator[Ratio]:
    """The head alone at ImageNet size, 2048 features to 1000 classes."""
    torch.manual_seed(0)
    x = torch.randn(256, 2048).relu().requires_grad_()
    y = torch.randint(0, 1000, (256,))
    criterion = losses.CrossEntropy() + 10 * losses.MACC()

    def sequential(head: nn.Module, x: Tensor) -> LogitMoments:
        assert isinstance(head, nn.Linear)
        passes = torch.stack([F.linear(F.dropout(x, 0.2), head.weight, head.bias) for _ in range(10)])
        variance, mean = torch.var_mean(passes, dim=0)
        return LogitMoments(mean, variance)

    plain = _step(nn.Linear(2048, 1000), nn.CrossEntropyLoss(), x, y)
    analytic = _step(macc.attach(nn.Linear(2048, 1000), estimator="analytic"), criterion, x, y)
    ten = _step(nn.Linear(2048, 1000), criterion, x, y, sequential)
    base, closed = best_times(plain, analytic, repeats=repeats)
    again, one_by_one = best_times(analytic, ten, repeats=max(3, repeats // 5))
    yield Ratio(
        "head 2048 -> 1000, batch 256: CE + 10*MACC (analytic) over cross-entropy", closed / base, at_most=2.0
    )
    yield Ratio(
        "head 2048 -> 1000: ten sequential dropout + linear passes over analytic",
        one_by_one / again,
        at_least=5,
    )


def masks(repeats: int = 10) -> Iterator[Ratio]:
    """Ten dropout masks from 16 random bits a unit, against ``F.dropout``."""
    torch.manual_seed(0)
    x = torch.randn(256, 2048)
    head = MCDropoutLinear(2048, 10)
    ours, theirs = best_times(
        lambda: head.moments(x),
        lambda: torch.var_mean(F.linear(F.dropout(x.expand(10, -1, -1), 0.2), head.weight), dim=0),
        repeats=repeats,
    )
    yield Ratio("head 2048 -> 10, batch 256: masks by F.dropout over ours", theirs / ours, at_least=1.5)


def mdca(repeats: int = 30) -> Iterator[Ratio]:
    """MDCA against the loop over classes of published code."""
    torch.manual_seed(0)
    logits = torch.randn(128, 1000, requires_grad=True)
    y = torch.randint(0, 1000, (128,))
    penalty = losses.MDCA()

    def looped() -> Tensor:
        probs = logits.softmax(dim=1)
        total = torch.zeros(())
        for j in range(1000):
            total = total + (probs[:, j].mean() - (y == j).float().mean()).abs()
        return total / 1000

    def gradient(value: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value, logits)

    fast, slow = best_times(
        lambda: gradient(penalty(logits, y)), lambda: gradient(looped()), repeats=max(3, repeats // 5)
    )
    yield Ratio("MDCA at K = 1000, batch 128: loop over classes over vectorised", slow / fast, at_least=50)


def cases() -> Iterator[Ratio]:
    """Every claim of this file."""
    yield from resnet56()
    yield from head_only()
    yield from masks()
    yield from mdca()
