"""Every metric of one set of predictions under the same resamples, a file a kind of sums."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from torch import Tensor

from macc.metrics._metric import Metric
from macc.metrics._one_pass import OnePass, PerSample
from macc.metrics._refinement import held_out
from macc.metrics._resampling.cells import TopCells as TopCells
from macc.metrics._resampling.classes import ClassDraws, ClassErrors, adaptive, equal_width
from macc.metrics._resampling.gaps import (
    BinErrors,
    PositiveDraws,
    binned_errors,
    resampled_ks_error,
    resampled_smooth_ece,
)
from macc.metrics._resampling.means import MeanScores, mean_loss, mean_of, means
from macc.metrics._resampling.ranks import Selective, resampled_auroc, selective
from macc.metrics._resampling.samples import Resampling as Resampling
from macc.metrics.binning import TopLabels, class_gaps
from macc.metrics.inputs import Predictions
from macc.metrics.intervals import Sampled


class Draws:
    """What resampling shows of one set of predictions; each part is made when first asked for.

    Args:
        given: Predictions on the CPU.
        bins: Number of bins.
        resampling: The resamples; predictions of the same samples share them.
        positive: The positive class of two; class 1 by default.
        variance: Variance ``(N, K)`` of the logits, for the metric that is about certainty.
        confidence: Level of the intervals of single classes, which are left out without it.
        metrics: What is going to be measured: the pass keeps what they read.
    """

    def __init__(
        self,
        given: Predictions,
        *,
        bins: int,
        resampling: Resampling,
        positive: int | None = None,
        variance: Tensor | None = None,
        confidence: float | None = None,
        metrics: Iterable[Metric[Any]] = (),
    ):
        whole = any(metric.all_classes for metric in metrics)
        self._pass = OnePass(given, positive=1 if positive is None else positive, whole=whole)
        self._bins, self._resampling = bins, resampling
        self._variance, self._confidence = variance, confidence

    @property
    def sample(self) -> PerSample:
        """What one pass over the predictions leaves of each sample."""
        return self._pass.sample

    def mean(self, values: Tensor, least: float, most: float) -> Sampled:
        """The mean over samples of any values ``(N,)``, which is all that many a metric is.

        Args:
            values: One of each sample, made from :attr:`sample`.
            least: The least that one more sample could have.
            most: The most that it could have.
        """
        return mean_of(values, least, most, self._resampling)

    @cached_property
    def scores(self) -> "MeanScores":
        """Accuracy, NLL and Brier score."""
        return means(self.sample, self._resampling)

    @cached_property
    def refinement(self) -> Sampled:
        """NLL after temperature scaling."""
        return mean_loss(held_out(self._pass.given), self._pass.given.num_classes, self._resampling)

    @cached_property
    def cells(self) -> "TopCells":
        """The predicted classes in rising order of their confidence."""
        return TopCells(self.sample.top, self._bins, self._resampling)

    @cached_property
    def curve(self) -> "Selective":
        """The risk-coverage curve of confidence."""
        return selective(self.sample.top, self.cells, self._resampling)

    @cached_property
    def by_certainty(self) -> Sampled:
        """How well certainty ranks right above wrong predictions."""
        assert self._variance is not None  # noqa: S101 - asked for only where it is known
        certainty = 1 - self._variance.gather(1, self.sample.predicted[:, None])[:, 0].tanh()
        ranked = TopLabels(certainty, self.sample.top.correct)
        return selective(
            ranked, TopCells(ranked, self._bins, self._resampling), self._resampling
        ).failure_auroc

    @cached_property
    def auroc(self) -> Sampled:
        """The area under the ROC curve, averaged over classes."""
        return resampled_auroc(self._pass.probabilities, self._resampling)

    @cached_property
    def top(self) -> "BinErrors":
        """The errors of the bins of confidence."""
        return binned_errors(self.cells)

    @cached_property
    def smooth_ece(self) -> Sampled:
        """The smooth error of the predicted class."""
        return resampled_smooth_ece(self.sample.top, self.cells, self._resampling)

    @cached_property
    def ks_error(self) -> Sampled:
        """The largest cumulative gap of the predicted class."""
        return resampled_ks_error(self.sample.top, self.cells, self._resampling)

    @cached_property
    def positive(self) -> "PositiveDraws":
        """The probability of the positive class of two."""
        return PositiveDraws(self.sample.positive, self._bins, self._resampling)

    @cached_property
    def _class_draws(self) -> "ClassDraws":
        given = self._pass.probabilities
        labels = self._resampling.null_labels(given)
        return ClassDraws(given.labels, self._bins, self._resampling, labels)

    @cached_property
    def classes(self) -> "ClassErrors":
        """The errors of all classes in bins of equal width."""
        given = self._pass.probabilities
        gaps = class_gaps(given, self._bins).sums()
        return equal_width(given.scores, gaps, self.sample, self._class_draws, self._confidence)

    def adaptive(self, threshold: float | None) -> Sampled:
        """The mean error of all classes in bins of equal mass, above a threshold."""
        return adaptive(self._pass.probabilities.scores, threshold, self._class_draws)
