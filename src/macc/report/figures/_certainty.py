"""What the MACC term aligns: certainty under dropout against confidence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from macc.heads import LogitMoments
from macc.metrics import evaluate, headline_errors, sce
from macc.metrics.inputs import Array, predictions
from macc.metrics.intervals import Estimate
from macc.report.figures.style import BLUE, FAINT, INK, RULE, axis, figure_of, panel
from macc.words import documented

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP = 500
FEWEST, MOST = 5, 15


@documented
def certainty_gap(
    moments: LogitMoments,
    labels: Array | None = None,
    *,
    bins: int = 50,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""Draw how far certainty and confidence lie apart, over all samples and classes.

    .. math:: |c_{ij} - \bar s_{ij}|, \quad c = 1 - \tanh(u), \quad \bar s = \mathrm{softmax}(\bar z)

    Args:
        moments: Mean and variance of the logits under dropout, ``(N, K)`` each; ``macc.moments``
            gives them.
        labels: Class indices ``(N,)``; with them, ECE and SCE of the mean logits are written
            beside.

    Returns:
        The figure.

    Example:
        >>> import torch, macc
        >>> moments = macc.LogitMoments(torch.zeros(4, 2), torch.full((4, 2), 0.5))
        >>> figure = certainty_gap(moments)
        >>> print(figure.axes[0].get_xlabel())  # 1 - tanh(0.5) - 0.5
        |certainty − confidence|
        mean 0.038
    """
    gaps = (moments.certainty - moments.probs).abs().double().flatten().cpu()
    mean = float(gaps.mean())
    with panel(ax) as ax:
        counts = torch.histc(gaps, bins, 0, 1)
        shares = (100 * counts / len(gaps)).tolist()
        edges = [i / bins for i in range(bins + 1)]
        ax.stairs(shares, edges, fill=True, color=BLUE, alpha=0.75)
        ax.axvline(mean, color=INK, linestyle=":", linewidth=1.3)
        words = f"mean {mean:.3f}"
        if labels is not None:
            errors = headline_errors()
            found = evaluate(moments.mean, labels, metrics=errors, from_logits=True, resamples=100)
            said = [
                f"{each.noun} {each.unit.write(found[name].value)}{each.unit.suffix}"
                for name, each in errors.items()
            ]
            words += f"; {', '.join(said)}"
        ax.set(xlim=(0, 1), xlabel=f"|certainty − confidence|\n{words}", ylabel="% of samples × classes")
    return figure_of(ax)


@documented
def sce_by_certainty(
    probs: Array,
    labels: Array,
    certainty: Array,
    *,
    group: int | None = None,
    from_logits: bool = False,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw the calibration error of groups of samples against how certain the model is of them.

    Samples are ordered by their mean certainty over classes and cut into groups of equal size, at
    least 500 samples and at most 15 groups. Each point is the SCE of a group with its 95 %
    interval; a grey mark below it is the SCE that chance alone would give, which differs between
    groups too.

    Args:
        probs: Probabilities ``(N, K)``.
        certainty: ``(N, K)``, as ``macc.moments(model, x).certainty``.
        group: Samples in a group; 500 or more where there are enough for five groups.

    Returns:
        The figure; below it stand Pearson's and Spearman's correlation over the groups.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(600, 3, generator=generator)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> figure = sce_by_certainty(logits, labels, torch.rand(600, 3), group=100, from_logits=True)
        >>> len(figure.axes[0].collections[0].get_offsets())
        6
    """
    return draw_groups(
        groups_by_certainty(probs, labels, certainty, group=group, from_logits=from_logits), ax
    )


@dataclass(frozen=True)
class Groups:
    """Samples in the order of their mean certainty over classes, cut into groups of equal size."""

    size: int
    certainty: tuple[float, ...]
    """Its mean in each group."""
    sce: tuple[Estimate, ...]

    def correlation(self) -> tuple[float, float] | None:
        """Pearson's and Spearman's, of certainty and SCE over groups, unless all are alike."""
        from scipy import stats

        values = [estimate.value for estimate in self.sce]
        if len(set(self.certainty)) < 2 or len(set(values)) < 2:
            return None
        pearson, spearman = (
            test(self.certainty, values).statistic for test in (stats.pearsonr, stats.spearmanr)
        )
        return float(pearson), float(spearman)


def groups_by_certainty(
    probs: Array, labels: Array, certainty: Array, *, group: int | None = None, from_logits: bool = False
) -> Groups:
    """What :func:`sce_by_certainty` draws."""
    given = predictions(probs, labels, from_logits=from_logits)
    scores, targets = given.matrix().cpu(), given.labels.cpu()
    mean = torch.as_tensor(certainty).double().mean(dim=1).cpu()
    if len(mean) != len(targets):
        raise ValueError(
            f"certainty has {len(mean)} samples and labels has {len(targets)}; they must pair up"
        )
    parts = mean.argsort(stable=True).tensor_split(group_count(len(targets), group))
    return Groups(
        len(targets) // len(parts),
        tuple(float(mean[part].mean()) for part in parts),
        tuple(evaluate(scores[part], targets[part], metrics=["sce"], resamples=200)["sce"] for part in parts),
    )


def draw_groups(groups: Groups, ax: "Axes | None" = None) -> "Figure":
    """Draw the SCE of groups against their certainty."""
    scale = sce.unit.scale
    x, y = groups.certainty, [scale * estimate.value for estimate in groups.sce]
    below = [max(0.0, scale * (estimate.value - estimate.low)) for estimate in groups.sce]
    above = [max(0.0, scale * (estimate.high - estimate.value)) for estimate in groups.sce]
    floors = [scale * (estimate.noise_floor or 0) for estimate in groups.sce]
    found = groups.correlation()
    words = "no correlation: all groups are alike"
    if found is not None:
        words = "Pearson r {:+.2f}, Spearman ρ {:+.2f}".format(*found).replace("-", "−")
    with panel(ax) as ax:
        ax.scatter(x, y, color=BLUE, s=26, zorder=3, label=f"groups of about {groups.size} samples")
        ax.errorbar(
            x, y, yerr=[below, above], fmt="none", ecolor=BLUE, alpha=0.5, elinewidth=1, capsize=2, zorder=2
        )
        ax.scatter(x, floors, color=FAINT, marker="_", s=60, zorder=2, label="by chance alone")
        ax.legend(loc="best")
        ax.set(xlabel=f"mean certainty\n{words}", ylabel=axis(sce))
        ax.set_ylim(bottom=0, top=1.25 * max(v + e for v, e in zip(y, above, strict=True)))
        ax.grid(axis="y", color=RULE)
    return figure_of(ax)


def group_count(samples: int, group: int | None) -> int:
    """How many groups to cut samples into.

    Example:
        >>> group_count(10_000, None), group_count(3_000, None), group_count(359, None)
        (15, 6, 5)
    """
    if group is not None:
        if group < 1 or samples // group < 2:
            raise ValueError(f"{samples} samples do not make two groups of {group}; choose smaller groups")
        return samples // group
    return max(FEWEST, min(MOST, samples // GROUP))
