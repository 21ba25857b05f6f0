"""The first ten minutes
=====================

You train a small classifier of handwritten digits and find out how far its confidence can be
trusted. Then you repair it, decide what it may answer alone, try the MACC loss, and save a model
that answers with calibrated probabilities. Everything runs on a laptop; nothing is downloaded.

How to install macc: :doc:`/install`.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import macc
from macc import losses, metrics, posthoc

# %%
# A model as you would train it
# -----------------------------
#
# The images get noise, so that the task is not too easy. The samples are in three parts. The
# model learns from ``train``. What is fitted afterwards is fitted to ``val``. Everything that is
# reported is measured on ``test``.
digits = load_digits()
generator = torch.Generator().manual_seed(0)
x = torch.tensor(digits.data, dtype=torch.float32) / 16
x += 0.3 * torch.randn(x.shape, generator=generator)
y = torch.tensor(digits.target)
order = torch.randperm(len(x), generator=generator)
train, val, test = order[:500], order[500:1100], order[1100:]


def trained(criterion: nn.Module, attach: bool = False) -> nn.Module:
    """A small network, trained for 30 epochs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if attach:
        macc.attach(model, p=0.2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        for rows in train[torch.randperm(len(train))].split(50):
            optimiser.zero_grad()
            criterion(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


model = trained(losses.CrossEntropy())
with torch.no_grad():
    logits = model(x)

# %%
# How calibrated is it?
# ---------------------
asked = ["accuracy", "nll", "ece"]
report = macc.evaluate(logits[test], y[test], from_logits=True, metrics=asked)
report

# %%
# *Accuracy* is how often the model is right. *NLL* punishes both wrong answers and wrong
# confidence. *ECE* is how far confidence and accuracy lie apart; beside it stands what chance
# alone would show with so few samples. The values come with 95 % intervals (:doc:`/numbers`).
#
# In the figure, the hatched part of a bar is the gap between accuracy and confidence.
figure = report.plot()

# %%
# With a file in place of a model, the same is ``macc evaluate predictions.npz --plot
# reliability.png``.
#
# Repair it
# ---------
#
# A temperature divides all logits by one number. It does not change which class is predicted.
fixed = posthoc.Temperature.fit(logits[val], y[val])
fixed

# %%
probs = fixed(logits)
metrics.compare(probs[test], logits[test].softmax(1), y[test], metrics=asked)

# %%
# The comparison is paired, because both are measured on the same samples. Its last column says
# which difference is significant. On the command line this is ``macc calibrate --fit val.npz
# --apply test.npz``. There are other maps than a temperature, and help to choose one:
# :doc:`/posthoc`.
#
# What may it answer alone?
# -------------------------
rule = posthoc.threshold(probs[val], y[val], risk=0.1)
rule

# %%
# Predictions with at least this confidence are wrong at most 10 times in 100, with 95 %
# confidence, as long as new samples are like these. The others go to a person.
#
# Train with MACC
# ---------------
#
# Two things change: ``attach`` makes the last layer sample dropout masks, and the criterion gets
# a penalty that aligns confidence with certainty (:doc:`/macc-explained`). The comparison is
# fair: both models get a temperature. A is with MACC, B without.
aligned = trained(losses.CrossEntropy() + losses.MACC(warmup=150), attach=True)
with torch.no_grad():
    other = posthoc.Temperature.fit(aligned(x[val]), y[val])(aligned(x[test]))
metrics.compare(other, probs[test], y[test], metrics=asked)

# %%
# One training of each says little. Several seeds and corrected tests are an experiment
# (:doc:`/experiments`), or ``macc auto`` (:doc:`/ship`).
#
# Keep it
# -------
#
# Logits go in, calibrated probabilities come out:
deployed = nn.Sequential(model, fixed.module())
torch.allclose(deployed(x[test]), probs[test], atol=1e-6)

# %%
# The temperature alone is a small file of JSON.
file = Path(tempfile.mkdtemp()) / "temperature.json"
fixed.save(file)
file.read_text()

# %%
# Runs of ``macc train`` and ``macc auto`` end with a calibrator, and ``macc export`` writes one
# file with everything inside, ONNX for instance (:doc:`/ship`).
#
# Where next?
# -----------
#
# - Your own predictions: :doc:`/predictions`.
# - Your own training loop: :doc:`/training`.
# - What calibration is and is not: :doc:`/calibration`.
# - A model in use: :doc:`/operation`.
