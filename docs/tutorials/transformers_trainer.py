"""A text classifier with the Trainer of transformers
==================================================

The Trainer keeps its loop. ``macc.attach`` and a loss function are two lines. The network here is a
small random BERT, so that nothing is downloaded; with ``from_pretrained`` the lines are the same.
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import macc
from macc import losses, posthoc
from macc.integrations import transformers as for_trainer

# %%
# Texts are rows of word numbers. A text of class k has more words of the k-th third of the
# vocabulary, and some labels are wrong.
torch.manual_seed(0)
labels = torch.randint(0, 3, (900,))
words = torch.randint(3, 33, (900, 12)) + 30 * torch.where(
    torch.rand(900, 12) < 0.4, labels[:, None], torch.randint(0, 3, (900, 12))
)
labels = torch.where(torch.rand(900) < 0.15, torch.randint(0, 3, (900,)), labels)
samples = [{"input_ids": row, "labels": int(label)} for row, label in zip(words, labels, strict=True)]

# %%
# Two lines: attach, and the criterion as ``compute_loss_func``. ``compute_metrics`` reports each
# metric with the ends of its interval.
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=3,
    classifier_dropout=0.0,
)
model = macc.attach(BertForSequenceClassification(config))
criterion = for_trainer.loss(losses.CrossEntropy() + losses.MACC(warmup=20))

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=120,
        learning_rate=2e-3,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=256,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=samples[:500],
    eval_dataset=samples[500:700],
    compute_loss_func=criterion,
    compute_metrics=for_trainer.metrics(["accuracy", "nll", "ece"]),
    callbacks=[criterion],  # for a warm-up that counts steps of the optimiser
)
trained = trainer.train()
{name: round(value, 3) for name, value in trainer.evaluate().items() if "ece" in name or "accuracy" in name}

# %%
# The Trainer predicts logits, and all that macc has for predictions takes them: here sets of
# classes that contain the right one nine times in ten.
val, test = (trainer.predict(part) for part in (samples[500:700], samples[700:]))
sets = posthoc.Sets.fit(val.predictions, val.label_ids, coverage=0.9, from_logits=True)
sets.measure(test.predictions, test.label_ids, from_logits=True, classes=["first", "second", "third"])

# %%
# And the report of the test samples, after temperature scaling.
fixed = posthoc.Temperature.fit(val.predictions, val.label_ids)
report = macc.evaluate(fixed(test.predictions), test.label_ids, classes=["first", "second", "third"])
report

# %%
figure = report.plot()
