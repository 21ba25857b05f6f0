"""The head of dense prediction: the linear head at every pixel, and finding a last 1x1
convolution.
"""

import copy
import os
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import macc
from macc import LogitMoments, MCDropoutConv2d, MCDropoutLinear
from macc.heads import _moments, logits_in


def features(dtype=torch.float64):
    return torch.randn(2, 6, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def head(*, dtype=torch.float64, **knobs) -> MCDropoutConv2d:
    torch.manual_seed(0)
    return MCDropoutConv2d(6, 5, dtype=dtype, **knobs)


def twin(layer: MCDropoutConv2d) -> MCDropoutLinear:
    """The linear head with the same weights."""
    linear = nn.Linear(6, 5, bias=layer.bias is not None)
    linear.weight = nn.Parameter(layer.weight.detach().flatten(1))
    linear.bias = layer.bias
    return MCDropoutLinear.from_linear(linear, p=layer.p, samples=layer.samples, estimator=layer.estimator)


class TwoStages(nn.Module):
    """A body, and a 1x1 convolution under a name; `after` is what happens to the logits."""

    def __init__(self, name="classifier", after=lambda logits: logits):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.gate = nn.Linear(6, 6)
        self.add_module(name, nn.Conv2d(6, 5, 1))
        self.name, self.after = name, after

    def forward(self, x):
        f = self.body(x)
        f = f * self.gate(f.mean((2, 3)))[:, :, None, None].sigmoid()
        return self.after(getattr(self, self.name)(f))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("estimator", ["sampled", "analytic"])
def test_is_the_linear_head_at_every_pixel(estimator, bias):
    layer, x = head(estimator=estimator, bias=bias, p=0.3), features()
    linear = twin(layer)
    torch.manual_seed(1)
    output = layer(x)
    torch.manual_seed(1)
    expected = linear(x.movedim(1, -1).reshape(-1, 6))

    assert output.mean.shape == output.variance.shape == (2, 5, 3, 4)
    for ours, theirs in zip(output, expected, strict=True):
        torch.testing.assert_close(ours.movedim(1, -1).reshape(-1, 5), theirs)
    torch.testing.assert_close(layer.eval()(x), F.conv2d(x, layer.weight, layer.bias), rtol=0, atol=0)


def test_classes_of_a_map_are_the_second_axis():
    output = head()(features())
    rows = LogitMoments(*(part.movedim(1, -1).reshape(-1, 5) for part in output))

    torch.testing.assert_close(output.probs.sum(1), torch.ones(2, 3, 4, dtype=torch.float64))
    torch.testing.assert_close(output.separation.flatten(), rows.separation)


def test_gradients_of_chunks_are_those_of_the_masks_they_drew(monkeypatch):
    layer, x = head(p=0.3, samples=4), features()
    monkeypatch.setattr(_moments, "MASK_BYTES", 5 * 4 * 6 * 8)  # five pixels a chunk

    def value(inputs):
        torch.manual_seed(3)
        output = layer(inputs)
        return (output.probs * output.certainty).sum()

    assert torch.autograd.gradcheck(value, x[:1].clone().requires_grad_())


def test_one_sample_is_ordinary_dropout():
    layer, x = head(samples=1, p=0.4), features()
    torch.manual_seed(5)
    output = layer(x)
    torch.manual_seed(5)

    torch.testing.assert_close(output, F.conv2d(F.dropout(x, 0.4), layer.weight, layer.bias))
    with pytest.raises(ValueError, match="at least two dropout masks"):
        layer.moments(x)


@pytest.mark.parametrize("estimator", ["sampled", "analytic"])
def test_precision_meta_and_compile(estimator):
    layer, x = head(dtype=torch.float32, estimator=estimator), features(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).variance.dtype == torch.float32
    assert copy.deepcopy(layer).to("meta")(x.to("meta")).mean.shape == (2, 5, 3, 4)
    assert pickle.loads(pickle.dumps(layer)).p == layer.p
    torch._dynamo.reset()
    assert isinstance(torch.compile(layer, fullgraph=True, backend="eager")(x), LogitMoments)


def test_refused_shapes():
    with pytest.raises(ValueError, match=r"shape \(N, 6, H, W\), got \(6, 3, 4\)"):
        head()(features()[0])
    with pytest.raises(ValueError, match="use a 1x1 convolution"):
        twin(head())(features().movedim(1, -1))
    with pytest.raises(ValueError, match="1x1 convolution without stride"):
        MCDropoutConv2d.from_conv(nn.Conv2d(6, 5, 1, stride=2))


class TestAttach:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: (TwoStages(), {}),
            lambda: (TwoStages("last"), {"layer": "last"}),
            lambda: (TwoStages("last"), {"example": torch.zeros(1, 3, 4, 4)}),
            lambda: (TwoStages(after=lambda logits: {"out": logits}), {"example": torch.zeros(1, 3, 4, 4)}),
            lambda: (nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1)), {}),
            lambda: (nn.Conv2d(3, 5, 1), {}),
        ],
    )
    def test_and_back(self, make):
        torch.manual_seed(0)
        model, how = make()
        x, before = torch.randn(2, 3, 4, 4), copy.deepcopy(model)
        attached = macc.attach(model, **how)
        output = logits_in(attached(x))

        assert output.mean.shape == (2, 5, 4, 4)
        assert attached.state_dict().keys() == before.state_dict().keys()
        torch.testing.assert_close(logits_in(attached.eval()(x)), logits_in(before(x)), rtol=0, atol=0)
        assert macc.moments(attached, x, estimator="analytic").certainty.shape == (2, 5, 4, 4)
        assert macc.conventional_moments(attached, x, samples=2).variance.shape == (2, 5, 4, 4)
        restored = macc.detach(attached)
        assert not any(isinstance(module, MCDropoutConv2d) for module in restored.modules())
        torch.testing.assert_close(logits_in(restored(x)), logits_in(before(x)), rtol=0, atol=0)

    def test_a_linear_classifier_is_preferred_to_convolutions_before_it(self):
        model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Flatten(), nn.Linear(6 * 16, 4))

        assert isinstance(macc.attach(model)[2], MCDropoutLinear)

    def test_refused(self):
        resized = TwoStages(after=lambda logits: F.interpolate(logits, scale_factor=2))
        with pytest.raises(ValueError, match="goes on computing after 'classifier'.*a resizing of the map"):
            macc.attach(resized, example=torch.zeros(1, 3, 4, 4))
        with pytest.raises(ValueError, match=r"'body\.0' is not a 1x1 convolution"):
            macc.attach(TwoStages(), layer="body.0")
        with pytest.raises(ValueError, match=r"1x1 convolutions: '0' \(3 -> 6\); settle it with"):
            macc.attach(nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU()))

    def test_a_semantic_segmentation_model_of_transformers(self):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = pytest.importorskip("transformers")
        config = transformers.SegformerConfig(
            num_labels=4,
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[4, 8],
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[1, 1],
            mlp_ratios=[1, 1],
            decoder_hidden_size=8,
            classifier_dropout_prob=0.0,
        )
        model = macc.attach(transformers.SegformerForSemanticSegmentation(config)).train()

        assert isinstance(model.decode_head.classifier, MCDropoutConv2d)
        assert model(torch.zeros(2, 3, 16, 16)).logits.mean.shape[:2] == (2, 4)
