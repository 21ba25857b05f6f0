"""What each network of the namespace takes, and how large it is."""

import torch


def parameters(model):
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# What each network takes: a small input, to be quick.
INPUTS = {
    "gpcnn": lambda n: torch.randint(1, 2000, (n, 30)),
    "linear": lambda n: torch.randn(n, 3),
    "mlp": lambda n: torch.randn(n, 3),
    "hf:deit-tiny-patch4-32": lambda n: torch.randn(n, 3, 32, 32),
}


# Batch norm over a handful of values makes the loss too rough for a step of any length to be
# judged.
SIDES = {
    "cnn": 24,
    "cnn_wide": 24,
    "mendeley": 96,
    "mendeley_dropout": 96,
    "resnet18": 64,
    "resnet50": 96,
    "resnet50_tiny": 24,
}


def inputs(name, n=8):
    """A small batch for the network of that name."""
    torch.manual_seed(0)
    side = SIDES.get(name, 16)
    return INPUTS.get(name, lambda n: torch.randn(n, 3, side, side))(n)
