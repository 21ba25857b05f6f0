"""Models by name, with what their data need."""

import pytest
import torch

from macc import models


def test_build_hands_on_the_vocabulary_and_the_vectors():
    assert models.build("gpcnn", num_classes=2, vocabulary=7).embedding.weight.shape == (7, 100)
    vectors = torch.randn(9, 5)
    assert torch.equal(
        models.build("gpcnn", num_classes=2, vectors=vectors).embedding.weight[1:], vectors[1:]
    )
    assert models.build("linear", num_classes=2, vocabulary=7)[1].in_features == 3


def test_mistakes():
    with pytest.raises(ValueError, match="no model is called 'resnet65'; did you mean 'resnet56'"):
        models.build("resnet65", num_classes=10)
    with pytest.raises(ValueError, match="no model is called 'q'; there are cnn, cnn_wide, gpcnn, linear, "):
        models.build("q", num_classes=10)
    with pytest.raises(ValueError, match="no model is called 'freeze'"):
        models.build("freeze", num_classes=10)
    with pytest.raises(ValueError, match="`num_classes` must be at least 2, got 1"):
        models.build("resnet20", num_classes=1)
    with pytest.raises(ValueError, match="`in_channels` must be at least 1, got 0"):
        models.build("resnet20", num_classes=3, in_channels=0)
    with pytest.raises(ValueError, match="no library is called 'keras'"):
        models.build("keras:net", num_classes=3)
    with pytest.raises(ValueError, match="'hf:' names no network; write hf:NAME"):
        models.build("hf:", num_classes=3)
