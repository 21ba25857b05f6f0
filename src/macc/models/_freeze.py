"""Freezing a backbone."""

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from macc.models._classifier import trained_name

ModelT = TypeVar("ModelT", bound=nn.Module)


def freeze(model: ModelT, *, bn: bool = True, head: str | None = None) -> ModelT:
    """Train the classifier only: every other parameter keeps its value, in place.

    Args:
        model: A classifier, before or after :func:`macc.attach`.
        bn: Also keep the statistics of batch norm: its layers run in evaluation mode whatever mode the
            model is in. ``False`` lets them drift to the training data, as the code base of the paper did.
        head: Dotted name of the module to go on training, where it is more than the last linear layer;
            ``mendeley`` knows its own.

    Returns:
        The same model.

    Example:
        >>> from macc import models
        >>> model = freeze(models.build("resnet20", num_classes=10))
        >>> [name for name, p in model.named_parameters() if p.requires_grad]
        ['fc.weight', 'fc.bias']
    """
    if head is None:
        head = trained_name(model)
    elif head not in dict(model.named_modules()):
        raise ValueError(
            f"the model has no module called '{head}'; "
            f"it has {', '.join(name for name, _ in model.named_children())}"
        )
    kept = set(model.get_submodule(head).modules())
    trained = {id(parameter) for module in kept for parameter in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    if bn:
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module not in kept:
                module.eval()
                # `model.train()` reaches every layer, so each sets itself back before it is used.
                module.register_forward_pre_hook(_stay_in_evaluation)
    return model


def _stay_in_evaluation(module: nn.Module, _inputs: object) -> None:
    module.training = False
