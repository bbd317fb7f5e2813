"""The backbone's own pooler: a layer on the first token's state that was pretrained with it, as BERT's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers import MODEL_MAPPING, PretrainedConfig, PreTrainedModel

from tutti.errors import BackboneError, Fault


def pooled(encoder: Any, states: Tensor) -> Tensor:
    """``(rows, tokens, hidden)`` states to ``(rows, hidden)``, as the encoder's class pools them."""
    activation = getattr(encoder, "pooler_activation", getattr(encoder, "activation", None))
    if activation is None:
        rows: Tensor = encoder.pooler(states)
    else:  # ALBERT and BigBird have a bare layer
        rows = activation(encoder.pooler(states[:, 0]))
    return rows


def check_pooler(encoder: PreTrainedModel, backbone: str, missing_keys: Iterable[str]) -> None:
    """Raises BackboneError where the encoder has no pooler, or its files have no weights of it."""
    got = ""
    if getattr(encoder, "pooler", None) is None:
        got = f"a model of type {encoder.config.model_type!r}, which has none"
    elif any("pooler" in name for name in missing_keys):
        got = "files without its weights, which would be drawn at random"
    if got:
        rule, remedy = "have a pretrained pooler for `pooling: pooler`", "use cls, attention or mean"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, got, remedy))


def takes_pooling_layer(config: PretrainedConfig) -> bool:
    """Whether the class of an encoder can do without its pooler."""
    if type(config) not in MODEL_MAPPING:
        return False
    classes = MODEL_MAPPING[type(config)]
    model_class = classes[0] if isinstance(classes, (list, tuple)) else classes
    return "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
