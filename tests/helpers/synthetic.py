"""Predictions whose true class probabilities are known, and the metrics of their whole
population.
"""

import math
from functools import cached_property

import torch

SHARPNESS = {"calibrated": 1.0, "slightly over-confident": 1.2, "badly over-confident": 2.0}


def draw(n, k, sharpness, generator):
    """Stated probabilities, true probabilities, labels."""
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * (3.0 if k >= 100 else 2.0)
    truth = logits.softmax(1)
    labels = torch.multinomial(truth, 1, generator=generator)[:, 0]
    return (logits * sharpness).softmax(1), truth, labels


class Population:
    """Metrics of so many samples, with true probabilities in place of labels, that noise is
    negligible.
    """

    def __init__(self, k, sharpness, bins=15, seed=99):
        self.k = k
        self.sharpness = sharpness
        self.size = 40_000 if k >= 100 else 200_000
        self.bins = bins
        self.probs, self.truth, _ = draw(self.size, k, sharpness, torch.Generator().manual_seed(seed))
        self.confidence, predicted = self.probs.max(1)
        self.right = self.truth.gather(1, predicted[:, None])[:, 0]
        self.edges = torch.arange(1, bins, dtype=torch.float64) / bins
        residual = self.right - self.confidence
        self.top_bin = torch.bucketize(self.confidence, self.edges)
        self.top_gaps = torch.bincount(self.top_bin, residual, bins) / self.size
        self.top_shares = torch.bincount(self.top_bin, minlength=bins) / self.size
        cells = torch.bucketize(self.probs, self.edges) + bins * torch.arange(k)
        gaps = torch.bincount(cells.flatten(), (self.truth - self.probs).flatten(), bins * k) / self.size
        shares = torch.bincount(cells.flatten(), minlength=bins * k) / self.size
        order = self.confidence.argsort(descending=True)
        risk = (1 - self.right)[order].cumsum(0) / torch.arange(1, self.size + 1)
        within = (risk <= 0.05).nonzero()
        squared = (self.probs.square().sum(1) - 2 * (self.probs * self.truth).sum(1) + 1).mean().item()
        calibration = (gaps.square() / shares.clamp(min=1e-12)).sum().item()
        self.values = {
            "accuracy": self.right.mean().item(),
            "nll": -(self.truth * self.probs.log()).sum(1).mean().item(),
            "refinement": -(self.truth * self.truth.log()).sum(1).mean().item(),  # at the true temperature
            "brier": squared,
            "brier_calibration": calibration,
            "brier_refinement": squared - calibration,
            "auroc": sum(weighted_auroc(self.probs[:, j], self.truth[:, j]) for j in range(k)) / k,
            "ece": self.top_gaps.abs().sum().item(),
            "over_confidence": (-self.top_gaps).clamp(min=0).sum().item(),
            "under_confidence": self.top_gaps.clamp(min=0).sum().item(),
            "rmsce": (self.top_gaps.square() / self.top_shares.clamp(min=1e-12)).sum().sqrt().item(),
            "smooth_ece": self._smooth(residual),
            "ks_error": (residual[order].flip(0).cumsum(0).abs().max() / self.size).item(),
            "sce": gaps.abs().sum().item() / k,
            "failure_auroc": weighted_auroc(self.confidence, self.right),
            "aurc": risk.mean().item(),
            "risk_at_coverage": risk[int(0.9 * self.size) - 1].item(),
            "coverage_at_risk": (within.max().item() + 1) / self.size if len(within) else 0.0,
        }
        self.values["rmsce_debiased"] = self.values["rmsce"]

    def draw(self, n, generator):
        """Stated probabilities and labels of some samples."""
        probs, _, labels = draw(n, self.k, self.sharpness, generator)
        return probs, labels

    def largest_gap(self, filled):
        """MCE over the bins that a sample fills."""
        return (self.top_gaps[filled].abs() / self.top_shares[filled].clamp(min=1e-12)).max().item()

    def adaptive(self, sample, threshold=None):
        """ACE or TACE over the ranges that a sample ``(n, k)`` of probabilities cuts."""
        ordered, sums = self._ordered
        total = 0.0
        for j in range(sample.shape[1]):
            kept = sample[:, j] if threshold is None else sample[sample[:, j] > threshold, j]
            if len(kept) == 0:
                continue
            first = 0 if threshold is None else int(torch.searchsorted(ordered[j], threshold, right=True))
            ends = (torch.arange(1, self.bins) * len(kept) + self.bins - 1) // self.bins - 1
            edges = kept.sort().values[ends.clamp(min=0)].to(ordered.dtype)
            inner = torch.searchsorted(ordered[j], edges, right=True).clamp(min=first)
            places = torch.cat([torch.tensor([first]), inner, torch.tensor([self.size])])
            total += sums[j, places].diff().abs().sum().item() / (self.size - first)
        return total / sample.shape[1]

    @cached_property
    def _ordered(self):
        """Each class's probabilities in order ``(k, size)``, and the sums of what is left of the
        truth below each.
        """
        ordered, index = self.probs.T.sort(dim=1)
        residual = (self.truth - self.probs).T.gather(1, index).double().cumsum(dim=1)
        return ordered.contiguous(), torch.cat(
            [torch.zeros(len(ordered), 1, dtype=torch.float64), residual], dim=1
        )

    def _smooth(self, residual, cells=1024):
        """The fixed point, by products with a cosine basis: the reflected kernel is diagonal in
        it.
        """
        place = ((self.confidence * cells).long()).clamp(max=cells - 1)
        mass = torch.bincount(place, residual, cells) / self.size
        basis = torch.cos(
            torch.pi * torch.outer(torch.arange(cells), (torch.arange(cells) + 0.5) / cells)
        ).double()
        weight = torch.full((cells,), 2.0 / cells, dtype=torch.float64)
        weight[0] = 1.0 / cells
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            damping = torch.exp(-((torch.pi * torch.arange(cells) * middle) ** 2) / 2) * weight
            error = ((damping * (basis @ mass)) @ basis).abs().sum().item()
            low, high = (middle, high) if error > middle else (low, middle)
        return (low + high) / 2


class Constant:
    """Metrics of a model that always states the same: the first class, and the same for each of the
    others.
    """

    def __init__(self, k, confidence, accuracy):
        other, missed = (1 - confidence) / (k - 1), (1 - accuracy) / (k - 1)
        self.probs = torch.tensor([confidence] + [other] * (k - 1), dtype=torch.float64)
        self.truth = torch.tensor([accuracy] + [missed] * (k - 1), dtype=torch.float64)
        gaps = self.truth - self.probs
        top = gaps[0].item()
        calibration = gaps.square().sum().item()
        brier = self.probs.square().sum().item() + 1 - 2 * (self.probs @ self.truth).item()
        self.values = {
            "accuracy": accuracy,
            "nll": -(self.truth @ self.probs.log()).item(),
            # The others are alike, so a temperature reaches the truth, unless the first is like
            # them.
            "refinement": math.log(k)
            if abs(confidence - other) < 1e-9
            else -(self.truth @ self.truth.log()).item(),
            "brier": brier,
            "brier_calibration": calibration,
            "brier_refinement": brier - calibration,
            "over_confidence": max(-top, 0.0),
            "under_confidence": max(top, 0.0),
            **dict.fromkeys(("ece", "rmsce", "rmsce_debiased", "smooth_ece", "ks_error"), abs(top)),
            "sce": gaps.abs().mean().item(),
            "aurc": 1 - accuracy,
            "risk_at_coverage": 1 - accuracy,
        }

    def draw(self, n, generator):
        """Stated probabilities and labels of some samples."""
        return self.probs.repeat(n, 1), torch.multinomial(
            self.truth, n, replacement=True, generator=generator
        )

    def largest_gap(self, filled):
        """MCE, of the one bin there is."""
        return self.values["ece"]

    def adaptive(self, sample, threshold=None):
        """ACE or TACE: each class has one range."""
        counts = self.probs > (-1 if threshold is None else threshold)
        return ((self.truth - self.probs).abs() * counts).mean().item()


def weighted_auroc(scores, positive):
    """Area when each sample is positive with a known probability."""
    order = scores.argsort()
    up, down = positive[order], 1 - positive[order]
    return ((up * (down.cumsum(0) - down / 2)).sum() / (up.sum() * down.sum())).item()
