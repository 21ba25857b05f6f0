"""Freezing a backbone."""

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from macc.models.classifier import trained_name

ModelT = TypeVar("ModelT", bound=nn.Module)


def freeze(model: ModelT, *, bn: bool = True, head: str | None = None) -> ModelT:
    """Train the classifier only: every other parameter keeps its value, in place; :func:`unfreeze`
    undoes it.

    Args:
        model: A classifier, before or after :func:`macc.attach`.
        bn: Also keep the statistics of batch norm: its layers run in evaluation mode whatever mode
            the model is in. ``False`` lets them drift to the training data, as the code base of the
            paper did.
        head: Dotted name of the module to go on training, where it is more than the last linear
            layer; ``mendeley`` knows its own.

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
    _let_statistics_drift(model)
    if bn:
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module not in kept:
                module.eval()
                # `model.train()` reaches every layer, so each sets itself back before it is used.
                module.register_forward_pre_hook(_stay_in_evaluation)
    return model


def unfreeze(model: ModelT) -> ModelT:
    """Train everything again, as for a second stage: all parameters, and the statistics of batch
    norm.

    Args:
        model: A classifier that :func:`freeze` was used on.

    Returns:
        The same model.

    Example:
        >>> from macc import models
        >>> model = unfreeze(freeze(models.build("resnet20", num_classes=10)))
        >>> all(p.requires_grad for p in model.parameters())
        True
    """
    _let_statistics_drift(model)
    return model.requires_grad_(True)


def _let_statistics_drift(model: nn.Module) -> None:
    """Take the hooks of an earlier freeze away."""
    for module in model.modules():
        mine = [key for key, hook in module._forward_pre_hooks.items() if hook is _stay_in_evaluation]
        for key in mine:
            del module._forward_pre_hooks[key]
            module.train(model.training)


def _stay_in_evaluation(module: nn.Module, _inputs: object) -> None:
    module.training = False
