"""Corruptions: whole batches of tensors against imagecorruptions-imaug, which takes one image after
another.

Both run with ImageNet-C's constants at 224 pixels. At 32 pixels ours has CIFAR-10-C's constants;
the other package has only the large ones.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks._timing import Ratio, best_times
from macc.data import corruptions

SEVERITY = 3
# Images of each size: enough for a batch, few enough for a run of minutes.
SIZES = {32: 128, 224: 16}
REPEATS = 5
# Where the other package also spends its time in Pillow's compiled code; everything else must not
# be slower.
SLOWER = {"pixelate": 0.25, "jpeg_compression": 0.6}


def cases() -> Iterator[Ratio]:
    """For each corruption and size: our images per second over theirs."""
    try:
        import imagecorruptions
    except ImportError:
        print("corruptions: left out, `pip install imagecorruptions-imaug` is not there to compare with")
        return
    for side, count in SIZES.items():
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (count, 3, side, side), generator=generator).to(torch.uint8)
        arrays = [image.permute(1, 2, 0).contiguous().numpy() for image in images]
        for name in corruptions.names():
            theirs = "frost" if name == "frost_synthetic" else name
            ours_took, theirs_took = best_times(
                partial(corruptions.corrupt, images, name, SEVERITY),
                partial(_one_by_one, imagecorruptions, arrays, theirs),
                repeats=REPEATS,
            )
            speed = f"{count / ours_took:,.0f} images a second"
            yield Ratio(
                f"{name}, {side} pixels: speed over imagecorruptions ({speed})",
                theirs_took / ours_took,
                at_least=SLOWER.get(name, 1.0),
            )


def _one_by_one(library: Any, images: list[Any], name: str) -> None:
    for image in images:
        library.corrupt(image, corruption_name=name, severity=SEVERITY)
