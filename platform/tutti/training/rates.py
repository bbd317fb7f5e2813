"""Parameter groups: a learning rate by depth, one of the heads' own, and no decay of biases and norms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from tutti.modeling.layers import depths
from tutti.modeling.model import MultiTaskModel

BALANCE_RATE = 1e-2  # Adam moves a number by about its rate a step, and the log of a variance has some way to go


def decayed_names(model: MultiTaskModel, rule: Callable[[nn.Module], list[str]]) -> list[str]:
    """Of the parameters that weight decay applies to, by a rule which goes by the names within encoder and heads.

    Not by a head's own, which is its task's: of a task "bias" every weight would be taken for a bias.
    """
    parts = {"encoder": model.encoder, **{f"heads.{key}": head for key, head in model.heads.items()}}
    return [f"{prefix}.{name}" for prefix, part in parts.items() for name in rule(part)]


def parameter_groups(
    model: MultiTaskModel,
    *,
    decayed: Collection[str],
    learning_rate: float,
    weight_decay: float,
    layer_decay: float,
    head_rate: float | None,
    beside: list[nn.Parameter],
) -> list[dict[str, Any]]:
    """What an optimizer takes: the encoder from its top down, then the heads, then what is trained beside the model.

    Each layer of the encoder has ``layer_decay`` times the rate of the layer above it (ULMFiT, arXiv 1801.06146); its
    top layer has ``learning_rate`` itself.

    Args:
        decayed: names of the model's parameters that ``weight_decay`` applies to.
        head_rate: the heads' learning rate; none for ``learning_rate``.
        beside: the loss balance's own numbers, trained at ``BALANCE_RATE`` without decay.

    Raises:
        ValueError: where ``layer_decay`` is below 1 and the encoder has no list of layers.
    """
    above = depths(model.encoder)[0] if layer_decay < 1 else {}
    groups: dict[tuple[int, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            inside = name.startswith("encoder.")
            depth = above.get(name.removeprefix("encoder."), 0) if inside else 0
            rate = learning_rate * layer_decay**depth if inside else head_rate or learning_rate
            groups.setdefault((depth if inside else 10**6, rate, name in decayed), []).append(parameter)
    made = [
        {"params": parameters, "lr": rate, "weight_decay": weight_decay if decay else 0.0}
        for (_, rate, decay), parameters in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][2]))
    ]
    return made + ([{"params": beside, "lr": BALANCE_RATE, "weight_decay": 0.0}] if beside else [])
