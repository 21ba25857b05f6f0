"""The batches of one epoch, shared among processes or taken up in the middle, are the same
batches.
"""

import pytest
import torch

from macc.data import Augmentation, Batches, Part

PART = Part(inputs=torch.arange(100 * 16, dtype=torch.uint8).view(100, 1, 4, 4), labels=torch.arange(100))


def batches(**options):
    generator = torch.Generator().manual_seed(1)
    return Batches(
        part=PART, batch_size=16, generator=generator, augmentation=Augmentation(pad=1, flip=True), **options
    )


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_shares_of_all_processes_are_the_batch(drop_last):
    whole = list(batches(drop_last=drop_last))
    shares = [list(batches(drop_last=drop_last, rank=rank, processes=4)) for rank in range(4)]

    for step, (inputs, labels) in enumerate(whole):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), inputs)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), labels)
    assert {len(share) for share in shares} == {len(whole)}


def test_rows_that_do_not_divide_are_left_out():
    shares = [[len(labels) for _, labels in batches(rank=rank, processes=8)] for rank in range(8)]

    assert shares == [[2] * 6] * 8  # 100 = 6 x 16 + 4, and 4 rows are too few for 8
    assert {len(batches(rank=rank, processes=8)) for rank in range(8)} == {6}


def test_an_epoch_goes_on_where_it_was_broken_off():
    whole, rest = list(batches()), list(batches().epoch(skip=4))

    assert len(rest) == len(whole) - 4
    for (inputs, labels), (later_inputs, later_labels) in zip(whole[4:], rest, strict=True):
        assert torch.equal(inputs, later_inputs)
        assert torch.equal(labels, later_labels)


def test_uneven_shares_are_refused():
    with pytest.raises(ValueError, match="cannot be shared equally by 3 processes"):
        batches(processes=3)
    with pytest.raises(ValueError, match=r"`rank` must lie in \[0, 1\]"):
        batches(rank=2, processes=2)
