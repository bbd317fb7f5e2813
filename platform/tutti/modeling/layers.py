"""The stack of layers of an encoder: how deep each weight lies, and a new start for the top of it."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def encoder_layers(encoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """The name and the modules of the encoder's layers, the lowest first: its longest ModuleList.

    Raises:
        ValueError: where it has none, or has the parts of its layers in several, as XLM and FlauBERT do.
    """
    lists = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    if not lists:
        raise ValueError(f"{type(encoder).__name__} has no list of layers")
    longest = max(lists, key=lambda name: len(lists[name]))
    beside = [name for name in lists if len(lists[name]) == len(lists[longest]) and not name.startswith(f"{longest}.")]
    if len(beside) > 1:
        raise ValueError(f"{type(encoder).__name__} has no one list of layers, but {', '.join(beside)}")
    return longest, lists[longest]


def layer_count(encoder: nn.Module) -> int | None:
    """How many layers the encoder's own config tells, or none."""
    count = getattr(getattr(encoder, "config", None), "num_hidden_layers", None)
    return count if isinstance(count, int) else None


def own_layers(encoder: nn.Module) -> int:
    """How many layers ``reinitialise`` can start anew: 0 where they do not lie in one list."""
    try:
        return len(encoder_layers(encoder)[1])
    except ValueError:
        return 0


def depths(encoder: nn.Module) -> tuple[dict[str, int], int]:
    """How many layers lie above each parameter, by name, and the number of layers.

    0 for the top layer and for what follows it; as many as there are layers for the embeddings, also where they stand
    after the layers, as DeBERTa's and MPNet's of relative positions do.
    """
    prefix, layers = encoder_layers(encoder)
    tables = {f"{name}.weight" for name, module in encoder.named_modules() if isinstance(module, nn.Embedding)}
    found, seen_layers = {}, False
    for name, _ in encoder.named_parameters():
        if name in tables:
            found[name] = len(layers)
        elif name.startswith(f"{prefix}."):
            index = int(name.removeprefix(f"{prefix}.").split(".")[0])
            found[name] = len(layers) - 1 - index
            seen_layers = True
        else:
            found[name] = 0 if seen_layers else len(layers)
    return found, len(layers)


def reinitialise(encoder: PreTrainedModel, count: int) -> None:
    """Draws the weights of the top ``count`` layers anew, as the encoder's own class does (arXiv 2006.05987).

    From torch's default generator: seed it first.

    Raises:
        ValueError: where the encoder has fewer layers.
    """
    _, layers = encoder_layers(encoder)
    if count > len(layers):
        raise ValueError(f"reinit_layers must be at most {len(layers)}, the encoder's layers; got {count}")
    for layer in layers[len(layers) - count :]:
        for module in layer.modules():
            for parameter in module.parameters(recurse=False):  # else transformers takes it for loaded, and leaves it
                parameter._is_hf_initialized = False  # type: ignore[attr-defined]
            encoder._init_weights(module)
