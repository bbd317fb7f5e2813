"""Each format of instruction tuning becomes a prompt and the text to be written after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas import DataFrame

from tutti.config.study import InstructionFormat
from tutti.errors import TaskFileError
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.instructions import FORMATS, Instructions

Write = Callable[..., str]
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nName a colour.\n\n### Response: "
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n"
    "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response: "
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "好?"},
    {"role": "assistant", "content": "yes"},
]
SAMPLES: dict[str, list[tuple[dict[str, Any], str, str]]] = {  # a row, its prompt and its target
    "input-output": [({"input": "2 + 2 =", "output": "4"}, "2 + 2 =", "4")],
    "prompt-completion": [({"prompt": "Say a.", "completion": "a"}, "Say a.", "a")],
    "self-instruct": [({"prompt": "Task: b\nOutput:", "completion": " b"}, "Task: b\nOutput:", " b")],
    "alpaca": [
        ({"instruction": "Name a colour.", "input": "", "output": "red"}, ALPACA, "red"),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, ALPACA_WITH_INPUT, "3"),
    ],
    "unnatural-instructions": [
        (
            {"instruction": "Sort.", "instances": [{"instruction_with_input": "Sort. b a", "output": "a b"}]},
            "Sort. b a",
            "a b",
        )
    ],
    "chip2": [({"text": "<human>: Why?\n<bot>: Because."}, "Why?", "Because.")],
    "guanaco": [
        (
            {"text": "### Human: One?### Assistant: Two.### Human: Three?### Assistant: Four."},
            "### Human: One?### Assistant:",
            " Two.### Human: Three?### Assistant: Four.",
        )
    ],
    "hh": [
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "x"},
            "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:",
            " d",
        )
    ],
    "chat": [({"messages": TALK}, json.dumps(TALK[:4], ensure_ascii=False), "yes")],
}


def json_lines(rows: list[dict[str, Any]], path: Path) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def csv(rows: list[dict[str, Any]], path: Path) -> str:
    """Nested values are JSON in their cells."""
    plain = [{name: cell if isinstance(cell, str) else json.dumps(cell) for name, cell in row.items()} for row in rows]
    DataFrame(plain).to_csv(path, index=False)
    return str(path)


def parquet(rows: list[dict[str, Any]], path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


WRITERS: dict[str, Callable[[list[dict[str, Any]], Path], str]] = {
    ".jsonl": json_lines,
    ".csv": csv,
    ".parquet": parquet,
}


def test_the_formats_are_those_that_a_study_file_may_name() -> None:
    assert FORMATS.keys() == {*get_args(InstructionFormat)}
    assert SAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("form", FORMATS)
def test_each_format_gives_prompts_and_targets_from_each_type_of_file(tmp_path: Path, form: str, suffix: str) -> None:
    sample = SAMPLES[form]
    source = WRITERS[suffix]([row for row, _, _ in sample], tmp_path / f"rows{suffix}")
    layout = Instructions(format=form)
    rows = layout.read(source, labelled=True, check=KINDS["text"].cell_fault)
    assert rows[["text", "label"]].to_numpy().tolist() == [[prompt, target] for _, prompt, target in sample]
    assert rows["id"].tolist() == [str(number) for number in range(len(sample))]
    again = tmp_path / "again.jsonl"
    layout.write(rows, again)
    assert layout.read(str(again), labelled=True).to_numpy().tolist() == rows.to_numpy().tolist()


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("form", FORMATS)
def test_files_to_predict_need_no_targets_and_keep_their_ids(tmp_path: Path, form: str, suffix: str) -> None:
    row, prompt, _ = SAMPLES[form][0]
    rest = dict(row)
    if FORMATS[form].has_targets_apart:
        del rest[FORMATS[form].columns[-1]]
    if form == "chat":
        rest = {"messages": TALK[:4]}
    source = WRITERS[suffix]([{"id": "q7", **rest}], tmp_path / f"rows{suffix}")
    layout = Instructions(format=form)
    expected = [["q7", prompt]]
    assert layout.read(source, labelled=False).to_numpy().tolist() == expected
    assert [block.to_numpy().tolist() for block in layout.blocks(source, rows=10)] == [expected]


@pytest.mark.parametrize("form", ["alpaca", "chat"])
def test_a_data_set_of_the_hub_gives_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    sample = SAMPLES[form]
    data = datasets.Dataset.from_list([row for row, _, _ in sample])
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "set")
    layout = Instructions(format=form, dataset=str(tmp_path / "set"))
    rows = layout.read("train", labelled=True)
    assert rows[["text", "label"]].to_numpy().tolist() == [[prompt, target] for _, prompt, target in sample]
    (block,) = layout.blocks("test", rows=10)
    assert block["text"].tolist() == [prompt for _, prompt, _ in sample]
    assert layout.fingerprint("train") == layout.fingerprint("test")


def test_columns_of_other_names_serve_input_output(write: Write) -> None:
    source = write('{"question": "a", "answer": "b"}\n', "rows.jsonl")
    layout = Instructions(text="question", label="answer")
    assert layout.read(source, labelled=True)[["text", "label"]].to_numpy().tolist() == [["a", "b"]]


@pytest.mark.parametrize(
    ("form", "row", "message"),
    [
        (
            "input-output",
            {"input": "a"},
            "must have the column 'output' of the format input-output; got the columns input",
        ),
        ("input-output", {"input": "a", "output": " "}, "must have a label that is not empty; got an empty one"),
        ("alpaca", {"instruction": "a", "output": "b"}, "must have the column 'input' of the format alpaca"),
        ("hh", {"chosen": "\n\nHuman: a"}, "must have an assistant's turn, which 'Assistant:' begins"),
        ("chip2", {"text": "no bot"}, "must have an assistant's turn, which '<bot>:' begins"),
        ("guanaco", {"text": "### Human: a"}, "must have an assistant's turn, which '### Assistant:' begins"),
        ("unnatural-instructions", {"instances": []}, "must have an instance with `instruction_with_input`"),
        ("chat", {"messages": "hello"}, "must have messages, a list of objects with `role` and `content`; got 'hello'"),
        ("chat", {"messages": [{"role": "user"}]}, "must have messages, a list of objects"),
        ("chat", {"messages": "[1, "}, "must be JSON; got"),
        ("chat", {"messages": TALK[:2]}, "must end with a message of the assistant, to be learnt"),
        ("chat", {"messages": TALK[2:3]}, "must have a message before the assistant's"),
    ],
)
def test_rows_that_are_not_of_the_format_are_named(write: Write, form: str, row: dict[str, Any], message: str) -> None:
    source = write(json.dumps(row) + "\n", "rows.jsonl")
    with pytest.raises(TaskFileError) as caught:
        Instructions(format=form).read(source, labelled=True, check=KINDS["text"].cell_fault)
    assert message in str(caught.value)
    assert "rows.jsonl" in str(caught.value)
