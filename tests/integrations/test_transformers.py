"""The Trainer of transformers with a criterion and calibration metrics; models are tiny, random and
not downloaded.
"""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import transformers_classes
from torch import nn

import macc
from macc import losses
from macc.metrics import ece, evaluate_labels

transformers = pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")
accelerate = pytest.importorskip("accelerate")
from macc.integrations import transformers as ours  # noqa: E402

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 3,
}


@pytest.fixture(autouse=True)
def no_state():
    """Accelerate keeps the settings of the first accelerator of a process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def text_model():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, max_position_embeddings=16, classifier_dropout=0.0, **SMALL
    )
    return transformers.BertForSequenceClassification(config)


def image_model(kind):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(image_size=8, patch_size=4, **SMALL)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


def texts(count=64):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": torch.tensor(i % 3)} for i, row in enumerate(tokens)]


def images(count=32):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, 8, 8, generator=generator)
    return [{"pixel_values": row, "labels": torch.tensor(i % 3)} for i, row in enumerate(pixels)]


def trainer(folder, model, samples, compute, *, callbacks=None, **arguments):
    given = {
        "max_steps": 4, "per_device_train_batch_size": 8, "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "seed": 0, **arguments,
    }  # fmt: skip
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(folder), **given),
        train_dataset=samples,
        eval_dataset=samples,
        compute_loss_func=compute,
        compute_metrics=ours.metrics(),
        callbacks=callbacks,
    )


def logged(run, name):
    return [row[name] for row in run.state.log_history if name in row]


@pytest.mark.parametrize(
    ("model", "samples"),
    [
        pytest.param(text_model, texts, id="BERT"),
        pytest.param(lambda: image_model("ViT"), images, id="ViT"),
        pytest.param(lambda: image_model("DeiT"), images, id="DeiT"),
    ],
)
def test_training_uses_macc_and_evaluation_measures_calibration(model, samples, tmp_path):
    criterion = losses.CrossEntropy() + losses.MACC()
    run = trainer(tmp_path, macc.attach(model()), samples(), ours.loss(criterion), learning_rate=0.0)
    run.train()
    with pytest.warns(UserWarning, match="MACC is left out of the loss of plain logits"):
        found = run.evaluate()

    # Of a new network all certainties are nearly 1 and all confidences 1/3: MACC adds 2/3 to log 3,
    # and only in training.
    assert logged(run, "loss") == pytest.approx([1.0986 + 0.6667] * 4, abs=0.1)
    assert found["eval_loss"] == pytest.approx(1.0986, abs=0.1)
    assert {
        f"eval_{name}{end}" for name in ("accuracy", "nll", "ece", "sce") for end in ("", "_low", "_high")
    } < set(found)
    assert found["eval_ece_low"] <= found["eval_ece"] <= found["eval_ece_high"]
    predicted = run.predict(samples())
    probs = torch.from_numpy(predicted.predictions).softmax(1)
    assert found["eval_ece"] == pytest.approx(ece(probs, torch.from_numpy(predicted.label_ids)))


@pytest.mark.parametrize("num_labels", [1, 3])
def test_many_labels_and_one_logit_are_trained_and_measured(num_labels, tmp_path):
    config = transformers.BertConfig(
        vocab_size=50, classifier_dropout=0.0, **{**SMALL, "num_labels": num_labels}
    )
    generator = torch.Generator().manual_seed(0)
    samples = [
        {**sample, "labels": torch.randint(0, 2, (num_labels,), generator=generator).float()}
        for sample in texts(32)
    ]
    model = macc.attach(transformers.BertForSequenceClassification(config))
    compute = ours.loss(losses.BinaryCrossEntropy() + losses.MACC())
    run = trainer(tmp_path, model, samples, compute, max_steps=2, learning_rate=0.0)
    run.train()
    with pytest.warns(UserWarning, match="MACC is left out"):
        found = run.evaluate()

    # Of a new network all certainties are nearly 1 and all probabilities one half: MACC adds 1/2 to
    # log 2.
    assert logged(run, "loss") == pytest.approx([0.6931 + 0.5] * 2, abs=0.1)
    predicted = run.predict(samples)
    expected = evaluate_labels(predicted.predictions, predicted.label_ids, from_logits=True)
    assert found["eval_ece"] == pytest.approx(expected["positive_ece"].value)
    assert found["eval_nll_high"] == pytest.approx(expected["nll"].high)
    assert "eval_accuracy" not in found
    with pytest.raises(ValueError, match="no metric of labels is called 'accuracy'"):
        ours.metrics(["accuracy"])((predicted.predictions, predicted.label_ids))


def test_accumulated_batches_weigh_as_one_and_a_penalty_sees_each_by_itself(tmp_path):
    seen = []

    class Watching(losses.BatchPenalty):
        def measure(self, output, labels):
            seen.append(len(labels))
            return 0 * output.mean.sum()

    gradients = []
    for size, accumulated in ((16, 1), (4, 4)):
        model = macc.attach(text_model(), estimator="analytic")
        model.config.hidden_dropout_prob = 0.0
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        run = trainer(
            tmp_path, model, texts(16), ours.loss(losses.CrossEntropy() + Watching()), max_steps=1,
            per_device_train_batch_size=size, gradient_accumulation_steps=accumulated, max_grad_norm=0.0,
        )  # fmt: skip
        run.create_optimizer().register_step_pre_hook(
            lambda *_, model=model: gradients.append(model.classifier.weight.grad.clone())
        )
        run.train()

    assert seen == [16, 4, 4, 4, 4]
    assert torch.allclose(*gradients, atol=1e-6)


def test_a_larger_penalty_batch_has_the_gradient_of_the_whole():
    """At fixed weights: parts with memory add up to what all samples at once give."""
    torch.manual_seed(0)
    features, labels = torch.randn(32, 6), torch.arange(32) % 3
    head = macc.MCDropoutLinear(6, 3, estimator="analytic")
    nn.init.normal_(
        head.weight, std=0.73
    )  # certainty near confidence, so that parts differ in the sign of the gap
    criterion = losses.CrossEntropy() + 3 * losses.MACC() + 0.5 * losses.MbLS(margin=1)
    whole = torch.autograd.grad(criterion(head(features), labels), head.weight)[0]

    def of_parts(compute):
        total = torch.zeros_like(head.weight)
        for part in torch.arange(32).split(8):
            value = compute({"logits": head(features[part])}, labels[part], num_items_in_batch=32)
            total += torch.autograd.grad(value, head.weight)[0]
        return total

    compute = ours.loss(criterion, penalty_batch=32)
    of_parts(compute)  # the first batches have none before them
    assert torch.allclose(of_parts(compute), whole, atol=1e-6)
    assert not torch.allclose(of_parts(ours.loss(criterion)), whole, atol=1e-3)
    # The value is that of the joined samples, and evaluation does not touch what is kept.
    head.eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="left out"):
        compute({"logits": head(features)}, labels)
    head.train()
    last = compute({"logits": head(features[:8])}, labels[:8])
    parts = criterion.parts(head(features), labels)
    current = criterion.parts(head(features[:8]), labels[:8])
    assert last.item() == pytest.approx(
        (current["CrossEntropy"] + 3 * parts["MACC"] + 0.5 * current["MbLS"]).item(), abs=1e-6
    )


def test_a_penalty_batch_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="such as MACC, and CrossEntropy has none"):
        ours.loss(losses.CrossEntropy(), penalty_batch=64)
    with pytest.raises(ValueError, match="`penalty_batch` must be a whole number of samples, got 0"):
        ours.loss(losses.CrossEntropy() + losses.MACC(), penalty_batch=0)


def test_a_criterion_can_be_had_by_its_text():
    assert repr(ours.loss("Focal(gamma=2) + MACC").criterion) == "Focal(gamma=2) + MACC"
    with pytest.raises(ValueError, match="did you mean 'MACC'"):
        ours.loss("CrossEntropy + MAC")


def test_warm_up_counts_steps_and_resumes_where_it_was(tmp_path):
    shares = []

    class Noting(losses.Penalty):
        def measure(self, output, labels):
            shares.append(int(self.step))
            return 0 * output.mean.sum()

    def run(steps):
        compute = ours.loss(losses.CrossEntropy() + Noting(warmup=100))
        return trainer(
            tmp_path, macc.attach(text_model()), texts(), compute, callbacks=[compute], max_steps=steps,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, save_strategy="steps", save_steps=2,
        )  # fmt: skip

    run(2).train()
    assert shares == [0, 0, 1, 1]
    run(4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert shares[4:] == [2, 2, 3, 3]


def test_what_is_saved_loads_as_a_plain_model_and_as_an_attached_one(tmp_path):
    run = trainer(
        tmp_path, macc.attach(text_model()), texts(), ours.loss(losses.CrossEntropy() + losses.MACC())
    )
    run.train()
    run.save_model(str(tmp_path / "saved"))

    plain = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    batch = torch.stack([sample["input_ids"] for sample in texts(4)])
    expected = run.model.eval()(batch).logits
    assert type(plain.classifier) is nn.Linear
    assert torch.equal(plain.eval()(batch).logits, expected)
    assert torch.equal(macc.attach(plain).eval()(batch).logits, expected)


def test_the_model_card_has_the_calibration_of_the_last_evaluation(tmp_path):
    run = trainer(tmp_path, macc.attach(text_model()), texts(), ours.loss(losses.CrossEntropy()))
    run.train()
    run.evaluate()
    run.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()

    assert "Ece" in card
    assert "Sce" in card


def test_labels_inside_the_model_are_served_in_evaluation_and_refused_with_the_cure_in_training():
    model = macc.attach(text_model())
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long), "labels": torch.tensor([0, 1])}

    assert model.eval()(**batch).loss.isfinite()
    with pytest.raises(AttributeError, match="call a transformers model without `labels=`"):
        model.train()(**batch)


def test_half_precision(tmp_path):
    seen = []

    class Watching(losses.MACC):
        def measure(self, output, labels):
            seen.append((output.mean.dtype, torch.is_autocast_enabled("cpu")))
            return super().measure(output, labels)

    run = trainer(
        tmp_path, macc.attach(text_model()), texts(), ours.loss(losses.CrossEntropy() + Watching()), bf16=True, max_steps=2
    )  # fmt: skip
    run.train()

    assert {dtype for dtype, _ in seen} == {torch.float32}
    assert np.isfinite(logged(run, "loss")).all()


def test_two_processes_train_as_one(tmp_path):
    """The same global batch on one process and on two gives the same weights."""
    script = Path(__file__).parents[1] / "helpers" / "trainer_process.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for processes in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
        ]
        command = command if processes > 1 else [sys.executable]
        subprocess.run(
            [*command, script, tmp_path / f"{processes}.pt", str(8 // processes)],
            env=environment, check=True, capture_output=True,
        )  # fmt: skip
    one, two = (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))

    assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)
    assert one["ece"] == pytest.approx(two["ece"], abs=1e-4)
    for name, weight in one["weights"].items():
        assert torch.allclose(weight, two["weights"][name], atol=1e-5), name


def test_the_page_lists_the_classes_that_transformers_has():
    page = transformers_classes.PAGE.read_text()
    if transformers.__version__ not in page:
        pytest.skip("the page was written with another version of transformers")

    there = {name for task in transformers_classes.TASKS for name in transformers_classes.classes(task)}
    assert transformers_classes.listed(page) == there


@pytest.mark.filterwarnings("ignore")
def test_every_class_is_attached_to_or_refused_as_the_page_says():
    """Built with a tiny configuration, on the meta device; the sample below also trains."""
    page = transformers_classes.PAGE.read_text()
    if transformers.__version__ not in page:
        pytest.skip("the page was written with another version of transformers")
    served, rest = page.split("## Refused")
    computing = re.findall(r"- (\w+): computes with the logits after", rest)  # what the forward pass shows
    for name in sorted(transformers_classes.listed(page)):
        try:
            line = f"`{transformers_classes.taken(macc.attach(transformers_classes.weightless(name)))}`"
        except Exception:
            line = "with `example=batch`"
        there = f"- {name}: {line}\n" in served

        assert there or name in computing or (line.startswith("with") and f"- {name}: " in rest), (name, line)


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("BartForSequenceClassification", True),
        ("DistilBertForSequenceClassification", True),
        ("XLNetForSequenceClassification", True),
        ("ConvNextForImageClassification", True),
        ("Siglip2ForImageClassification", True),
        ("EuroBertForSequenceClassification", False),
        ("GPT2ForSequenceClassification", True),
        ("CTRLForSequenceClassification", False),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_the_classes_does_what_the_page_says(name, served):
    """Forward, backward with MACC and evaluation of a tiny model; the page has them all."""
    found = transformers_classes.tried(name, "image" if "Image" in name else "sequence")

    assert found.served is served, found
    if served:
        assert f"- {name}: {found.text}\n" in transformers_classes.PAGE.read_text()


def decoder():
    """A decoder whose `score` is applied to every token, without other dropout; the first text is
    padded.
    """
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    ids = torch.randint(3, 50, (4, 8))
    ids[0, 5:] = 0
    return transformers.GPT2ForSequenceClassification(config), {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
    }


def test_a_score_of_tokens_gives_the_moments_of_the_token_that_the_model_picks():
    model, batch = decoder()
    plain = model.eval()(**batch).logits
    model = macc.attach(model, estimator="analytic")
    hidden = model.transformer(**batch)[0]
    expected = model.score.moments(hidden[range(4), [4, 7, 7, 7]])

    assert torch.equal(model.eval()(**batch).logits, plain)
    for found in (
        model.train()(**batch).logits,
        model(**batch, return_dict=False)[0],
        macc.moments(model, batch),
    ):
        assert torch.allclose(found.mean, expected.mean, atol=1e-6)
        assert torch.allclose(found.variance, expected.variance, atol=1e-6)
    assert torch.allclose(expected.mean, plain, atol=1e-6)
    # Many masks come near their limit.
    model.score.estimator, model.score.samples = "sampled", 20000
    assert torch.allclose(model(**batch).logits.variance, expected.variance, rtol=0.1)
    (losses.CrossEntropy() + losses.MACC())(model(**batch).logits, torch.tensor([0, 1, 2, 0])).backward()
    assert model.transformer.wte.weight.grad.any()


def test_a_score_of_tokens_with_labels_copied_trained_and_detached(tmp_path):
    model, batch = decoder()
    names, plain = list(model.state_dict()), model.eval()(**batch).logits
    model = macc.attach(model)
    labels = torch.tensor([0, 1, 2, 0])

    assert list(model.state_dict()) == names
    assert model.eval()(**batch, labels=labels).loss.isfinite()
    with pytest.raises(ValueError, match="call it without `labels=` and give both to a criterion"):
        model.train()(**batch, labels=labels)
    assert isinstance(copy.deepcopy(model)(**batch).logits, macc.LogitMoments)
    assert tuple(macc.conventional_moments(model, batch, samples=3).variance.shape) == (4, 3)
    samples = [{"input_ids": row["input_ids"].clamp(min=3), "labels": row["labels"]} for row in texts(16)]
    run = trainer(
        tmp_path, copy.deepcopy(model), samples, ours.loss(losses.CrossEntropy() + losses.MACC()), learning_rate=0.0, max_steps=1
    )  # fmt: skip
    run.train()
    assert 1.0986 < logged(run, "loss")[0] < 2
    macc.detach(model)
    assert type(model.score) is nn.Linear
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert torch.equal(model.eval()(**batch).logits, plain)


def test_late_pooling_is_refused_with_the_cure():
    config = transformers_classes.configured("EuroBertForSequenceClassification", small=True)
    with pytest.raises(ValueError, match="set `classifier_pooling='mean'` in its configuration"):
        macc.attach(transformers.EuroBertForSequenceClassification(config))
    config.classifier_pooling = "mean"
    model = macc.attach(transformers.EuroBertForSequenceClassification(config))
    batch = {"input_ids": torch.full((2, 8), 5), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    assert transformers_classes.step(model, batch)


def test_the_layer_with_an_output_for_each_label_is_found_where_another_comes_last():
    config = transformers.XLMRobertaConfig(vocab_size=50, classifier_dropout=0.0, **SMALL)
    model = macc.attach(transformers.XLMRobertaForSequenceClassification(config))

    assert isinstance(model.classifier.out_proj, macc.MCDropoutLinear)
