"""A shared backbone, an encoder or a decoder, with one head per task, and loading of backbones."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from tutti.errors import BackboneError, Fault, TrialError, first_line
from tutti.files import is_lfs_pointer
from tutti.modeling.adapters import (
    Adapter,
    Base,
    adapter_state,
    add_adapter,
    base_of,
    load_adapter_state,
    quantisation,
)
from tutti.modeling.decoders import is_decoder, token_positions
from tutti.modeling.heads import Head, HeadOptions, texts_apart
from tutti.modeling.kinds.registry import head_kind
from tutti.modeling.language_head import LanguageHead, language_head
from tutti.modeling.layers import encoder_layers
from tutti.modeling.packed import Layout
from tutti.modeling.pooler import check_pooler, pooled, takes_pooling_layer
from tutti.modeling.positions import first_position, positions
from tutti.modeling.token_head import TokenHead
from tutti.tasks.task import Task

REMEDY = "name a Hugging Face hub id, or a folder with config.json and model.safetensors"


class MultiTaskModel(nn.Module):
    """A shared encoder with one head per task.

    Heads are drawn from torch's default generator (seed it first) with the encoder's ``initializer_range``.

    Args:
        encoder: any model of ``AutoModel`` that returns ``last_hidden_state``, decoders too.
        tasks: each gets a head. A task's name may contain any character.
        heads: the options of all heads.
        adapter: the adapter that ``load_encoder`` added to the encoder.
        base: the backbone under the adapter; by default the encoder's backbone as it is now. It is hashed here, once,
            because the backbone may be replaced before a checkpoint is saved.
        backbone: where the language-model head of tasks of texts is; None for a checkpoint that has it, or an adapter.
        global_attention: give the first token global attention where the encoder has such, as Longformer: without it
            the token sees only those near it. False for a checkpoint that was trained without it.

    Attributes:
        positions: the longest input, in tokens, that the encoder accepts; None for any length.
        packs: whether ``predict`` packs rows; set it after ``pack_rows``.

    Raises:
        TrialError: if the heads mix more layers than the encoder has.
    """

    def __init__(
        self,
        *,
        encoder: PreTrainedModel,
        tasks: Sequence[Task],
        heads: HeadOptions,
        adapter: Adapter | None = None,
        base: Base | None = None,
        global_attention: bool = True,
        backbone: str | None = None,
    ) -> None:
        super().__init__()
        self.encoder: PreTrainedModel = encoder
        self.head_options = heads
        self.adapter = adapter
        self.base = base_of(encoder) if adapter is not None and base is None else base
        self.tasks = {task.name: task for task in tasks}
        self.positions = positions(encoder)
        self.packs = False
        self._first_position = first_position(encoder)
        self._shortest = getattr(self.config, "downsampling_rate", 1)  # CANINE joins so many characters to one state
        inputs = inspect.signature(encoder.forward).parameters
        self._accepts_token_types = "token_type_ids" in inputs
        # A decoder keeps no keys and values for tokens to come, and counts positions from the first token of a row.
        self._decoder_inputs = {"use_cache", "position_ids"} & inputs.keys() if is_decoder(self.config) else set()
        self.global_attention = global_attention and "global_attention_mask" in inputs
        layers = getattr(self.config, "num_hidden_layers", heads.layers)
        if heads.layers > layers:
            rule = f"be at most {layers}, the encoder's layers"
            raise TrialError(Fault("the training key pooling_layers", rule, f"{heads.layers}", "lower it"))
        self.heads = nn.ModuleDict({head_key(task.name): self._new_head(task, backbone) for task in tasks})

    def _new_head(self, task: Task, backbone: str | None) -> Head | LanguageHead | TokenHead:
        heads, config = self.head_options, self.config
        if task.kind.generative:
            with_weights = self.base.backbone if self.base is not None else backbone
            return language_head(self.encoder, trained=self.adapter is None, backbone=with_weights)
        options: dict[str, Any] = {
            "hidden": config.hidden_size,
            "outputs": task.outputs,
            "options": heads,
            "std": getattr(config, "initializer_range", 0.02),
            "kind": head_kind(
                task.kind_name, ordered=heads.ordered, tags=heads.tags, pairs=heads.pairs, choices=heads.choices
            ),
        }
        if task.kind.sequential:
            return TokenHead(**options, marks=task.kind.spans != "none")
        return Head(**options, pair=task.pair)

    def forward(
        self,
        task: str,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        windows: Tensor | None = None,
        row_mask: Tensor | None = None,
        places: Tensor | None = None,
        choices: Tensor | None = None,
        units: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> Tensor:
        """``(inputs, tokens)`` int64 inputs to what the task's head gives, ``(rows, width)`` float32: see ``HeadKind``.

        An input is a row. With ``windows``, ``(rows,)`` int64, it is one of a row's windows, of which each row has so
        many, in order. With ``row_mask``, ``(inputs, rows, width)`` bool, it is a sequence of packed rows, each of as
        many tokens as are true, and what follows the last one is no row.
        For ``places`` and ``choices``, in tasks of texts, see ``LanguageHead``; for ``units``, of tags, ``TokenHead``.

        While it trains with several dropout samples, ``(samples, rows, width)``.
        """
        options: dict[str, Any] = {"attention_mask": attention_mask}
        head = self.head(task)
        if head.is_bi_encoder:
            configured = self.encoder.config.pad_token_id
            pad = int(input_ids[0, 0]) if configured is None else configured
            input_ids, attention_mask = texts_apart(input_ids, attention_mask, token_type_ids, pad=pad)
            options["attention_mask"] = attention_mask
        if (missing := self._shortest - input_ids.shape[1]) > 0:
            input_ids, attention_mask = (
                functional.pad(input_ids, (0, missing)),
                functional.pad(attention_mask, (0, missing)),
            )
            token_type_ids = None if token_type_ids is None else functional.pad(token_type_ids, (0, missing))
            options["attention_mask"] = attention_mask
        if self._accepts_token_types and token_type_ids is not None and not head.is_bi_encoder:
            options["token_type_ids"] = token_type_ids
        if "use_cache" in self._decoder_inputs:
            options["use_cache"] = False
        if "position_ids" in self._decoder_inputs:
            options["position_ids"] = token_positions(attention_mask)
        if self.global_attention:
            options["global_attention_mask"] = torch.zeros_like(attention_mask)
            options["global_attention_mask"][:, 0] = 1
        layout = None if row_mask is None else Layout.of(row_mask, input_ids.shape[1])
        if layout is not None:
            options |= layout.inputs(self.encoder, first_position=self._first_position)
        layers = self.head_options.layers
        if layers > 1:
            options["output_hidden_states"] = True
        outputs = self.encoder(input_ids=input_ids, **options)
        states = outputs.hidden_states[-layers:] if layers > 1 else (outputs.last_hidden_state,)
        if layout is not None:
            states, attention_mask = tuple(map(layout.rows_of, states)), layout.mask
            token_type_ids = None if token_type_ids is None else layout.rows_of(token_type_ids)
        if isinstance(head, LanguageHead):
            assert places is not None
            if layout is not None:  # rows of no token fill the sequence up
                input_ids = layout.rows_of(input_ids)
                places = functional.pad(places, (0, len(input_ids) - len(places)), value=1)
            table = self.encoder.get_input_embeddings().weight
            if choices is not None:
                return head.choice_logits(states[-1], places, choices, table)
            return head(states[-1], attention_mask, input_ids, places, table)
        if isinstance(head, TokenHead):
            assert units is not None
            return head(states, units, windows)
        pooler = partial(pooled, self.encoder) if self.head_options.pooling == "pooler" else None
        return head(states, attention_mask, token_type_ids, windows, candidates, pooler=pooler)

    def head(self, task: str) -> Head | LanguageHead | TokenHead:
        """The head of a task."""
        return self.heads[head_key(task)]  # type: ignore[return-value]

    def trained_state(self) -> dict[str, Tensor]:
        """The state that training changes, by name: all weights and buffers of the encoder, or only the adapter's
        weights if there is an adapter, and those of the heads.
        """
        if self.adapter is None:
            state = self.state_dict()
        else:
            state = {f"encoder.{name}": weight for name, weight in adapter_state(self.encoder).items()}
            state |= self.heads.state_dict(prefix="heads.")
        return {name: tensor.detach().contiguous() for name, tensor in state.items()}

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Loads the ``trained_state`` of a model of the same shape."""
        if self.adapter is None:
            self.load_state_dict(dict(state))
            return
        load_adapter_state(self.encoder, below("encoder.", state))
        self.heads.load_state_dict(below("heads.", state))

    # Required by Trainer for activation_checkpointing, neftune_noise_alpha and fsdp.

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
        except ValueError:  # an encoder without a list of layers is gathered as a whole
            return []
        return sorted({type(layer).__name__ for layer in layers})

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.encoder.activation_checkpointing_enable(**options)


def below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state under a prefix, with the prefix removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def head_key(task: str) -> str:
    """A task's key in a ModuleDict, which allows neither "." nor names of its own attributes, such as "keys"."""
    return "task:" + task.replace("%", "%25").replace(".", "%2e")


def load_encoder(
    backbone: str,
    *,
    adapter: Adapter | None = None,
    device: torch.device | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    weightless: bool = False,
    pooler: bool = False,
) -> PreTrainedModel:
    """Loads the encoder or decoder of a hub id or folder, in float32, without the language-model head.

    Args:
        adapter: to be added; the encoder's own weights are then frozen, in ``adapter.weights``, and quantised if
            ``adapter.bits`` is set: none of them is ever held in another precision.
        device: the device of quantised weights, the CPU by default. All other weights are loaded to the CPU.
        pooler: whether to load its pooler too, which heads with this pooling alone use.
        weightless: load shapes alone, to the device meta, of a decoder, which may be large.
        revision: of a hub id.
        attn_implementation: see ``from_pretrained``; None for the default.

    Raises:
        BackboneError: if the backbone does not exist, has no config.json, is damaged, lacks weights, such as those of
            the pooler where it is to be loaded, or is no encoder.
        TrialError: if the encoder does not support the quantisation, the adapter or the attention implementation.
    """
    check_backbone_folder(backbone)
    hub_options = {"revision": revision} if revision else {}
    quantised = quantisation(adapter, device or torch.device("cpu"))
    with _backbone_faults(backbone):
        config = AutoConfig.from_pretrained(backbone, trust_remote_code=False, **hub_options)
        _check_reads_texts(backbone, config)
        if getattr(config, "attention_type", None) == "block_sparse":
            # BigBird's sparse attention gives way to the full one, for good, at the first short batch: what a long row
            # gives, and what a resumed run learns, would depend on the batches before.
            config.attention_type = "original_full"
        options = {"add_pooling_layer": pooler} if takes_pooling_layer(config) else {}
        if weightless and is_decoder(config):
            quantised = {"device_map": {"": "meta"}}
        dtype = torch.float32 if adapter is None else getattr(torch, adapter.weights)
        with no_progress_bars(), _key_faults(adapter, attn_implementation):
            encoder, loading = AutoModel.from_pretrained(
                backbone,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                trust_remote_code=False,
                attn_implementation=attn_implementation,
                **hub_options,
                **options,
                **quantised,
            )
    check_complete(backbone, loading["missing_keys"])
    if pooler:
        check_pooler(encoder, backbone, loading["missing_keys"])
    if adapter is not None:
        add_adapter(encoder, adapter)
    return encoder


def model_type_of(backbone: str) -> str:
    """The type of a backbone, such as ``bert``, by its config.json alone.

    Raises:
        BackboneError: if the backbone does not exist, or its config.json is missing or damaged.
    """
    check_backbone_folder(backbone)
    with _backbone_faults(backbone):
        return str(AutoConfig.from_pretrained(backbone, trust_remote_code=False).model_type)


@contextmanager
def _backbone_faults(backbone: str) -> Iterator[None]:
    """Converts errors of loading a backbone into a BackboneError."""
    try:
        yield
    except SafetensorError as error:
        rule, remedy = "hold weights that can be read", "copy or download the folder again"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, first_line(error).rstrip("."), remedy)) from error
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        rule, got, remedy = "load", first_line(error).rstrip("."), REMEDY
        if not Path(backbone).expanduser().is_dir():
            rule, got = "be a folder, relative to the study file, or an id of the hub", f"no such folder, and {got}"
            remedy = "make or name the folder, or check that the id is right and the hub can be reached"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, got, remedy)) from error


def check_complete(backbone: str, missing_keys: Iterable[str]) -> None:
    """Raises BackboneError where weights of the encoder were not in the backbone's files; it needs no pooler."""
    missing = sorted(name for name in missing_keys if "pooler" not in name)
    if missing:
        got = f"weights that lack {len(missing)} tensors, such as {missing[0]}"
        raise BackboneError(Fault(f"the backbone {backbone!r}", "hold every weight its config.json asks", got, REMEDY))


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silences transformers' progress bars, and its warnings about unused weights such as the pooler's."""
    enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if enabled:
            logging.enable_progress_bar()


def check_backbone_folder(backbone: str) -> None:
    """Checks a backbone that is a folder; does nothing for one that can only be a hub id.

    Raises:
        BackboneError: if the folder does not exist, has no config.json, or has pointers of Git LFS.
    """
    folder = Path(backbone).expanduser()
    what = f"the backbone {backbone!r}"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            inner = [file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/config.json")]
            remedy = f"name {str(inner[0])!r}, which has one" if inner else REMEDY  # a cache has it under snapshots/
            raise BackboneError(Fault(what, "be a folder with a config.json", "a folder without one", remedy))
        if pointers := [file.name for file in sorted(folder.iterdir()) if file.is_file() and is_lfs_pointer(file)]:
            got, remedy = f"pointers of Git LFS in place of {', '.join(pointers)}", "run `git lfs pull` in it"
            raise BackboneError(Fault(what, "hold its files themselves", got, remedy))
    elif folder.exists():
        raise BackboneError(Fault(what, "be a folder or a hub id", "a file", REMEDY))
    elif backbone.startswith((".", "/", "~")) or backbone.count("/") > 1:
        raise BackboneError(Fault(what, "be an existing folder", "a path that does not exist", REMEDY))


def _check_reads_texts(backbone: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder or not isinstance(getattr(config, "hidden_size", None), int):
        rule, got = (
            "be a text encoder, such as BERT, or a decoder, such as Qwen2",
            f"a model of type {config.model_type!r}",
        )
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, got, REMEDY))


@contextmanager
def _key_faults(adapter: Adapter | None, attn_implementation: str | None) -> Iterator[None]:
    """Converts errors caused by a training key into a TrialError; errors of the backbone itself pass through."""
    try:
        yield
    except (ValueError, RuntimeError, ImportError) as error:
        message, got = str(error).lower(), first_line(error).rstrip(".")
        rule = "be one that the backbone and this machine can compute"
        if attn_implementation is not None and "attention" in message:
            what, remedy = "the training key attn_implementation", "set it to sdpa or eager, or leave it out"
            raise TrialError(Fault(what, rule, f"{attn_implementation!r} ({got})", remedy)) from error
        if adapter is not None and adapter.bits and ("bitsandbytes" in message or "cuda" in message):
            what, remedy = "the training key bits", "set it to null, or give each worker a GPU of its own"
            raise TrialError(Fault(what, rule, f"{adapter.bits} ({got})", remedy)) from error
        raise
