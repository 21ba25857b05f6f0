"""A calibrator as the last layer of a network."""

import json

import torch
from torch import Tensor, nn

from macc.posthoc._base import Calibrator, from_dict


class CalibratorModule(nn.Module):
    """Logits ``(N, K)`` in, calibrated probabilities out, on their device, in their precision.

    There is nothing to train. The state dict holds the calibrator whole, as the bytes of its JSON
    form, and loading one replaces the calibrator. Gradients flow through to the logits where the
    map has any.
    """

    def __init__(self, calibrator: Calibrator, *, double: bool = True):
        super().__init__()
        self.calibrator = calibrator
        self.double_precision = double

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities ``(N, K)``."""
        classes = self.calibrator.num_classes
        if logits.ndim != 2 or logits.shape[1] != classes:
            raise ValueError(f"logits must have shape (N, {classes}), got {tuple(logits.shape)}")
        # A copy, because maps may overwrite what they are given.
        dtype = torch.float64 if self.double_precision else logits.dtype
        log_probs = self.calibrator._log_probs(logits.to(dtype, copy=True))
        return log_probs.exp().to(logits.dtype)

    def extra_repr(self) -> str:
        """What stands between the brackets."""
        return f"{type(self.calibrator).__name__}, num_classes={self.calibrator.num_classes}"

    def get_extra_state(self) -> Tensor:
        """The calibrator as bytes."""
        content = json.dumps(self.calibrator.to_dict(), allow_nan=False).encode()
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Put the calibrator in place that these bytes describe."""
        try:
            content = json.loads(bytes(state.cpu().tolist()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the state holds no calibrator: {error}") from None
        self.calibrator = from_dict(content)
