"""Which layer of a model is its classifier."""

from torch import nn

from macc.heads import Head, find_classifier


def classifier_name(model: nn.Module) -> str:
    """Dotted name of the layer that :func:`macc.attach` would take, or has taken."""
    heads = [name for name, module in model.named_modules() if isinstance(module, Head)]
    return heads[0] if heads else find_classifier(model, None, None)


def trained_name(model: nn.Module) -> str:
    """Dotted name of what a frozen backbone leaves to train: the classifier, or as it says."""
    own = getattr(model, "trained", None)
    return own if isinstance(own, str) else classifier_name(model)
