"""Parameter groups: layer-wise learning rates, a separate rate for heads, and no weight decay of biases and norms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from tutti.modeling.layers import depths
from tutti.modeling.model import MultiTaskModel

BALANCE_RATE = 1e-2  # Adam moves a parameter by about its rate per step, and a log variance must move far from 0


def decayed_names(model: MultiTaskModel, rule: Callable[[nn.Module], list[str]]) -> list[str]:
    """Names of the parameters that weight decay applies to, by a rule based on names within encoder and heads.

    The rule does not see a head's own name, which is its task's: with a task named "bias", it would take all weights of
    that head for biases.
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
    extra_parameters: list[nn.Parameter],
) -> list[dict[str, Any]]:
    """Optimizer parameter groups: the encoder from the top layer down, then the heads, then extra parameters.

    Each layer of the encoder has ``layer_decay`` times the learning rate of the layer above it (ULMFiT, arXiv
    1801.06146); the top layer has ``learning_rate`` itself.

    Args:
        decayed: names of the model's parameters that ``weight_decay`` applies to.
        head_rate: the heads' learning rate; None for ``learning_rate``.
        extra_parameters: the loss balance's parameters, trained at ``BALANCE_RATE`` without weight decay.

    Raises:
        ValueError: if ``layer_decay`` is below 1 and the encoder has no list of layers.
    """
    layers_above = depths(model.encoder) if layer_decay < 1 else {}
    groups: dict[tuple[int, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            in_encoder = name.startswith("encoder.")
            depth = layers_above.get(name.removeprefix("encoder."), 0) if in_encoder else 0
            rate = learning_rate * layer_decay**depth if in_encoder else head_rate or learning_rate
            groups.setdefault((depth if in_encoder else 10**6, rate, name in decayed), []).append(parameter)
    model_groups = [
        {"params": parameters, "lr": rate, "weight_decay": weight_decay if decay else 0.0}
        for (_, rate, decay), parameters in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][2]))
    ]
    if not extra_parameters:
        return model_groups
    return [*model_groups, {"params": extra_parameters, "lr": BALANCE_RATE, "weight_decay": 0.0}]
