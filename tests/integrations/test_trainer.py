"""The Trainer of transformers with a criterion, as docs/training.md says."""

import pytest
import torch

import macc
from macc import losses

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
STEPS, ACCUMULATED, BATCH = 10, 4, 8


@pytest.fixture(autouse=True)
def no_state():
    """Accelerate keeps the settings of the first accelerator of a process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_training_uses_macc_and_validation_leaves_it_out(tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3, classifier_dropout=0.0,
    )  # fmt: skip
    model = macc.attach(transformers.BertForSequenceClassification(config))
    samples = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 3)} for i in range(64)]
    criterion = losses.CrossEntropy() + losses.MACC(warmup=1)
    seen = []

    def loss(outputs, labels, num_items_in_batch=None):
        seen.append((model.training, isinstance(outputs.logits, macc.LogitMoments)))
        mean = criterion(outputs.logits, labels)
        return mean if num_items_in_batch is None else mean * len(labels) / num_items_in_batch

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            str(tmp_path), max_steps=STEPS, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
            eval_strategy="steps", eval_steps=5, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=samples,
        eval_dataset=samples,
        compute_loss_func=loss,
    )  # fmt: skip
    losses.count_steps(criterion, trainer.create_optimizer())
    with pytest.warns(UserWarning, match="MACC is left out of the loss of plain logits"):
        trainer.train()

    assert set(seen) == {(True, True), (False, False)}
    assert seen.count((True, True)) == STEPS * ACCUMULATED
    assert int(criterion.penalties[0].penalty.step) == STEPS
    trained = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    validated = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    # Of a new network all certainties are 1 and all confidences 1/3: MACC adds 2/3 to log 3, and only in training.
    assert trained[-1] == pytest.approx(1.0986 + 0.6667, abs=0.05)
    assert validated == pytest.approx([1.0986] * 2, abs=0.05)
