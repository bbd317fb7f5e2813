"""ELECTRA (arXiv 2003.10555): a small generator replaces tokens, and the backbone learns to tell which ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

from tutti.config.pretraining import PretrainingSettings
from tutti.errors import BackboneError, Fault
from tutti.modeling.decoders import is_decoder
from tutti.modeling.layers import token_types, tokens
from tutti.modeling.model import check_complete, load_encoder, no_progress_bars
from tutti.training.pretraining.batches import ALL, Share, TokenBatch
from tutti.training.pretraining.language_model import SelectedLogits, check_has_token, config_of
from tutti.training.pretraining.masked import MASK_SHARE, select_tokens, token_outcome
from tutti.training.pretraining.masks import choose_tokens
from tutti.training.pretraining.objective import Inputs, Outcome, model_inputs, special_tokens

GENERATOR = "generator"  # the folder beside the discriminator's files
HEAD = "discriminator_head.safetensors"  # of a backbone that is no ElectraModel
LARGE, LARGE_MASK_SHARE = 1024, 0.25  # the width from which on more tokens are masked, as in the paper
_POSITIONS_FROM_ZERO = ("bert", "electra")  # RoBERTa and its like leave the first rows of their table out


class Electra:
    """Generator and discriminator, with tied tables of tokens, positions and token types.

    The generator guesses masked tokens, and what it says, drawn from its probabilities, replaces them. The
    discriminator tells of every token whether it is another one than before; one that was guessed right is not.

    Raises:
        BackboneError: if the backbone does not load or is no encoder, or its tokenizer has no mask token.
    """

    def __init__(self, backbone: str, *, tokenizer: Any, settings: PretrainingSettings) -> None:
        check_has_token(tokenizer, "electra")
        self.discriminator = Discriminator(backbone)
        encoder = self.discriminator.encoder
        self.generator = _load_generator(backbone, encoder, size=settings.generator_size)
        _tie(self.generator, encoder)
        self.module: nn.Module = nn.ModuleDict({"generator": self.generator, "discriminator": self.discriminator})
        self.model_type = encoder.config.model_type
        self._logits = SelectedLogits(self.generator)
        self._types = bool(token_types(encoder))
        self._mask, self._special = tokenizer.mask_token_id, special_tokens(tokenizer)
        self._share = settings.mask_share or (LARGE_MASK_SHARE if encoder.config.hidden_size >= LARGE else MASK_SHARE)
        self._masks, self._weight = settings.masks, settings.discriminator_weight

    def draw(self, batch: TokenBatch, share: Share = ALL) -> Inputs:
        maskable = batch.is_token & ~torch.isin(batch.ids, self._special)
        chosen = choose_tokens(batch, maskable, share=self._share, masks=self._masks)
        totals = {"masked_total": chosen.sum(), "total": batch.is_token.sum()}
        batch, chosen, uniform = share.batch(batch, chosen, torch.rand(batch.ids.shape))
        selected = select_tokens(chosen)
        masked = selected[: int(chosen.sum())]
        drawn = {"selected": selected, "masked": masked, "uniform": uniform.flatten()[masked, None]}
        return model_inputs(batch, types=self._types) | drawn | totals

    def outcome(self, inputs: Inputs) -> Outcome:
        selected, masked, uniform = (inputs.pop(name) for name in ("selected", "masked", "uniform"))
        masked_total, total = inputs.pop("masked_total"), inputs.pop("total")
        ids = inputs["input_ids"]
        labels, count = ids.flatten()[selected], torch.tensor(len(masked), device=ids.device)
        with_masks = ids.flatten().index_fill(0, masked, self._mask).view_as(ids)
        logits = self._logits({**inputs, "input_ids": with_masks}, selected)
        generator = token_outcome(logits, labels, count, masked_total, prefix="generator_")

        replacements = sample(logits[: len(masked)], uniform)
        corrupted = ids.flatten().index_copy(0, masked, replacements).view_as(ids)
        scores = self.discriminator({**inputs, "input_ids": corrupted}).float()
        is_replaced = corrupted != ids
        is_token = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones_like(is_replaced)
        losses = nn.functional.binary_cross_entropy_with_logits(scores, is_replaced.float(), reduction="none")
        number, loss = is_token.sum(), torch.where(is_token, losses, 0.0).sum()
        right = (is_token & ((scores.detach() > 0) == is_replaced)).sum()
        sums = {"discriminator_loss": (loss.detach(), number), "discriminator_accuracy": (right, number)}
        sums["replaced_share"] = (is_replaced.sum(), number)
        return Outcome(generator.loss + self._weight * loss / total.clamp(min=1), {**generator.sums, **sums})

    def loss(self, means: Mapping[str, float]) -> float:
        return means["generator_loss"] + self._weight * means["discriminator_loss"]

    def save(self, folder: Path, tokenizer: Any) -> None:
        self.discriminator.save(folder)
        self.generator.save_pretrained(folder / GENERATOR)
        tokenizer.save_pretrained(folder)
        tokenizer.save_pretrained(folder / GENERATOR)


class Discriminator(nn.Module):
    """An encoder with ELECTRA's head. The head of a backbone that has none is new.

    Of a backbone that is no ElectraModel the head is kept in a file of its own, so that ``AutoModel`` still loads the
    encoder.
    """

    def __init__(self, backbone: str) -> None:
        super().__init__()
        config = config_of(backbone)
        if is_decoder(config):
            rule, remedy = "be an encoder for --objective electra", "name one such as BERT, or leave --objective out"
            raise BackboneError(Fault(f"the backbone {backbone!r}", rule, config.model_type, remedy))
        if config.model_type == "electra":
            load_encoder(backbone)  # for its faults in one sentence each
            with no_progress_bars():
                whole, loading = ElectraForPreTraining.from_pretrained(
                    backbone, dtype=torch.float32, output_loading_info=True
                )
            check_complete(backbone, [name for name in loading["missing_keys"] if name.startswith("electra.")])
            self.encoder, self.head = whole.electra, whole.discriminator_predictions
            self._save_whole: Callable[[Path], None] | None = whole.save_pretrained
        else:
            self.encoder = load_encoder(backbone)
            self.head = ElectraDiscriminatorPredictions(ElectraConfig(hidden_size=self.encoder.config.hidden_size))
            for layer in (self.head.dense, self.head.dense_prediction):
                nn.init.normal_(layer.weight, std=getattr(self.encoder.config, "initializer_range", 0.02))
                nn.init.zeros_(layer.bias)
            if (file := Path(backbone).expanduser() / HEAD).is_file():
                self.head.load_state_dict(load_file(file))
            self._save_whole = None

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """``(rows, tokens)`` logits of "this token was replaced"."""
        scores: Tensor = self.head(self.encoder(**inputs).last_hidden_state)
        return scores

    def save(self, folder: Path) -> None:
        """Writes the backbone to a folder that ``AutoModel`` loads, and for ELECTRA ``AutoModelForPreTraining``."""
        if self._save_whole is not None:
            self._save_whole(folder)
            return
        self.encoder.save_pretrained(folder)
        save_file({name: each.contiguous() for name, each in self.head.state_dict().items()}, folder / HEAD)


def generator_config(encoder: PreTrainedModel, *, size: float) -> ElectraConfig:
    """A generator as deep as an encoder, ``size`` times as wide, over tables of the same width."""
    config = encoder.config
    heads = max(1, round(size * config.num_attention_heads))
    hidden = max(1, round(size * config.hidden_size / heads)) * heads
    return ElectraConfig(
        vocab_size=tokens(encoder),
        embedding_size=encoder.get_input_embeddings().weight.shape[1],
        hidden_size=hidden,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        intermediate_size=max(1, round(size * getattr(config, "intermediate_size", 4 * config.hidden_size))),
        max_position_embeddings=config.max_position_embeddings,
        type_vocab_size=max(1, token_types(encoder) or 1),
        hidden_dropout_prob=getattr(config, "hidden_dropout_prob", 0.1),
        attention_probs_dropout_prob=getattr(config, "attention_probs_dropout_prob", 0.1),
        pad_token_id=config.pad_token_id,
    )


def _load_generator(backbone: str, encoder: PreTrainedModel, *, size: float) -> ElectraForMaskedLM:
    """The generator that an earlier run kept in the backbone's folder, if it is of this size; else a fresh one."""
    config, kept = generator_config(encoder, size=size), Path(backbone).expanduser() / GENERATOR
    names = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    if (kept / "config.json").is_file():
        before = ElectraConfig.from_pretrained(kept)
        if all(getattr(before, name) == getattr(config, name) for name in names):
            with no_progress_bars():
                return ElectraForMaskedLM.from_pretrained(kept, dtype=torch.float32)
    return ElectraForMaskedLM(config)


def _tie(generator: ElectraForMaskedLM, encoder: PreTrainedModel) -> None:
    """Gives the generator the encoder's own tables."""
    tables = generator.electra.embeddings
    generator.set_input_embeddings(encoder.get_input_embeddings())
    generator.generator_lm_head.weight = encoder.get_input_embeddings().weight
    if encoder.config.model_type in _POSITIONS_FROM_ZERO:
        tables.position_embeddings = encoder.embeddings.position_embeddings
        tables.token_type_embeddings = encoder.embeddings.token_type_embeddings


@torch.no_grad()
def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """``(tokens,)`` int64: of each row of logits, a number drawn with its softmax's probabilities.

    One uniform number a token, and a cumulative sum, give the same distribution as the Gumbel noise that the paper adds
    to every logit, which takes as many draws as there are logits.

    Args:
        logits: ``(tokens, vocabulary)``.
        uniform: ``(tokens, 1)``, drawn from [0, 1).

    Example:
        >>> sample(torch.tensor([[0.0, 9.0], [0.0, 0.0]]), torch.tensor([[0.5], [0.4]])).tolist()
        [1, 0]
    """
    cumulative = logits.float().softmax(-1).cumsum(-1)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
    return drawn.clamp(max=logits.shape[1] - 1)
