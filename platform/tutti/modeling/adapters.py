"""Low-rank adapters: LoRA (arXiv 2106.09685), and QLoRA (arXiv 2305.14314) over weights held in 4 or 8 bits."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from tutti.config.training import TrainingOptions
from tutti.errors import Fault, TrialError
from tutti.files import sha256_of

INSTALL = "install it with: pip install 'tutti[qlora]'"
_PARTS = (".lora_A.", ".lora_B.")


@dataclass(frozen=True)
class Adapter:
    """How an encoder is held and what is trained in the place of its weights.

    Attributes:
        kind: ``lora``.
        rank: r of the low-rank product B A that is added to each linear layer's weight.
        alpha: the product is multiplied by ``alpha / rank``.
        dropout: probability in front of A.
        bits: 4 or 8 for weights held in so many bits; none for weights as they are.
        double_quant: in 4 bits, the blocks' constants are quantised too.
        quant_type: of 4-bit weights, ``nf4`` or ``fp4``.
        compute_dtype: what 4-bit weights become for each product: ``bfloat16``, ``float16`` or ``float32``.
    """

    kind: str = "lora"
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.05
    bits: int | None = None
    double_quant: bool = True
    quant_type: str = "nf4"
    compute_dtype: str = "float32"


@dataclass(frozen=True)
class Base:
    """The backbone whose weights a checkpoint with an adapter needs and does not hold.

    Attributes:
        backbone: a folder, or an id of the hub.
        revision: the hub's commit; none of a folder.
        files: the folder's config and weights to their SHA-256; empty of an id.
    """

    backbone: str
    revision: str | None
    files: Mapping[str, str]


def adapter_of(options: TrainingOptions, *, precision: str) -> Adapter | None:
    """The adapter that a trial's options ask for, or none.

    Args:
        precision: what the trial computes in: ``bf16``, ``fp16``, ``tf32`` or ``float32``.
    """
    if options.adapter is None:
        return None
    return Adapter(
        kind=options.adapter,
        rank=options.lora_r,
        alpha=options.lora_alpha,
        dropout=options.lora_dropout,
        bits=options.bits,
        double_quant=options.double_quant,
        quant_type=options.quant_type,
        compute_dtype={"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32"),
    )


def has_bitsandbytes() -> bool:
    """Whether the package that quantises is installed. It is imported where weights are quantised, and only there."""
    return find_spec("bitsandbytes") is not None


def quantisation(adapter: Adapter | None, device: torch.device) -> dict[str, Any]:
    """What ``from_pretrained`` takes so that all linear layers of an encoder are held in ``adapter.bits`` bits.

    Nothing where there is nothing to quantise.

    Raises:
        TrialError: where bitsandbytes is not installed.
    """
    if adapter is None or adapter.bits is None:
        return {}
    if not has_bitsandbytes():
        rule = "have the package bitsandbytes that quantises"
        raise TrialError(Fault("the training key bits", rule, "none that is installed", INSTALL))
    # An empty list: by default a last layer without bias, and tied ones, are taken for a head and left out. Tutti's
    # heads lie outside of the encoder.
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
    """Freezes the encoder and adds an adapter, which is trained, to every linear layer of it.

    A is drawn from torch's default generator (seed it first), B is zero: the encoder says what it said before.

    Raises:
        TrialError: where the encoder has no linear layer.
    """
    from peft import LoraConfig

    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        rule, remedy = "be null for an encoder without linear layers", "set it to null, or name another backbone"
        raise TrialError(Fault("the training key adapter", rule, f"{adapter.kind!r}", remedy))
    for module in encoder.modules():
        # On a CPU with AVX-512 BF16 a 4-bit layer rounds its constants to bfloat16 for good when it is first evaluated,
        # and cannot be trained from then on.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    encoder.add_adapter(
        LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            lora_dropout=adapter.dropout,
            target_modules=_pattern(linear),
            revision=getattr(encoder.config, "_commit_hash", None),
        )
    )
    folder = Path(encoder.name_or_path).expanduser()
    if folder.is_dir():  # a checkpoint names it, and is loaded from wherever one happens to be
        encoder.peft_config["default"].base_model_name_or_path = str(folder.absolute())


def base_of(encoder: PreTrainedModel) -> Base:
    """What the adapter of an encoder lies on: the files as they are now, so call it when the encoder was loaded."""
    config = encoder.peft_config["default"]
    folder = Path(config.base_model_name_or_path).expanduser()
    weights = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    files = [folder / "config.json", *weights] if folder.is_dir() else []
    return Base(
        backbone=config.base_model_name_or_path,
        revision=config.revision if not files else None,
        files={file.name: sha256_of(file) for file in sorted(files)},
    )


def adapter_state(encoder: nn.Module) -> dict[str, Tensor]:
    """The adapter's own weights by their names in the encoder; nothing where it has no adapter."""
    return {name: weight for name, weight in encoder.named_parameters() if any(part in name for part in _PARTS)}


def load_adapter_state(encoder: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Takes the weights of an ``adapter_state``.

    Raises:
        KeyError: where one is missing or too many.
    """
    own = adapter_state(encoder)
    if differing := sorted(own.keys() ^ state.keys()):
        raise KeyError(f"the adapter's weights differ in {len(differing)} names, such as {differing[0]}")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(state[name])


def own_name(key: str) -> str:
    """The name in the encoder of a weight of adapter_model.safetensors."""
    return re.sub(r"\.(lora_[AB])\.weight$", r".\1.default.weight", key.removeprefix("base_model.model."))


def forget_optimizers() -> None:
    """Lets go of what bitsandbytes keeps of every 8-bit optimizer: whole embeddings, and settings by object id, which
    would meet the next trial's weights.
    """
    if "bitsandbytes" in sys.modules:
        from bitsandbytes.optim.optimizer import GlobalOptimManager

        GlobalOptimManager.get_instance().initialize()


def _pattern(names: list[str]) -> str:
    """A regular expression for exactly these modules, with any number for a layer's.

    Names by their ends, as peft's "all-linear" writes them down, would take in a pooler where plain AutoModel adds one.
    """
    parts = {r"\.".join(r"\d+" if part.isdecimal() else re.escape(part) for part in name.split(".")) for name in names}
    return "|".join(sorted(parts))
