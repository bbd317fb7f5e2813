"""Backbones with their language-model heads, which guess masked tokens or the next ones."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from tutti.config.pretraining import ObjectiveName
from tutti.errors import BackboneError, Fault, first_line
from tutti.modeling.decoders import is_decoder
from tutti.modeling.model import check_backbone_folder, check_complete, no_progress_bars

# Modules that map each token vector to logits, or to what logits are made from, in BERT- and RoBERTa-like encoders,
# decoders and ELECTRA's generator.
_HEADS = ("cls", "lm_head", "generator_predictions")
LanguageModel = Literal["masked", "causal"]
_REMEDIES = {"masked": "name an encoder such as BERT or RoBERTa", "causal": "name a decoder such as Qwen2 or Llama"}


def check_has_token(tokenizer: Any, objective: ObjectiveName) -> None:
    """Checks that a tokenizer has what an objective needs: a mask, or an end of text.

    Raises:
        BackboneError: if it has not.
    """
    causal = objective == "causal"
    if (tokenizer.eos_token if causal else tokenizer.mask_token) is None:
        rule = "have a token for the end of a text" if causal else "have a mask token"
        what, remedy = f"the tokenizer of {tokenizer.name_or_path}", _REMEDIES["causal" if causal else "masked"]
        raise BackboneError(Fault(what, rule, "none", remedy))


class SelectedLogits:
    """Computes logits for some tokens alone: with a small encoder, of whose tokens few are masked, the head takes
    longer than all layers together.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._selected: Tensor | None = None  # outside of a call the model computes all logits
        head = next((module for name, module in model.named_children() if name in _HEADS), None)
        self.head_selects = head is not None
        if head is not None:  # these heads compute each token independently
            head.register_forward_pre_hook(self._take)

    def __call__(self, inputs: Mapping[str, Tensor], selected: Tensor) -> Tensor:
        """``(selected, vocabulary)`` logits.

        Args:
            selected: ``(selected,)`` int64 indices into the flat batch.
        """
        self._selected = selected
        try:
            logits: Tensor = self._model(**inputs).logits
        finally:
            self._selected = None
        return logits if self.head_selects else logits.flatten(0, 1)[selected]

    def _take(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs if self._selected is None else (inputs[0].flatten(0, 1)[self._selected], *inputs[1:])


def objective_of(backbone: str) -> ObjectiveName:
    """What the backbone can learn from texts alone: ``causal`` for a decoder, ``electra`` for one of its kind,
    ``masked`` for another encoder.

    Raises:
        BackboneError: if it does not load.
    """
    config = config_of(backbone)
    return "causal" if is_decoder(config) else "electra" if config.model_type == "electra" else "masked"


def config_of(backbone: str) -> Any:
    """The configuration of a backbone.

    Raises:
        BackboneError: if it does not load.
    """
    check_backbone_folder(backbone)
    try:
        return AutoConfig.from_pretrained(backbone, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _not_loaded(backbone, error) from error


def _not_loaded(backbone: str, error: Exception) -> BackboneError:
    remedy = "check that the id is right and the hub can be reached, or name a folder"
    return BackboneError(Fault(f"the backbone {backbone!r}", "load", first_line(error).rstrip("."), remedy))


def load_language_model(backbone: str, objective: LanguageModel) -> PreTrainedModel:
    """The backbone with its language-model head, in float32; a head that its files lack is new.

    Raises:
        BackboneError: if the backbone does not load, lacks weights, or has no form for the objective.
    """
    config = config_of(backbone)
    fits = is_decoder(config) if objective == "causal" else type(config) in MODEL_FOR_MASKED_LM_MAPPING
    if not fits:
        rule = f"have a form that guesses {'the next token' if objective == 'causal' else 'masked tokens'}"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, config.model_type, _REMEDIES[objective]))
    auto = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    try:
        with no_progress_bars():
            model, loading = auto.from_pretrained(
                backbone, config=config, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise _not_loaded(backbone, error) from error
    assert isinstance(model, PreTrainedModel)
    encoder = f"{model.base_model_prefix}."
    check_complete(backbone, [name for name in loading["missing_keys"] if name.startswith(encoder)])
    _zero_new_biases(model, {name for name in loading["missing_keys"] if not name.startswith(encoder)})
    return model


def _zero_new_biases(model: PreTrainedModel, missing: Set[str]) -> None:
    """Zeroes the biases of a new head, as its constructor does.

    transformers allocates missing weights without contents and then initialises those of known modules. The heads of
    FNet, Longformer and Data2VecText hold a bias of their own that it leaves out.

    Args:
        missing: names that the backbone's files lack. A bias that is tied to a weight that was loaded is kept.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in parameters.items() if name not in missing}
    for name in missing & parameters.keys():
        if name.rpartition(".")[2] == "bias" and id(parameters[name]) not in loaded:
            nn.init.zeros_(parameters[name])
