"""Finding, replacing and restoring the classifier of models people have."""

import copy
import os
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import macc
from helpers.small_models import IMAGES, Body, Cnn
from macc import LogitMoments, MCDropoutLinear


class TimmLikeHead(nn.Module):
    """`head.fc`, as timm's ConvNeXt has it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.norm(x))


def transformers_model(name):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tiny = {"num_labels": 4}
    text = {
        **tiny,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 30,
    }
    vision = {
        **tiny,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
    }
    tokens = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}
    pixels = {"pixel_values": torch.zeros(2, 3, 8, 8)}
    make = {
        "resnet": lambda t: (
            t.ResNetForImageClassification(
                t.ResNetConfig(
                    **tiny, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"
                )
            ),
            {"pixel_values": torch.zeros(2, 3, 32, 32)},
        ),
        "deit": lambda t: (t.DeiTForImageClassification(t.DeiTConfig(**vision)), pixels),
        "deit-distilled": lambda t: (t.DeiTForImageClassificationWithTeacher(t.DeiTConfig(**vision)), pixels),
        "bert": lambda t: (t.BertForSequenceClassification(t.BertConfig(**text)), tokens),
        "roberta": lambda t: (t.RobertaForSequenceClassification(t.RobertaConfig(**text)), tokens),
        "gpt2": lambda t: (
            t.GPT2ForSequenceClassification(
                t.GPT2Config(**tiny, n_embd=16, n_layer=1, n_head=2, vocab_size=30, pad_token_id=0)
            ),
            tokens,
        ),
    }[name]
    torch.manual_seed(0)
    return make(transformers)


MODELS = {
    "sequential": lambda: (nn.Sequential(Body(), nn.Linear(6, 4)), "1"),
    "vgg-like": lambda: (
        nn.Sequential(Body(), nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))),
        "1.2",
    ),
    "torchvision-like fc": lambda: (Cnn("fc"), "fc"),
    "torchvision-like classifier": lambda: (
        Cnn("classifier", nn.Sequential(nn.ReLU(), nn.Linear(6, 4))),
        "classifier.1",
    ),
    "timm-like head": lambda: (Cnn("head"), "head"),
    "timm-like head.fc": lambda: (Cnn("head", TimmLikeHead()), "head.fc"),
    "out": lambda: (Cnn("out"), "out"),
    "logits": lambda: (Cnn("logits"), "logits"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("with_example", [False, True])
class TestAttach:
    def test_replaces_the_classifier_and_nothing_else(self, name, with_example):
        model, where = MODELS[name]()
        before = copy.deepcopy(model)
        parameters = dict(model.named_parameters())
        attached = macc.attach(model, p=0.3, samples=5, example=IMAGES if with_example else None)

        assert attached is model
        head = model.get_submodule(where)
        assert isinstance(head, MCDropoutLinear)
        assert (head.p, head.samples, head.training) == (0.3, 5, True)
        assert all(now is parameters[key] for key, now in model.named_parameters())
        assert model.state_dict().keys() == before.state_dict().keys()
        torch.testing.assert_close(model.eval()(IMAGES), before.eval()(IMAGES))
        assert isinstance(model.train()(IMAGES), LogitMoments)
        before.load_state_dict(model.state_dict())
        model.load_state_dict(before.state_dict())

    def test_detach_restores_it(self, name, with_example):
        model, where = MODELS[name]()
        weight = model.get_submodule(where).weight
        macc.attach(model, example=IMAGES if with_example else None)
        restored = macc.detach(model)

        assert restored is model
        assert type(model.get_submodule(where)) is nn.Linear
        assert model.get_submodule(where).weight is weight
        assert type(model(IMAGES)) is torch.Tensor


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("resnet", "classifier.1"),
        ("deit", "classifier"),
        ("bert", "classifier"),
        ("roberta", "classifier.out_proj"),
    ],
)
@pytest.mark.parametrize("with_example", [False, True])
def test_transformers_models(name, where, with_example):
    model, example = transformers_model(name)
    plain = copy.deepcopy(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # BERT's own dropout, reported below
        macc.attach(model, example=example if with_example else None)

    assert isinstance(model.get_submodule(where), MCDropoutLinear)
    torch.testing.assert_close(model.eval()(**example).logits, plain(**example).logits)
    output = model.train()(**example).logits
    assert isinstance(output, LogitMoments)
    macc.losses.parse("CrossEntropy + MACC")(output, torch.tensor([0, 1])).backward()
    assert macc.moments(model, example).certainty.shape == (2, 4)


def test_calling_a_transformers_model_with_labels_says_not_to():
    model, example = transformers_model("deit")
    macc.attach(model).train()
    with pytest.raises(AttributeError, match="call a transformers model without `labels=`"):
        model(**example, labels=torch.tensor([0, 1]))


class TestExample:
    def test_finds_the_layer_where_names_mislead(self):
        class Misnamed(Body):
            def __init__(self):
                super().__init__()
                self.last_step = nn.Linear(6, 4)
                self.head = nn.Linear(4, 4)  # never called

            def forward(self, x):
                return self.last_step(super().forward(x))

        model = macc.attach(Misnamed(), example=IMAGES)

        assert isinstance(model.last_step, MCDropoutLinear)
        assert type(model.head) is nn.Linear

    def test_leaves_modes_and_statistics_alone(self):
        model = Cnn()
        model.bn.eval()
        before = copy.deepcopy(model.state_dict())
        macc.attach(model, example=IMAGES)

        assert model.training
        assert not model.bn.training
        torch.testing.assert_close(dict(model.state_dict()), dict(before))
        assert not model.fc._forward_hooks

    def test_tuples_and_dicts_are_arguments_and_outputs(self):
        class Two(Body):
            def __init__(self):
                super().__init__()
                self.classify = nn.Linear(6, 4)

            def forward(self, x, scale):
                features = super().forward(x * scale)
                return {"logits": self.classify(features), "features": features}

        assert isinstance(macc.attach(Two(), example=(IMAGES, 2.0)).classify, MCDropoutLinear)
        assert isinstance(macc.attach(Two(), example={"x": IMAGES, "scale": 2.0}).classify, MCDropoutLinear)
        pair = Cnn("classify", after=lambda logits: (logits, None))
        assert isinstance(macc.attach(pair, example=IMAGES).classify, MCDropoutLinear)


class TestChoice:
    def test_an_unnamed_layer_lists_the_candidates_and_both_calls(self):
        with pytest.raises(ValueError) as caught:
            macc.attach(Cnn("projection"))

        message = str(caught.value)
        assert "'projection' (6 -> 4)" in message
        assert "macc.attach(model, layer='projection')" in message
        assert "macc.attach(model, example=batch)" in message

    def test_a_head_before_blocks_that_hold_an_out_is_not_passed_over(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 4)

        class Early(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 3)
                self.blocks = nn.ModuleList(Block() for _ in range(12))

            def forward(self, x):
                for block in self.blocks:
                    x = block.out(x).relu()
                return self.head(x)

        with pytest.raises(ValueError, match=r"linear layers: 'head' \(4 -> 3\), .*layer='head'") as caught:
            macc.attach(Early())
        assert "'blocks.11.out'" in str(caught.value)
        assert isinstance(macc.attach(Early(), example=torch.zeros(2, 4)).head, macc.MCDropoutLinear)
        assert isinstance(macc.attach(Early(), layer="head").head, macc.MCDropoutLinear)

    def test_layer_settles_it(self):
        assert isinstance(macc.attach(Cnn("projection"), layer="projection").projection, MCDropoutLinear)
        with pytest.raises(ValueError, match=r"no linear layer called 'nope'; linear layers: 'projection'"):
            macc.attach(Cnn("projection"), layer="nope")

    def test_an_attention_projection_is_no_classifier(self):
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.classifier = nn.Linear(6, 4)
                self.attention = nn.MultiheadAttention(6, 2)

        assert isinstance(macc.attach(Encoder()).classifier, MCDropoutLinear)

    def test_a_linear_model_comes_back_as_a_new_head(self):
        linear = nn.Linear(6, 4)
        head = macc.attach(linear, p=0.3)

        assert isinstance(head, MCDropoutLinear)
        assert head.weight is linear.weight
        assert type(linear) is nn.Linear
        restored = macc.detach(head)
        assert type(restored) is nn.Linear
        assert restored.weight is linear.weight

    def test_one_layer_under_two_names_is_replaced_in_both(self):
        model = Cnn("fc")
        model.alias = model.fc
        macc.attach(model, layer="fc")

        assert model.alias is model.fc

    def test_frozen_parameters_and_eval_mode_are_kept(self):
        model = Cnn("fc").eval()
        model.fc.weight.requires_grad_(False)
        macc.attach(model)

        assert not model.fc.training
        assert not model.fc.weight.requires_grad


class TestRefusals:
    def refused(self, model, message, **knobs):
        before = {name: type(module) for name, module in model.named_modules()}
        with pytest.raises(ValueError, match=message) as caught:
            macc.attach(model, **knobs)
        assert "\n" not in str(caught.value)
        assert {name: type(module) for name, module in model.named_modules()} == before

    @pytest.mark.parametrize(
        "after",
        [lambda z: z.softmax(-1), lambda z: z.squeeze(0) * 1, lambda z: z[:, 0], lambda z: (z + z) / 2],
    )
    def test_a_forward_that_goes_on_computing(self, after):
        self.refused(
            Cnn(after=after),
            "goes on computing after 'fc'.*return the logits of one linear layer",
            example=IMAGES,
        )

    def test_the_score_of_tokens_by_example(self):
        model, example = transformers_model("gpt2")
        self.refused(model, "goes on computing after 'score'", example=example)

    def test_a_head_before_a_sequence_that_ends_in_a_linear_layer(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(16, 3)
                self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))

            def forward(self, x):
                return self.head(self.body(x))

        self.refused(Odd(), "cannot tell which layer is the classifier")
        assert macc.attach(Odd(), example=torch.randn(2, 8))(torch.randn(2, 8)).mean.shape == (2, 3)

    def test_layers_of_such_names_inside_blocks_are_no_heads(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(8, 8)

            def forward(self, x):
                return x + self.out(x)

        model = nn.Sequential()
        model.blocks, model.mlp_head = Block(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))
        assert isinstance(macc.attach(model).mlp_head[1], macc.MCDropoutLinear)

    def test_distilled_heads(self):
        model, example = transformers_model("deit-distilled")
        self.refused(model, "cannot tell which layer")
        self.refused(model, "a mean of two heads", example=example)

    def test_parametrised_weights(self):
        parametrised = Cnn()
        nn.utils.parametrizations.weight_norm(parametrised.fc)
        self.refused(parametrised, "computed from other parameters.*remove that first")
        pruned = Cnn()
        prune.l1_unstructured(pruned.fc, "weight", amount=0.5)
        self.refused(pruned, "computed from other parameters")

    def test_lazy_weights(self):
        self.refused(Cnn("fc", nn.LazyLinear(4)), "is lazy.*run one batch through the model")

    def test_a_subclass_of_linear(self):
        class Cosine(nn.Linear):
            def forward(self, x):
                return super().forward(nn.functional.normalize(x))

        self.refused(Cnn("fc", Cosine(6, 4)), r"is a Cosine, not an nn.Linear.*macc.MCDropout\(layer\)")

    def test_compiled_models(self):
        self.refused(torch.compile(Cnn()), r"compiled; attach first: `torch.compile\(macc.attach\(model\)\)`")
        in_place = Cnn()
        in_place.compile()
        self.refused(in_place, "compiled; attach first")

    def test_wrapped_models(self):
        self.refused(
            nn.DataParallel(Cnn()),
            r"wrapped in DataParallel; attach first: `DataParallel\(macc.attach\(model\)\)`",
        )

    def test_scripted_models(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.trace(nn.Sequential(nn.Linear(6, 4)), torch.zeros(1, 6))
        with pytest.raises(ValueError, match="scripted or traced"):
            macc.attach(scripted)

    def test_a_second_attach(self):
        self.refused(
            macc.attach(Cnn()), r"already has an MC-dropout head at 'fc'; call `macc.detach\(model\)` first"
        )

    def test_hooks_would_be_lost(self):
        for register in ("register_forward_hook", "register_full_backward_pre_hook"):
            model = Cnn()
            getattr(model.fc, register)(lambda *_: None)
            self.refused(model, "has hooks that replacing it would lose")
        offloaded = Cnn()
        offloaded.fc.forward = lambda x: x
        self.refused(offloaded, "has hooks that replacing it would lose")

    @pytest.fixture
    def accelerate(self):
        """Accelerate as a new process has it: it keeps the settings of the first accelerator."""
        accelerate = pytest.importorskip("accelerate")
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        yield accelerate
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def test_a_prepared_model(self, accelerate):
        model = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(Cnn())
        self.refused(model, "`forward` was replaced.*before that", example=IMAGES)

    def test_a_head_itself(self):
        self.refused(MCDropoutLinear(6, 4), "is an MC-dropout head already")

    def test_layer_and_example_that_disagree(self):
        model = nn.Sequential(Body(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
        self.refused(model, "is that of '3' and not of '1'", layer="1", example=IMAGES)

    def test_detaching_a_parametrised_head(self):
        model = macc.attach(Cnn())
        nn.utils.parametrizations.spectral_norm(model.fc)
        with pytest.raises(ValueError, match="remove that before detaching"):
            macc.detach(model)

    def test_no_linear_layer(self):
        self.refused(nn.Sequential(nn.Conv2d(3, 4, 3)), r"no 1x1 convolution; put `macc.MCDropout\(head\)`")

    def test_detach_and_moments_without_a_head(self):
        with pytest.raises(ValueError, match="no MC-dropout head; call `macc.attach"):
            macc.detach(Cnn())
        with pytest.raises(ValueError, match="no MC-dropout head"):
            macc.moments(Cnn(), IMAGES)


class TestDropoutBefore:
    def test_sequential_is_reported(self):
        model = nn.Sequential(Body(), nn.Dropout(0.5), nn.Linear(6, 4))
        with pytest.warns(
            UserWarning,
            match=r"Dropout\(p=0.5\) is registered right before '2'.*dropped twice.*set its `p` to 0",
        ):
            macc.attach(model)

    def test_bert_is_reported(self):
        model, _ = transformers_model("bert")
        with pytest.warns(UserWarning, match=r"right before 'classifier'"):
            macc.attach(model)

    def test_a_switched_off_dropout_is_not(self):
        model = macc.attach(nn.Sequential(Body(), nn.Dropout(0.0), nn.Linear(6, 4)))

        assert isinstance(model[2], MCDropoutLinear)  # without a warning, which would be an error here


def test_a_layer_named_in_a_linear_model_is_refused():
    with pytest.raises(ValueError, match="is itself a linear layer and has none called 'fc'"):
        macc.attach(nn.Linear(4, 3), layer="fc")
