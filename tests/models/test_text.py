"""The network of the newsgroups, and its vectors."""

import pytest
import torch

from macc import models


def test_gpcnn_vectors():
    vectors = torch.randn(9, 5)
    frozen = models.gpcnn(num_classes=2, vectors=vectors)
    learned = models.gpcnn(num_classes=2, vectors=vectors, frozen=False)

    assert not frozen.embedding.weight.requires_grad
    assert learned.embedding.weight.requires_grad
    assert torch.equal(frozen.embedding.weight[1:], vectors[1:])
    assert not frozen.embedding.weight[0].any()
    assert models.gpcnn(num_classes=2).embedding.weight.shape == (2000, 100)
    with pytest.raises(ValueError, match="at least 21 tokens, got 20; pad them with 0"):
        frozen(torch.ones(1, 20, dtype=torch.int64))
    with pytest.raises(ValueError, match="`frozen=True` would keep random word vectors"):
        models.gpcnn(num_classes=2, frozen=True)
    with pytest.raises(ValueError, match=r"`vectors` must be \(vocabulary, dimensions\), got shape \(9,\)"):
        models.gpcnn(num_classes=2, vectors=torch.ones(9))
