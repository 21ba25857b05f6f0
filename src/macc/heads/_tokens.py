"""Heads of models that score every token and then pick one, as transformers' decoders do."""

from typing import Any

from torch import Tensor, nn

from macc.heads._modules import MCDropoutLinear
from macc.heads._moments import LogitMoments


class TokenScore(MCDropoutLinear):
    """An :class:`MCDropoutLinear` in the place of ``score``, which the model applies to the
    features of every token.

    In training it hands those features on, so that what the model picks are the features of one
    token. A hook on the model applies the head to these. Dropout of each token is independent of
    the others, so this is what picking among the moments of all tokens would give, without
    computing them.
    """

    def forward(self, input: Tensor) -> Tensor | LogitMoments:  # type: ignore[override]  # noqa: A002 - the plain layer's name
        """The features of all tokens in training; otherwise as the plain head."""
        return input if self.training and input.ndim == 3 else super().forward(input)


def pick_first(owner: nn.Module) -> None:
    """Let a model with a :class:`TokenScore` return what its head makes of the picked token."""
    owner.register_forward_hook(_apply_to_picked)
    owner.register_forward_pre_hook(_refuse_labels, with_kwargs=True)


def no_longer_pick_first(model: nn.Module) -> None:
    """Take the hooks of :func:`pick_first` out of a model."""
    for module in model.modules():
        for hooks, others in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        ):
            for key in [key for key, hook in hooks.items() if hook in (_apply_to_picked, _refuse_labels)]:
                del hooks[key]
                others.pop(key, None)


def _apply_to_picked(owner: nn.Module, _args: Any, output: Any) -> Any:
    head = owner.get_submodule("score")
    picked = output[0] if isinstance(output, tuple) else output.logits
    if not head.training or isinstance(picked, LogitMoments):  # images are pooled before they are scored
        return output
    logits = head(picked)
    if isinstance(output, tuple):
        return (logits, *output[1:])
    output.logits = logits
    return output


def _refuse_labels(owner: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
    if owner.get_submodule("score").training and kwargs.get("labels") is not None:
        raise ValueError(
            f"{type(owner).__name__} has an MC-dropout head, which returns mean and variance of the logits while training; "
            "call it without `labels=` and give both to a criterion, or use `model.eval()`"
        )
