"""Mistakes in tasks of texts to be written, and in the decoders that write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bad_input_changes import Case, Change, both, other_model, own_backbone, task, training, write

_ROWS = [{"input": f"say {number}", "output": f"it is {number}"} for number in range(20)]
_CHATS = [
    {"messages": [{"role": role, "content": f"{text} {number}"} for role, text in (("user", "a"), ("assistant", "b"))]}
    for number in range(20)
]
_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_DECODER = other_model("llama", **_SMALL, max_position_embeddings=64, tie_word_embeddings=True)
_SHORT = training("target_max_len: 16")


def _answers(keys: str = "", rows: Sequence[Mapping[str, object]] = _ROWS) -> Change:
    """The study's task is one of texts, with these keys and training rows."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    more = f"\n    {keys}" if keys else ""
    return both(task(f"answers:\n    layout: instructions\n    train: rows.jsonl{more}"), write("rows.jsonl", lines))


def _without_special_tokens(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    kept = {name: value for name, value in json.loads(file.read_text()).items() if "token" not in name}
    file.write_text(json.dumps({**kept, "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def _verbalizer(words: str) -> Change:
    return both(training(f"words: {words}"), training("head: verbalizer"))


TEXTS: Mapping[str, Sequence[Case]] = {
    "Texts to be written": (
        Case("an encoder is to write texts", both(_answers(), _SHORT)),
        Case("prompt and target together are longer than the decoder reads", both(_DECODER, _answers())),
        Case(
            "a setting of generation is not transformers'",
            both(_DECODER, _answers("generation: {temprature: 0.7}"), _SHORT),
        ),
        Case(
            "settings of generation contradict each other",
            both(_DECODER, _answers("generation: {num_beams: 2, num_return_sequences: 4}"), _SHORT),
        ),
        Case("chats for a tokenizer without a chat template", both(_DECODER, _answers("format: chat", _CHATS), _SHORT)),
        Case(
            "a chat has no turn of the assistant to be learnt",
            both(_DECODER, _answers("format: chat", [*_CHATS, {"messages": _CHATS[0]["messages"][:1]}]), _SHORT),
        ),
        Case("a target is empty", both(_DECODER, _answers(rows=[*_ROWS, {"input": "say it", "output": ""}]), _SHORT)),
        Case("the file is of another format", both(_DECODER, _answers("format: alpaca"), _SHORT)),
        Case("columns for a format that names its own", _answers("format: alpaca\n    columns: {text: input_text}")),
        Case("a metric of texts, which are not to be written", _answers("metric: rouge_l\n    generate: false")),
    ),
    "Decoders that classify": (
        Case("the tokenizer has no special token to pad with", own_backbone(_without_special_tokens)),
        Case("a verbalizer for an encoder", _verbalizer("{calm: calm, glad: glad, sad: sad}")),
        Case("a verbalizer without words", both(_DECODER, training("head: verbalizer"))),
        Case(
            "a verbalizer's word that is several tokens",
            both(_DECODER, _verbalizer('{calm: "very, very", glad: glad, sad: sad}')),
        ),
        Case("two classes with one word", both(_DECODER, _verbalizer("{calm: sad, glad: glad, sad: sad}"))),
    ),
}
