"""One shared encoder with one head per task, and how an encoder is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging

from tutti.errors import BackboneError, Fault
from tutti.modeling.heads import Head

_POSITION_TABLES = {"position_embeddings", "position_embedding", "embed_positions", "wpe"}
REMEDY = "name a Hugging Face hub id, or a folder with config.json and model.safetensors"


class MultiTaskModel(nn.Module):
    """A shared encoder and, for each task, a head of its own.

    Heads are drawn from torch's default generator with the encoder's own ``initializer_range``: seed it first.

    Args:
        encoder: any model of ``AutoModel`` that gives ``last_hidden_state``.
        classes: task to its number of classes. A task's name may hold any character.
        pooling: ``attention``, ``cls`` or ``mean``.
        head_dropout: dropout probability in front of each head's linear layer.
    """

    def __init__(
        self, *, encoder: PreTrainedModel, classes: Mapping[str, int], pooling: str, head_dropout: float
    ) -> None:
        super().__init__()
        self.encoder: PreTrainedModel = encoder
        self.pooling = pooling
        self.head_dropout = head_dropout
        self._takes_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
        hidden, std = self.config.hidden_size, getattr(self.config, "initializer_range", 0.02)
        self._classes = dict(classes)
        self.heads = nn.ModuleDict(
            {
                head_key(task): Head(hidden=hidden, classes=count, pooling=pooling, dropout=head_dropout, std=std)
                for task, count in classes.items()
            }
        )

    def forward(
        self, task: str, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """``(rows, tokens)`` int64 inputs to the task's logits ``(rows, classes)`` float32."""
        types = {"token_type_ids": token_type_ids} if self._takes_types and token_type_ids is not None else {}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        return self.heads[head_key(task)](states, attention_mask)

    def class_count(self, task: str) -> int:
        """Classes of a task."""
        return self._classes[task]

    # What transformers.Trainer asks of a model for its options activation_checkpointing and neftune_noise_alpha.

    @property
    def config(self) -> PretrainedConfig:
        return self.encoder.config

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.encoder.activation_checkpointing_enable(**options)


def head_key(task: str) -> str:
    """A key for ModuleDict, which takes no "." and no name of its own attributes, such as "keys"."""
    return "task:" + task.replace("%", "%25").replace(".", "%2e")


def load_encoder(backbone: str) -> PreTrainedModel:
    """The encoder of a hub id or folder, in float32, without the pooler that no head uses.

    Raises:
        BackboneError: where it is not there, has no config.json, is damaged, lacks weights, or is no encoder.
    """
    check_backbone_folder(backbone)
    try:
        config = AutoConfig.from_pretrained(backbone, trust_remote_code=False)
        _check_is_encoder(backbone, config)
        options = {"add_pooling_layer": False} if _takes_pooling_layer(config) else {}
        with no_progress_bars():
            encoder, loading = AutoModel.from_pretrained(
                backbone,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                **options,
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


def _takes_pooling_layer(config: PretrainedConfig) -> bool:
    if type(config) not in MODEL_MAPPING:
        return False
    kinds = MODEL_MAPPING[type(config)]
    kind = kinds[0] if isinstance(kinds, (list, tuple)) else kinds
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
