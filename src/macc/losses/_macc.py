"""Multi-class alignment of confidence and certainty (MACC)."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from macc.heads import LogitMoments
from macc.losses._checks import UNKNOWN, Output, check_moments, values_readable
from macc.losses._dense import flat
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import batch_mean
from macc.tables import Table, html_of

# Beyond this uncertainty the slope of tanh is below 1.4e-3: MACC hardly moves it any more.
SATURATED = 4.0

# Half of the variances beyond it is ordinary in trainings that go well, and single batches go
# higher. Without effect is a MACC whose variances are nearly all there, step after step.
NEARLY_ALL = 0.9
PATIENCE = 25


def macc(confidence: Tensor, certainty: Tensor, *, known: Tensor | None = None, sync: bool = False) -> Tensor:
    """Gap between the batch means of confidence and certainty ``(N, K)``, averaged over classes; of
    what is ``known``.
    """
    return batch_mean(confidence - certainty, known=known, sync=sync).abs().mean()


class MACC(BatchPenalty):
    r"""Gap between mean confidence and mean certainty of each class in a batch, averaged over
    classes.

    .. math:: \frac1K \sum_j \Bigl| \frac1N \sum_i \bar s_i[j] - \frac1N \sum_i c_i[j] \Bigr|,
        \qquad \bar s = \mathrm{softmax}(\bar z), \quad c = 1 - \tanh u

    with mean ``z̄`` and variance ``u`` of the logits under dropout of the last features: the model
    needs a head that reports them (:func:`macc.attach`). Gradients flow through confidence and
    certainty.

    The formula has no labels. Confidences of a sample add up to 1, so the loss is zero only where
    the mean certainty is ``1/K``, that is where ``u`` is near ``atanh(1 - 1/K)``, its fixed point.
    A new network starts at ``u ≈ 0`` and a loss of ``1 - 1/K``: a large weight first drives ``u``
    up, and may drive it to where tanh is flat and the loss has hardly any gradient left. Start with
    weight 1 and a ``warmup`` of half of training; :meth:`diagnostics` shows where training stands.

    Beside a task of independent labels, as in ``BinaryCrossEntropy() + MACC()``, the confidence of
    a label is ``sigmoid(z̄)``. It does not share a sum with the others: the fixed point of each
    label is where its mean certainty is its mean confidence, and with it about the frequency of the
    label.

    Returns:
        Scalar in ``[0, 1]``. Labels are not used.

    Example:
        >>> import torch
        >>> from macc import LogitMoments
        >>> output = LogitMoments(torch.zeros(4, 2), torch.zeros(4, 2))
        >>> MACC()(output, torch.tensor([0, 1, 0, 1]))
        tensor(0.5000)

    Reference:
        Kugathasan and Khan, *Multiclass Alignment of Confidence and Certainty for Network
        Calibration*, GCPR 2023, equation 1.
    """

    label = "MACC"
    soft_targets = True
    needs_variance = True

    def __init__(self, *, warmup: int = 0, sync: bool = True) -> None:
        super().__init__(warmup=warmup, sync=sync)
        self._saturated_steps = 0

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`macc` of checked moments."""
        moments = check_moments(output, "MACC")
        self.checked(moments, labels)
        self._warn_if_saturated(moments)
        return macc(moments.probs, moments.certainty, sync=self.sync)

    def measure_labels(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`macc` of sigmoids."""
        moments = check_moments(output, "MACC", classes=False)
        _, targets = self.checked_labels(moments, labels)
        self._warn_if_saturated(moments)
        known = targets != UNKNOWN
        return macc(moments.mean.sigmoid(), moments.certainty, known=known, sync=self.sync)

    def diagnostics(self, output: LogitMoments, *, independent_labels: bool = False) -> "MACCDiagnostics":
        """Where training stands, from one batch; waits for the device.

        Args:
            output: What the model returns in training, or :func:`macc.moments`.
            independent_labels: Whether the logits are independent labels, as beside
                ``BinaryCrossEntropy``.

        Example:
            >>> import torch
            >>> from macc import LogitMoments
            >>> print(MACC().diagnostics(LogitMoments(torch.eye(2), torch.full((2, 2), 0.1))))
            mean u 0.100 (fixed point 0.549), 0.0 % of u above 4
            class  confidence  certainty     gap
            0           0.500      0.900  -0.400
            1           0.500      0.900  -0.400
            MACC is now raising the logit scale: certainty is above confidence.
        """
        if isinstance(output, LogitMoments):  # on the CPU, where values are checked too
            output = LogitMoments(*(part.detach().cpu().double() for part in output))
        moments = check_moments(flat(output), "MACC.diagnostics", classes=not independent_labels)
        mean, variance = moments
        probs = mean.sigmoid() if independent_labels else moments.probs
        confidence, certainty = probs.mean(dim=0), moments.certainty.mean(dim=0)
        gap = confidence - certainty
        # Scaling the logits by e^t scales u by e^2t: the slope of the loss along t at t = 0.
        centre = probs * mean if independent_labels else (probs * mean).sum(dim=1, keepdim=True)
        of_confidence = probs * (mean - centre)
        of_uncertainty = 2 * variance * (1 - variance.tanh().square())
        slope = (gap.sign() * (of_confidence + of_uncertainty).mean(dim=0)).mean()
        # Softmax confidences add up to 1, so their means cannot all move to where a certainty is.
        rest = confidence if independent_labels else torch.full_like(confidence, 1 / len(confidence))
        return MACCDiagnostics(
            confidence=confidence,
            certainty=certainty,
            gap=gap,
            mean_u=float(variance.mean()),
            fixed_point=float((1 - rest).atanh().mean()),
            saturated=float((variance > SATURATED).double().mean()),
            scale_slope=float(slope),
        )

    def _warn_if_saturated(self, moments: LogitMoments) -> None:
        """Warn once when tanh was flat at nearly all variances for many training steps."""
        if self._saturated_steps == PATIENCE or not (
            self.training and torch.is_grad_enabled() and values_readable(moments.variance)
        ):
            return
        # Where so many are beyond it, the mean of values that are not negative is; it is one pass.
        possible = float(moments.variance.detach().mean()) > NEARLY_ALL * SATURATED
        share = float((moments.variance > SATURATED).float().mean()) if possible else 0.0
        self._saturated_steps = self._saturated_steps + 1 if share > NEARLY_ALL else 0
        if self._saturated_steps == PATIENCE:
            warnings.warn(
                f"in {PATIENCE} training steps in a row more than {NEARLY_ALL:.0%} of the logit variances were above "
                f"{SATURATED:g}, where tanh is flat: MACC has no effect there; use a smaller dropout rate p, a smaller "
                f"weight or a {'longer ' if self.warmup else ''}warm-up (`MACC(warmup=...)`)",
                UserWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class MACCDiagnostics:
    """What :meth:`MACC.diagnostics` found."""

    confidence: Tensor
    """Mean confidence of each class, ``(K,)``."""
    certainty: Tensor
    """Mean certainty of each class, ``(K,)``."""
    gap: Tensor
    """Confidence minus certainty, ``(K,)``."""
    mean_u: float
    """Mean variance of the logits."""
    fixed_point: float
    """Where the variance comes to rest if MACC alone decides, ``atanh(1 - 1/K)``; of independent
    labels the mean of ``atanh(1 - confidence)``.
    """
    saturated: float
    """Share of variances above 4, where tanh is flat."""
    scale_slope: float
    """Slope of MACC along a common scale of all logits; training moves against it."""

    @property
    def sentence(self) -> str:
        """Whether MACC is now raising or lowering the logit scale."""
        if self.saturated > NEARLY_ALL:
            return "MACC has hardly any gradient left: nearly all variances are where tanh is flat."
        if abs(self.scale_slope) < 1e-6:
            return "MACC is not moving the logit scale."
        raising = self.scale_slope < 0
        above = float(self.gap.sum()) < 0
        # Both mostly go together; where classes pull in different directions they need not.
        reason = f": certainty is {'above' if above else 'below'} confidence" if raising == above else ""
        return f"MACC is now {'raising' if raising else 'lowering'} the logit scale{reason}."

    def __str__(self) -> str:
        rows = [
            f"{j:<5}  {c:>10}  {t:>9}  {g:>6}"
            for j, c, t, g in [("class", "confidence", "certainty", "gap"), *self._rows]
        ]
        return "\n".join([self._means, *rows, self.sentence])

    def _repr_html_(self) -> str:
        table = Table.of(["class", "confidence", "certainty", "gap"], self._rows)
        return html_of(self._means, table, self.sentence)

    @property
    def _means(self) -> str:
        return (
            f"mean u {self.mean_u:.3f} (fixed point {self.fixed_point:.3f}), "
            f"{100 * self.saturated:.1f} % of u above {SATURATED:g}"
        )

    @property
    def _rows(self) -> list[tuple[str, str, str, str]]:
        values = zip(self.confidence.tolist(), self.certainty.tolist(), self.gap.tolist(), strict=True)
        return [(str(j), f"{c:.3f}", f"{t:.3f}", f"{g:+.3f}") for j, (c, t, g) in enumerate(values)]
