"""CIFAR-10-C and CIFAR-100-C, from their authors' files."""

from collections.abc import Sequence
from os import PathLike

from macc.data._cells import choose, read_cells
from macc.data._datasets import dataset
from macc.data._splits import Splits
from macc.data.cifar import SIZES, cifar10, cifar100
from macc.data.files import Copies, data_root

LICENCE = "CC BY 4.0"
CIFAR10_C = Copies.on_zenodo("CIFAR-10-C", 2535967, md5="56bf5dcef84df0e2308c6dcbcbbd8499", megabytes=2918)
CIFAR100_C = Copies.on_zenodo("CIFAR-100-C", 3555552, md5="11f0ed0f1191edbf9fa23466ae6021d3", megabytes=2918)


@dataset(
    summary="CIFAR-10 with its test images under 19 corruptions at five levels",
    kind="image",
    num_classes=10,
    sizes=SIZES,
    licence=LICENCE,
    sources=CIFAR10_C,
    levels=True,
)
def cifar10_c(
    *,
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    corruptions: Sequence[str] | None = None,
) -> Splits:
    """CIFAR-10-C: the splits of CIFAR-10, and the shifts ``gaussian_noise-1`` … ``saturate-5``.

    A run trained on ``cifar10`` is evaluated on them by ``macc predict RUN --on cifar10_c``. Pixels
    stay in their files until they are used.

    Args:
        root: The folder that holds ``CIFAR-10-C`` (or ``CIFAR-10-C.tar``) and the files of
            ``cifar10``.
        verify: Check an archive's MD5 before it is unpacked, that labels are those of the clean
            test images, and the files of ``cifar10``.
        corruptions: Which to read; if not given, all 19 where their files are there, else the
            standard 15.

    Reference:
        Hendrycks and Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations*, ICLR 2019.
    """
    return _read(
        "cifar10_c", "CIFAR-10-C", CIFAR10_C, cifar10(root=root, verify=verify), root, verify, corruptions
    )


@dataset(
    summary="CIFAR-100 with its test images under 19 corruptions at five levels",
    kind="image",
    num_classes=100,
    sizes=SIZES,
    licence=LICENCE,
    sources=CIFAR100_C,
    levels=True,
)
def cifar100_c(
    *,
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    corruptions: Sequence[str] | None = None,
) -> Splits:
    """CIFAR-100-C: the splits of CIFAR-100, and the shifts ``gaussian_noise-1`` … ``saturate-5``.

    Args:
        root: The folder that holds ``CIFAR-100-C`` (or ``CIFAR-100-C.tar``) and the files of
            ``cifar100``.
        verify: As for ``cifar10_c``.
        corruptions: As for ``cifar10_c``.
    """
    return _read(
        "cifar100_c", "CIFAR-100-C", CIFAR100_C, cifar100(root=root, verify=verify), root, verify, corruptions
    )


def _read(
    name: str,
    folder: str,
    copies: Copies,
    clean: Splits,
    root: str | PathLike[str] | None,
    verify: bool,
    corruptions: Sequence[str] | None,
) -> Splits:
    place = copies.require_folder(name, data_root(root), only=folder, verify=verify)
    present = {path.stem for path in place.glob("*.npy")}
    chosen = choose(name, present, corruptions, place)
    return read_cells(name, place, clean, corruptions=chosen, verify=verify)
