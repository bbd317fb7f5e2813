"""Low-rank adapters: LoRA (arXiv 2106.09685), and QLoRA (arXiv 2305.14314) over weights quantised to 4 or 8 bits."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tutti.errors import Fault, TrialError, nearest
from tutti.files import sha256_of
from tutti.modeling.layers import encoder_layers

if TYPE_CHECKING:
    from tutti.config.training import TrainingOptions

INSTALL = "install it with: pip install 'bitsandbytes>=0.50'"
_MATRICES = (".lora_A.", ".lora_B.", ".lora_magnitude_vector.")


@dataclass(frozen=True)
class Adapter:
    """The settings of an adapter, and of the quantisation of the encoder under it.

    Attributes:
        kind: ``lora``.
        rank: r of the low-rank product B A that is added to each linear layer's weight.
        alpha: the product is multiplied by ``alpha / rank``.
        dropout: dropout probability of the input of A.
        bits: 4 or 8 for the encoder's weights quantised to that many bits; None for no quantisation.
        double_quant: with 4 bits, whether the blocks' constants are quantised too.
        quant_type: data type of 4-bit weights, ``nf4`` or ``fp4``.
        compute_dtype: dtype of 4-bit weights in matrix products: ``bfloat16``, ``float16`` or ``float32``.
        weights: dtype of the encoder's weights that are not quantised: ``bfloat16`` or ``float32``.
        targets: names of the adapted linear layers, with spaces between them; empty for all.
        layers: number of last layers of the encoder that are adapted; None for all.
        rslora: whether the product is multiplied by ``alpha / sqrt(rank)`` instead (arXiv 2312.03732).
        dora: whether lengths of the weights' columns are trained apart from their directions (arXiv 2402.09353).
    """

    kind: str = "lora"
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.05
    bits: int | None = None
    double_quant: bool = True
    quant_type: str = "nf4"
    compute_dtype: str = "float32"
    weights: str = "float32"
    targets: str = ""
    layers: int | None = None
    rslora: bool = False
    dora: bool = False


@dataclass(frozen=True)
class Base:
    """The backbone that a checkpoint with an adapter needs, since it does not contain the backbone's weights.

    Attributes:
        backbone: a folder or a hub id.
        revision: the hub's commit; None for a folder.
        files: the folder's config and weight files to their SHA-256; empty for a hub id.
    """

    backbone: str
    revision: str | None
    files: Mapping[str, str]


def adapter_of(options: TrainingOptions, *, precision: str) -> Adapter | None:
    """The adapter configured in a trial's options, or None.

    Args:
        precision: of the trial: ``bf16``, ``fp16``, ``tf32`` or ``float32``.
    """
    if options.adapter is None:
        return None
    targets = options.lora_targets or ""
    compute_dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    return Adapter(
        kind=options.adapter,
        rank=options.lora_r,
        alpha=options.lora_alpha,
        dropout=options.lora_dropout,
        bits=options.bits,
        double_quant=options.double_quant,
        quant_type=options.quant_type,
        compute_dtype=compute_dtype,
        # fp16 holds no embedding that is larger than 65,504, which some decoders have.
        weights=options.weights or ("bfloat16" if options.bits and precision == "bf16" else "float32"),
        targets=" ".join(targets.replace(",", " ").split() if isinstance(targets, str) else targets),
        layers=options.lora_layers,
        rslora=options.use_rslora,
        dora=options.use_dora,
    )


def has_bitsandbytes() -> bool:
    """Whether bitsandbytes, which quantises, is installed. Does not import it."""
    return find_spec("bitsandbytes") is not None


def quantisation(adapter: Adapter | None, device: torch.device) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that quantise all linear layers of an encoder to ``adapter.bits`` bits.

    Empty if there is nothing to quantise.

    Raises:
        TrialError: if bitsandbytes is not installed.
    """
    if adapter is None or adapter.bits is None:
        return {}
    if not has_bitsandbytes():
        rule = "have the package bitsandbytes that quantises"
        raise TrialError(Fault("the training key bits", rule, "none that is installed", INSTALL))
    # Explicitly empty: by default a last layer without bias and tied layers are taken for a head and skipped, but
    # Tutti's heads are outside the encoder.
    skipped: list[str] = []
    if adapter.bits == 8:
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=adapter.quant_type,
            bnb_4bit_use_double_quant=adapter.double_quant,
            bnb_4bit_compute_dtype=getattr(torch, adapter.compute_dtype),
            llm_int8_skip_modules=skipped,
        )
    return {"quantization_config": config, "device_map": {"": device}}


def add_adapter(encoder: PreTrainedModel, adapter: Adapter) -> None:
    """Freezes the encoder and adds a trainable adapter to its linear layers, or to those that the adapter names.

    A is drawn from torch's default generator (seed it first) and B is zero, so that the encoder's outputs are unchanged
    at first. Both are float32: in the 16 bits that 4-bit layers compute in, small updates would be rounded away, and
    fp16's loss scaler refuses such gradients.

    Raises:
        TrialError: if the encoder has no linear layer, or none of a name.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import cast_adapter_dtype

    linear = _adapted(encoder, adapter)
    for module in encoder.modules():
        # On a CPU with AVX-512 BF16, a 4-bit layer permanently rounds its constants to bfloat16 when it is first
        # evaluated, and cannot be trained afterwards.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    encoder.add_adapter(
        LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            lora_dropout=adapter.dropout,
            target_modules=_pattern(linear, any_layer=adapter.layers is None),
            fan_in_fan_out=not any(isinstance(encoder.get_submodule(name), nn.Linear) for name in linear),  # GPT-2
            use_rslora=adapter.rslora,
            use_dora=adapter.dora,
            revision=getattr(encoder.config, "_commit_hash", None),
        )
    )
    cast_adapter_dtype(encoder, "default")
    folder = Path(encoder.name_or_path).expanduser()
    if folder.is_dir():  # an absolute path, because checkpoints record it and are loaded from any working directory
        encoder.peft_config["default"].base_model_name_or_path = str(folder.absolute())


def base_of(encoder: PreTrainedModel) -> Base:
    """The backbone under an encoder's adapter. Hashes the files as they are now: call it when the encoder is loaded."""
    config = encoder.peft_config["default"]
    files = backbone_files(config.base_model_name_or_path)
    return Base(backbone=config.base_model_name_or_path, revision=config.revision if not files else None, files=files)


def backbone_files(backbone: str) -> dict[str, str]:
    """By name, the SHA-256 of a backbone's configuration and weights; empty if it comes from the hub."""
    folder = Path(backbone).expanduser()
    weights = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    files = [folder / "config.json", *weights] if folder.is_dir() else []
    return {file.name: sha256_of(file) for file in sorted(files)}


def adapter_state(encoder: nn.Module) -> dict[str, Tensor]:
    """The adapter's weights, by their names in the encoder; empty without an adapter."""
    return {name: weight for name, weight in encoder.named_parameters() if any(part in name for part in _MATRICES)}


def load_adapter_state(encoder: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads the weights of an ``adapter_state``.

    Raises:
        KeyError: if a weight is missing or superfluous.
    """
    weights = adapter_state(encoder)
    if differing := sorted(weights.keys() ^ state.keys()):
        raise KeyError(f"the adapter's weights differ in {len(differing)} names, such as {differing[0]}")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(state[name])


@contextmanager
def merged(encoder: nn.Module) -> Iterator[None]:
    """Adds the adapter to the weights within the block, which makes writing token by token faster.

    Afterwards the weights are the very ones of before. Needs room for a second copy of those that are adapted. Weights
    that are not float32 stay as they are: adding to them would round the adapter away.
    """
    from peft.tuners.lora import LoraLayer

    kept: list[tuple[Any, Tensor]] = []
    try:
        for layer in encoder.modules():
            if not isinstance(layer, LoraLayer):
                continue
            base: Any = layer.get_base_layer()
            if base.weight.dtype == torch.float32 and not layer.merged:
                kept.append((layer, base.weight.data))
                base.weight.data = base.weight.data.clone()
                layer.merge()
        yield
    finally:
        for layer, weight in kept:
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


def encoder_name(key: str) -> str:
    """The name within the encoder of a weight in adapter_model.safetensors."""
    name = key.removeprefix("base_model.model.")
    return re.sub(r"\.(lora_[AB]|lora_magnitude_vector)(\.weight)?$", r".\1.default.weight", name)


def forget_optimizers() -> None:
    """Clears bitsandbytes' global state of 8-bit optimizers: it keeps embeddings alive, and its settings by object id
    could be applied to the next trial's weights.
    """
    if "bitsandbytes" in sys.modules:
        from bitsandbytes.optim.optimizer import GlobalOptimManager

        GlobalOptimManager.get_instance().initialize()


def linear_layers(encoder: nn.Module) -> list[str]:
    """The names of all linear layers, those of GPT-2 too, which are written as convolutions."""
    return [name for name, module in encoder.named_modules() if isinstance(module, (nn.Linear, Conv1D))]


def _adapted(encoder: PreTrainedModel, adapter: Adapter) -> list[str]:
    """The names of the linear layers that get an adapter."""
    names = linear_layers(encoder)
    if not names:
        rule, remedy = "be null for an encoder without linear layers", "set it to null, or name another backbone"
        raise TrialError(Fault("the training key adapter", rule, f"{adapter.kind!r}", remedy))
    known = {name.rpartition(".")[2] for name in names}
    wanted = adapter.targets.split() or [*known]
    if unknown := [name for name in wanted if name not in known]:
        raise TrialError(Fault(*target_fault(unknown[0], known)))
    if adapter.layers is not None:
        prefix, layers = encoder_layers(encoder)
        last = {f"{prefix}.{index}" for index in range(max(len(layers) - adapter.layers, 0), len(layers))}
        depth = prefix.count(".") + 2  # parts of a layer's name
        names = [name for name in names if ".".join(name.split(".")[:depth]) in last]
    return [name for name in names if name.rpartition(".")[2] in wanted]


def target_fault(name: str, known: Collection[str]) -> tuple[str, str, str, str]:
    """What is wrong with a name of ``lora_targets`` that no linear layer has, as the parts of a fault."""
    rule = f"name linear layers of the backbone: {', '.join(sorted(known))}"
    return (
        "the training key lora_targets",
        rule,
        repr(name),
        nearest(name, sorted(known), otherwise="name one of these"),
    )


def _pattern(names: list[str], *, any_layer: bool) -> str:
    """A regular expression that matches exactly these modules, or such modules in any layer.

    peft's "all-linear" matches by the ends of names, and so would include the pooler that a plain AutoModel adds.
    """
    return "|".join(
        sorted(
            {
                r"\.".join(r"\d+" if any_layer and part.isdecimal() else re.escape(part) for part in name.split("."))
                for name in names
            }
        )
    )
