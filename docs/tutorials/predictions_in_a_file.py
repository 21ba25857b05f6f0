"""Predictions in a file
=====================

No model is needed to measure and repair confidence: a file with probabilities and labels is enough,
whatever made it. Here one of two hospitals has patients for whom the model is too sure.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import macc
from macc import metrics, posthoc

# %%
# A row for each patient: the probability of the disease, what turned out, and where.
rng = np.random.default_rng(0)
size = 3000
patients = pd.DataFrame({"prob": rng.beta(1.5, 1.5, size), "hospital": rng.choice(["east", "west"], size)})
chance = np.where(patients["hospital"] == "west", 0.7 * patients["prob"], patients["prob"])
patients["sick"] = (rng.random(size) < chance).astype(int)
file = Path(tempfile.mkdtemp()) / "patients.csv"
patients.to_csv(file, index=False)
patients.head()

# %%
# ``macc evaluate patients.csv --label-column sick --ignore hospital`` on the command line, or in
# Python:
patients = pd.read_csv(file)
report = macc.evaluate(
    patients, labels="sick", probs="prob", metrics=["accuracy", "nll", "ece", "positive_brier"]
)
report

# %%
figure = report.plot()

# %%
# The average hides a group. ``macc evaluate … --by hospital`` measures each, the worst first, and
# tests whether all are equally calibrated.
probs, sick = patients["prob"].to_numpy(), patients["sick"].to_numpy()
metrics.evaluate_groups(probs, sick, patients["hospital"], metrics=["nll", "ece"])

# %%
# A group gets a map of its own where that pays on held-out patients
# (``macc calibrate --by hospital``).
logits = np.log(probs / (1 - probs))
first, second = slice(0, 2000), slice(2000, None)
fitted = posthoc.Grouped.fit(logits[first], sick[first], patients["hospital"][first], method="platt")
fitted

# %%
# On the other patients, both hospitals are calibrated as far as chance allows to say.
mended = fitted(logits[second], patients["hospital"][second])
metrics.evaluate_groups(mended, sick[second], patients["hospital"][second], metrics=["nll", "ece"])

# %%
# ``macc report patients.csv --label-column sick --by hospital`` puts all of this on one page.
