"""One shared encoder with one head per task, and how an encoder is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging

from tutti.errors import BackboneError, Fault, TrialError
from tutti.modeling.adapters import (
    Adapter,
    Base,
    adapter_state,
    add_adapter,
    base_of,
    load_adapter_state,
    quantisation,
)
from tutti.modeling.heads import Head, HeadOptions
from tutti.modeling.layers import encoder_layers
from tutti.tasks.task import Task

_POSITION_TABLES = {"position_embeddings", "position_embedding", "embed_positions", "wpe"}
REMEDY = "name a Hugging Face hub id, or a folder with config.json and model.safetensors"


class MultiTaskModel(nn.Module):
    """A shared encoder and, for each task, a head of its own.

    Heads are drawn from torch's default generator with the encoder's own ``initializer_range``: seed it first.

    Args:
        encoder: any model of ``AutoModel`` that gives ``last_hidden_state``.
        tasks: each gets a head. A task's name may hold any character.
        heads: how they are made.
        adapter: what ``load_encoder`` gave the encoder.
        base: what the adapter lies on; by default the encoder's backbone as it is now. Hashed here once, and not by
            each checkpoint, before which the backbone may have been replaced.

    Attributes:
        positions: the longest input, in tokens, that the encoder takes; none for any.

    Raises:
        TrialError: where the heads mix more layers than the encoder has.
    """

    def __init__(
        self,
        *,
        encoder: PreTrainedModel,
        tasks: Sequence[Task],
        heads: HeadOptions,
        adapter: Adapter | None = None,
        base: Base | None = None,
    ) -> None:
        super().__init__()
        self.encoder: PreTrainedModel = encoder
        self.head_options = heads
        self.adapter = adapter
        self.base = base_of(encoder) if adapter is not None and base is None else base
        self.tasks = {task.name: task for task in tasks}
        self.positions = positions(encoder)
        self._takes_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
        hidden, std = self.config.hidden_size, getattr(self.config, "initializer_range", 0.02)
        layers = getattr(self.config, "num_hidden_layers", heads.layers)
        if heads.layers > layers:
            what, remedy = "the training key pooling_layers", "lower it"
            raise TrialError(Fault(what, f"be at most {layers}, the encoder's layers", f"{heads.layers}", remedy))
        self.heads = nn.ModuleDict(
            {
                head_key(task.name): Head(
                    hidden=hidden,
                    outputs=task.outputs,
                    options=heads,
                    std=std,
                    pair=task.pair,
                    regression=task.regression,
                )
                for task in tasks
            }
        )

    def forward(
        self, task: str, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """``(rows, tokens)`` int64 inputs to the task's ``(rows, outputs)`` float32: logits, or values."""
        options: dict[str, Any] = {}
        if self._takes_types and token_type_ids is not None:
            options["token_type_ids"] = token_type_ids
        layers = self.head_options.layers
        if layers > 1:
            options["output_hidden_states"] = True
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **options)
        states = found.hidden_states[-layers:] if layers > 1 else (found.last_hidden_state,)
        return self.heads[head_key(task)](states, attention_mask, token_type_ids)

    def head(self, task: str) -> Head:
        """The head of a task."""
        return self.heads[head_key(task)]  # type: ignore[return-value]

    def trained_state(self) -> dict[str, Tensor]:
        """What a trial changes, by name: every weight and buffer of encoder and heads; of an encoder with an adapter
        only the adapter's.
        """
        if self.adapter is None:
            state = self.state_dict()
        else:
            state = {f"encoder.{name}": weight for name, weight in adapter_state(self.encoder).items()}
            state |= self.heads.state_dict(prefix="heads.")
        return {name: tensor.detach().contiguous() for name, tensor in state.items()}

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what ``trained_state`` gave of a model of the same shape."""
        if self.adapter is None:
            self.load_state_dict(dict(state))
            return
        load_adapter_state(self.encoder, below("encoder.", state))
        self.heads.load_state_dict(below("heads.", state))

    # What Trainer asks of a model for its options activation_checkpointing, neftune_noise_alpha and fsdp.

    @property
    def config(self) -> PretrainedConfig:
        return self.encoder.config

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    @property
    def _no_split_modules(self) -> list[str]:
        """The classes of the layers that FSDP gathers one at a time."""
        try:
            _, layers = encoder_layers(self.encoder)
        except ValueError:  # one without a list of them is gathered as a whole
            return []
        return sorted({type(layer).__name__ for layer in layers})

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.encoder.activation_checkpointing_enable(**options)


def below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a state has under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def head_key(task: str) -> str:
    """A key for ModuleDict, which takes no "." and no name of its own attributes, such as "keys"."""
    return "task:" + task.replace("%", "%25").replace(".", "%2e")


def load_encoder(
    backbone: str,
    *,
    adapter: Adapter | None = None,
    device: torch.device | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """The encoder of a hub id or folder, in float32, without the pooler that no head uses.

    Args:
        adapter: added to it; the encoder's own weights are then frozen, and held in ``adapter.bits`` bits if it says.
        device: where weights are quantised, and stay; the CPU by default. All others are loaded to the CPU.
        revision: of a hub id.
        attn_implementation: as ``from_pretrained`` takes it; none for its choice.

    Raises:
        BackboneError: where it is not there, has no config.json, is damaged, lacks weights, or is no encoder.
        TrialError: where it cannot be quantised, have an adapter, or compute its attention so.
    """
    check_backbone_folder(backbone)
    at = {"revision": revision} if revision else {}
    quantised = quantisation(adapter, device or torch.device("cpu"))
    try:
        config = AutoConfig.from_pretrained(backbone, trust_remote_code=False, **at)
        _check_is_encoder(backbone, config)
        options = {"add_pooling_layer": False} if _takes_pooling_layer(config) else {}
        with no_progress_bars(), _key_faults(adapter, attn_implementation):
            encoder, loading = AutoModel.from_pretrained(
                backbone,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                attn_implementation=attn_implementation,
                **at,
                **options,
                **quantised,
            )
    except SafetensorError as error:
        rule, remedy = "hold weights that can be read", "copy or download the folder again"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, _first_line(error), remedy)) from error
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        away = "see that the id is right and the hub can be reached, or name a folder"
        remedy = REMEDY if Path(backbone).expanduser().is_dir() else away
        raise BackboneError(Fault(f"the backbone {backbone!r}", "load", _first_line(error), remedy)) from error
    missing = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
    if missing:
        got = f"weights that lack {len(missing)} tensors, such as {missing[0]}"
        raise BackboneError(Fault(f"the backbone {backbone!r}", "hold every weight its config.json asks", got, REMEDY))
    if adapter is not None:
        add_adapter(encoder, adapter)
    return encoder


def positions(encoder: PreTrainedModel) -> int | None:
    """The longest input, in tokens, that the encoder's table of positions holds; none where it has no such table."""
    tables = [
        module
        for name, module in encoder.named_modules()
        if name.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding)
    ]
    if not tables:  # relative or rotary positions: any length goes
        return None
    # RoBERTa and its kin count positions from the one after the padding token's.
    held = min(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1) for table in tables)
    return min(held, getattr(encoder.config, "max_position_embeddings", held))


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Loading and saving a model prints nothing while the block runs, no list of the pooler's unused weights either."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def check_backbone_folder(backbone: str) -> None:
    """Says plainly what a folder lacks; does nothing for what can only be a hub id.

    Raises:
        BackboneError: where the folder is not there or has no config.json.
    """
    folder = Path(backbone).expanduser()
    what = f"the backbone {backbone!r}"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise BackboneError(Fault(what, "be a folder with a config.json", "a folder without one", REMEDY))
    elif folder.exists():
        raise BackboneError(Fault(what, "be a folder or a hub id", "a file", REMEDY))
    elif backbone.startswith((".", "/", "~")) or backbone.count("/") > 1:
        raise BackboneError(Fault(what, "be a folder that is there", "a path where nothing is", REMEDY))


def _check_is_encoder(backbone: str, config: PretrainedConfig) -> None:
    generates = (
        config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and config.model_type not in {*MODEL_FOR_MASKED_LM_MAPPING_NAMES, "xlnet"}
        and not getattr(config, "use_bidirectional_attention", False)
    )
    if config.is_encoder_decoder or generates or not isinstance(getattr(config, "hidden_size", None), int):
        got = f"a model of type {config.model_type!r}"
        raise BackboneError(Fault(f"the backbone {backbone!r}", "be a text encoder, such as BERT", got, REMEDY))


@contextmanager
def _key_faults(adapter: Adapter | None, attn_implementation: str | None) -> Iterator[None]:
    """Tells what a training key asks for in vain from what is wrong with the backbone."""
    try:
        yield
    except (ValueError, RuntimeError, ImportError) as error:
        said, got = str(error).lower(), _first_line(error)
        rule = "be one that the backbone and this machine can compute"
        if attn_implementation is not None and "attention" in said:
            what, remedy = "the training key attn_implementation", "set it to sdpa or eager, or leave it out"
            raise TrialError(Fault(what, rule, f"{attn_implementation!r} ({got})", remedy)) from error
        if adapter is not None and adapter.bits and ("bitsandbytes" in said or "cuda" in said):
            what, remedy = "the training key bits", "set it to null, or give each worker a GPU of its own"
            raise TrialError(Fault(what, rule, f"{adapter.bits} ({got})", remedy)) from error
        raise


def _takes_pooling_layer(config: PretrainedConfig) -> bool:
    if type(config) not in MODEL_MAPPING:
        return False
    kinds = MODEL_MAPPING[type(config)]
    kind = kinds[0] if isinstance(kinds, (list, tuple)) else kinds
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
