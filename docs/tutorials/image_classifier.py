"""An image classifier in a plain loop
===================================

Two lines make the confidence of a classifier part of what is trained. Then we measure it, compare
it with plain training, and repair what is left without training again.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import macc
from macc import losses, metrics, posthoc

# %%
# Small images of digits come with scikit-learn. A third trains the network, a third chooses the
# repair, a third tests.
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
train, val, test = order[:600], order[600:1200], order[1200:]


# %%
# The loop is an ordinary one. Only ``macc.attach`` and the criterion are new: the last linear layer
# samples dropout masks, so that the penalty can compare confidence with certainty.
def trained(criterion: losses.Criterion, *, attached: bool) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 9, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    if attached:
        macc.attach(model, p=0.2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(15):
        for rows in train[torch.randperm(len(train))].split(64):
            loss = criterion(model(images[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


plain = trained(losses.parse("CrossEntropy"), attached=False)
aligned = trained(losses.CrossEntropy() + losses.MACC(warmup=50), attached=True)

# %%
# In evaluation the model returns plain logits. Every number has an interval, and calibration errors
# have a noise floor: what a perfectly calibrated model would show on as many samples.
with torch.no_grad():
    logits = {name: model(images) for name, model in (("plain", plain), ("aligned", aligned))}
report = macc.evaluate(logits["aligned"][test], labels[test], from_logits=True)
report

# %%
# The reliability diagram belongs to the report.
figure = report.plot()

# %%
# Is it better than plain training? Both are compared on the same samples. The last column names the
# better one where the difference is more than chance.
metrics.compare(
    logits["aligned"][test],
    logits["plain"][test],
    labels[test],
    metrics=["accuracy", "nll", "ece"],
    from_logits=True,
)

# %%
# What is left is repaired on validation samples, by the calibrator that cross-validation prefers.
choice = posthoc.best(logits["aligned"][val], labels[val])
choice

# %%
# The calibrator gives probabilities, and a threshold says from which confidence on the model may
# answer alone.
probs = choice.calibrator(logits["aligned"])
posthoc.threshold(probs[val], labels[val], risk=0.05)
