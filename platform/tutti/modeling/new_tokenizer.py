"""Trains a tokenizer on plain text, deterministically."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from tutti.errors import BackboneError, Fault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TokenizerKind = Literal["wordpiece", "unigram", "bytes"]
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
DECODER_SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
_DIGITS = 6  # decimal digits that log-probabilities are rounded to


def train_tokenizer(
    lines: Iterable[str], *, kind: TokenizerKind, vocabulary: int, longest_input: int
) -> PreTrainedTokenizerFast:
    """A lower-casing tokenizer that encloses its tokens in ``[CLS]`` and ``[SEP]``; or one for decoders, which keeps
    every byte and puts ``<s>`` in front.

    Args:
        kind: ``wordpiece`` as in BERT (arXiv 1810.04805), with each Chinese character as its own token; ``unigram``, a
            unigram language model (arXiv 1804.10959), which finds words of several characters in text without spaces;
            or ``bytes``, byte-pair encoding of UTF-8 as in GPT-2, which writes any text in any script and back.
        vocabulary: maximum vocabulary size; little text gives a smaller one.
        longest_input: maximum input length in tokens, the tokenizer's ``model_max_length``.
    """
    train = {"wordpiece": _wordpiece, "unigram": _unigram, "bytes": _bytes}[kind]
    return train(lines, vocabulary=vocabulary, longest_input=longest_input)


def _wordpiece(lines: Iterable[str], *, vocabulary: int, longest_input: int) -> PreTrainedTokenizerFast:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    trained = BertWordPieceTokenizer(lowercase=True, handle_chinese_chars=True)
    words = Counter(
        word
        for line in lines
        for word, _ in trained.pre_tokenizer.pre_tokenize_str(trained.normalizer.normalize_str(line))
    )
    alphabet, inner = _alphabet(words, most=vocabulary * 3 // 4)
    trained.train_from_iterator(
        # The trainer visits characters in the random order of a hash table, and breaks ties by that order. Characters
        # that are passed in beforehand have fixed positions.
        words.elements(),
        vocab_size=vocabulary,
        min_frequency=2,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL.values(), *alphabet, *inner],
        show_progress=False,
    )
    pieces = dict(sorted(trained.get_vocab().items(), key=lambda entry: entry[1]))
    return BertTokenizer(vocab=pieces, do_lower_case=True, model_max_length=longest_input)


def _unigram(lines: Iterable[str], *, vocabulary: int, longest_input: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = list(SPECIAL.values())
    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.BertNormalizer(lowercase=True, handle_chinese_chars=False)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=special, unk_token=SPECIAL["unk_token"], show_progress=False
    )
    try:
        trained.train_from_iterator(lines, trainer)
    except Exception as error:  # tokenizers has no class for it
        if "vocabulary is not large enough" not in str(error):
            raise
        raise BackboneError(_too_small(vocabulary)) from error
    # The trainer sums in the random order of a hash table, so the last digits of scores, and thus the order of pieces,
    # differ from run to run. So do the scores of rare characters, which the trainer appends below all pieces.
    raw_scores = {
        piece: score for piece, score in json.loads(trained.to_str())["model"]["vocab"] if piece not in special
    }
    lowest = min((score for piece, score in raw_scores.items() if len(piece) > 1), default=0.0)
    scores = {piece: round(max(score, lowest), _DIGITS) for piece, score in raw_scores.items()}
    # The trainer exceeds the size where the characters alone fill it. The best of the longer pieces take what is left.
    by_score = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
    room = vocabulary - len(special) - sum(len(piece) == 1 for piece in scores)
    if room < 0:
        raise BackboneError(_too_small(vocabulary))
    kept = {piece for piece, _ in [entry for entry in by_score if len(entry[0]) > 1][:room]}
    pieces = [(piece, 0.0) for piece in special]
    pieces += [(piece, score) for piece, score in by_score if len(piece) == 1 or piece in kept]
    trained.model = models.Unigram(pieces, unk_id=special.index(SPECIAL["unk_token"]))
    sep, cls = SPECIAL["sep_token"], SPECIAL["cls_token"]
    trained.post_processor = processors.BertProcessing((sep, special.index(sep)), (cls, special.index(cls)))
    return PreTrainedTokenizerFast(
        tokenizer_object=trained, model_max_length=longest_input, model_input_names=_INPUTS, **SPECIAL
    )


def _bytes(lines: Iterable[str], *, vocabulary: int, longest_input: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = list(DECODER_SPECIAL.values())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocabulary < len(special) + len(alphabet):
        rule, remedy = f"hold {len(special)} special tokens and all {len(alphabet)} bytes", "raise it"
        raise BackboneError(Fault("the vocabulary", rule, f"{vocabulary} entries", remedy))
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[*special, *alphabet],  # passed so, bytes have the same numbers in each run
        show_progress=False,
    )
    trainee.train_from_iterator((line.rstrip("\n") for line in lines), trainer)
    model = json.loads(trainee.to_str())["model"]
    # A new one, to which no byte is special.
    trained = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]]))
    trained.pre_tokenizer, trained.decoder = trainee.pre_tokenizer, decoders.ByteLevel()
    start = DECODER_SPECIAL["bos_token"]
    trained.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, special.index(start))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        model_max_length=longest_input,
        model_input_names=["input_ids", "attention_mask"],
        **DECODER_SPECIAL,
    )


def _too_small(vocabulary: int) -> Fault:
    rule = f"hold every character of the texts, and {len(SPECIAL)} special tokens"
    remedy = "raise it, or take wordpiece, which leaves rare characters out"
    return Fault("the vocabulary", rule, f"{vocabulary} entries", remedy)


def _alphabet(words: Mapping[str, int], *, most: int) -> tuple[list[str], list[str]]:
    """The most frequent characters, and the ``##`` forms of those that occur inside words; ``most`` in total."""
    characters, inside = Counter[str](), Counter[str]()
    for word, count in words.items():
        for position, character in enumerate(word):
            characters[character] += count
            inside[character] += count if position else 0
    by_count = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = [character for character in by_count if character.strip()][: most - min(most // 3, len(+inside))]
    return alphabet, [f"##{character}" for character in alphabet if inside[character]][: most - len(alphabet)]
