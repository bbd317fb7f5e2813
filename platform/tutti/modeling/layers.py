"""The layers of an encoder: the depth of each parameter, and reinitialisation of the top layers."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def encoder_layers(encoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """The name and the modules of the encoder's layers, bottom layer first: its longest ModuleList.

    Raises:
        ValueError: if it has no ModuleList, or its layers are split over several, as in XLM and FlauBERT.
    """
    lists = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    if not lists:
        raise ValueError(f"{type(encoder).__name__} has no list of layers")
    longest = max(lists, key=lambda name: len(lists[name]))
    equal = [name for name in lists if len(lists[name]) == len(lists[longest]) and not name.startswith(f"{longest}.")]
    if len(equal) > 1:
        raise ValueError(f"{type(encoder).__name__} has no one list of layers, but {', '.join(equal)}")
    return longest, lists[longest]


def mixable_layers(encoder: PreTrainedModel) -> int | None:
    """The number of layers whose states heads can mix: all that the encoder's config counts; None if it counts none.

    It is 1 if training leaves layers out at random (FlauBERT's ``layerdrop``, arXiv 1909.11556): it then returns fewer
    states, without saying of which layers.
    """
    count = getattr(encoder.config, "num_hidden_layers", None)
    if not isinstance(count, int):
        return None
    return 1 if getattr(encoder, "layerdrop", 0) else count


def own_layers(encoder: nn.Module) -> int:
    """The number of layers that ``reinitialise`` can handle: 0 if they are not in a single list."""
    try:
        return len(encoder_layers(encoder)[1])
    except ValueError:
        return 0


def has_linear_layers(encoder: nn.Module) -> bool:
    """Whether the encoder's layers hold linear layers: not in SqueezeBERT, where only an unused pooler is one."""
    lists: list[nn.Module] = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    return any(isinstance(module, nn.Linear) for each in lists or [encoder] for module in each.modules())


def word_table(encoder: PreTrainedModel) -> nn.Module | None:
    """The encoder's table of words or their pieces; None for CANINE, which hashes characters instead."""
    try:
        return encoder.get_input_embeddings()
    except NotImplementedError:
        return None


def tokens(encoder: PreTrainedModel) -> int | None:
    """The number of token ids that the encoder has embeddings of; None if it has no table of words."""
    table = word_table(encoder)
    return None if table is None else len(table.weight)  # type: ignore[arg-type]


def token_types(encoder: PreTrainedModel) -> int | None:
    """The number of token types that the encoder has embeddings of; None if it has no table of them."""
    tables = [
        module.weight
        for name, module in encoder.named_modules()
        if name.rpartition(".")[2] == "token_type_embeddings" and hasattr(module, "weight")
    ]
    return min(map(len, tables), default=None)


def depths(encoder: PreTrainedModel) -> dict[str, int]:
    """The number of layers above each parameter, by parameter name.

    It is 0 for the top layer and everything after it. All layers are above embeddings, including those that the model
    defines after its layers, such as the relative position embeddings of DeBERTa and MPNet.
    """
    prefix, layers = encoder_layers(encoder)
    within = _within_layers(encoder, prefix, len(layers))
    tables = {f"{name}.weight" for name, module in encoder.named_modules() if isinstance(module, nn.Embedding)}
    by_name, after_layers = {}, False
    for name, _ in encoder.named_parameters():
        if name in tables:
            by_name[name] = len(layers)
        elif place := [depth for start, depth in within.items() if name.startswith(start)]:
            by_name[name] = place[0]
        elif name.startswith(f"{prefix}."):
            index = int(name.removeprefix(f"{prefix}.").split(".")[0])
            by_name[name] = len(layers) - 1 - index
            after_layers = True
        else:
            by_name[name] = 0 if after_layers else len(layers)
    return by_name


def _within_layers(encoder: PreTrainedModel, prefix: str, count: int) -> dict[str, int]:
    """The depths of modules defined after the layers but used within them, by how their parameters' names start.

    Names do not tell: ``encoder.LayerNorm`` of DeBERTa-v2 normalises the position embeddings that every layer reads,
    that of XLM-RoBERTa-XL the top layer's output.
    """
    if encoder.config.model_type != "deberta-v2":
        return {}
    holder = prefix.removesuffix("layer")
    return {f"{holder}LayerNorm.": count, f"{holder}conv.": count - 1}  # conv is added to the lowest layer's output


def reinitialise(encoder: PreTrainedModel, count: int) -> None:
    """Reinitialises the top ``count`` layers as the encoder's class does (Zhang et al. 2020, arXiv 2006.05987).

    Draws from torch's default generator: seed it first.

    Raises:
        ValueError: if the encoder has fewer layers.
    """
    _, layers = encoder_layers(encoder)
    if count > len(layers):
        raise ValueError(f"reinit_layers must be at most {len(layers)}, the encoder's layers; got {count}")
    for layer in layers[len(layers) - count :]:
        for parameter in layer.parameters():  # otherwise transformers skips it as already loaded
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        # Children first, as in transformers: the rule of ModernBERT's MLP for its linear layers then stands.
        layer.apply(encoder._init_weights)
