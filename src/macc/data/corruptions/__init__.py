"""The 19 corruptions of Hendrycks and Dietterich as batched tensor code, one function each.

``corrupt(images, name, severity)`` changes a batch; ``corrupted(splits)`` gives a set its shifts.
What happens to an image depends on the corruption, the severity, the seed and the image's place in
its set, not on the batch it comes in. A function maps images ``(N, 3, H, W)`` in ``[0, 1]`` to such
images, clipped afterwards; its constants for severities 1 … 5 stand beside it for images of 32, 64
and 224 pixels.

Reference:
    Hendrycks and Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations*, ICLR 2019. What is here is written anew; ``frost_synthetic`` has made-up
    crystals where the original has photographs, and generated sets never carry the name of a
    published one.
"""

from macc.data.corruptions._apply import corrupt as corrupt
from macc.data.corruptions._apply import corrupted as corrupted
from macc.data.corruptions._apply import names as names
