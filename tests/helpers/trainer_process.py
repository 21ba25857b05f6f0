"""A training by the Trainer of transformers, to be started by itself or by torchrun: FILE BATCH."""

import sys
import tempfile

import torch
import transformers
from torch import nn

import macc
from macc import losses
from macc.integrations import transformers as ours


def main(path: str, batch: int) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = macc.attach(transformers.BertForSequenceClassification(config), estimator="analytic")
    tokens = torch.randint(0, 50, (32, 8), generator=torch.Generator().manual_seed(0))
    samples = [{"input_ids": row, "labels": torch.tensor(i % 3)} for i, row in enumerate(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        run = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                folder, max_steps=4, per_device_train_batch_size=batch, gradient_accumulation_steps=2, logging_steps=1,
                learning_rate=1e-3, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
            ),
            train_dataset=samples,
            eval_dataset=samples,
            compute_loss_func=ours.loss(losses.CrossEntropy() + losses.MACC(), penalty_batch=2 * batch),
            compute_metrics=ours.metrics(),
        )  # fmt: skip
        run.train()
        found = run.evaluate()
    if run.is_world_process_zero():
        plain = run.accelerator.unwrap_model(run.model)
        assert isinstance(plain, nn.Module)
        trained = [row["loss"] for row in run.state.log_history if "loss" in row]
        torch.save({"weights": plain.state_dict(), "loss": trained, "ece": found["eval_ece"]}, path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
