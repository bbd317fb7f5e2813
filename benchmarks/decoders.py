"""Instruction tuning of a decoder with LoRA, and writing of texts, on one CPU thread.

    python benchmarks/decoders.py [--quick] [--json FILE] [--data FOLDER] [--cpu-time]

A decoder of about 20 million random weights learns the targets of instructions, 16 rows per batch, in one precision:

* trial: the trainer of tutti.training.fine_tune.
* trainer: transformers.Trainer with peft on the causal model, rows by length, and a collator as of the QLoRA script
  (arXiv 2305.14314): it tokenizes prompts and targets as they come, and pads inputs and labels.

``vs_trainer`` is the ratio of target tokens per second of the training loops, ``vs_pipeline`` that of the seconds in
which transformers' text-generation pipeline and the trial write 200 texts of up to 32 tokens; these are the same.
Contenders alternate; ratios are medians over the turns.

With --cpu-time the clock counts the CPU seconds of the process, for a machine with other work.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow.parquet as pq
import shared
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from shared import Rows, Target, Turns
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    pipeline,
    set_seed,
)

from tutti.config.study import TaskConfig
from tutti.data.encode import load_parts, load_tokenizer, take
from tutti.data.prepare import prepare
from tutti.data.prompts import SOURCE
from tutti.modeling.new_tokenizer import train_tokenizer
from tutti.records import TextLimit
from tutti.tasks.build import task_specs
from tutti.training.generate import generate
from tutti.training.machine.precision import cpu_gains_from_bf16

TARGETS = {"vs_trainer": Target(1.3), "vs_pipeline": Target(3)}
INSTRUCTIONS = shared.GLUE.parent / "kinds" / "instructions"
TASK, BATCH, RATE, RANK = "instructions", 16, 2e-4, 16
SOURCE_LENGTH, TARGET_LENGTH, NEW_TOKENS = 192, 64, 32
Texts = list[dict[str, Any]]


def new_decoder(texts: Sequence[str], folder: Path) -> str:
    """A decoder with its tokenizer of 8,000 tokens, made of these texts."""
    tokenizer: Any = train_tokenizer(texts, kind="bytes", vocabulary=8000, longest_input=2048)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"A decoder of {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} million weights")
    return str(folder)


def instruction_rows(data: Path, count: int, folder: Path) -> tuple[Rows, Texts]:
    """Rows as a study encodes them, and the texts of the same training rows. Makes the decoder first."""
    file = data / "train.jsonl"
    shared.at_hand(file, folder="whose train.jsonl has input and output")
    config = TaskConfig(
        layout="instructions", train=str(file), max_train_samples=count, generation={"max_new_tokens": NEW_TOKENS}
    )
    prepared = prepare(task_specs({TASK: config}), validation=0.1, seed=0, folder=folder / "prepared")
    texts: Texts = pq.read_table(prepared.parts[TASK]["train"].path).to_pylist()
    shared.backbone = new_decoder([row["text"] + "\n" + row["label"] for row in texts], folder / "decoder")
    limit = TextLimit(SOURCE_LENGTH, target_max_len=TARGET_LENGTH)
    return Rows(prepared.tasks, load_parts(prepared, tokenizer=shared.backbone, limit=limit, cache=folder)), texts


def _keys() -> dict[str, Any]:
    return {"per_device_train_batch_size": BATCH, "learning_rate": RATE, "weight_decay": 0.0, "num_train_epochs": 1}


def trial_seconds(rows: Rows, folder: Path) -> float:
    """Seconds of the training loop of a trial."""
    keys = _keys() | {"bf16": cpu_gains_from_bf16(), "adapter": "lora", "lora_r": RANK, "lora_alpha": 16.0}
    keys |= {"lora_dropout": 0.0, "max_grad_norm": 0.3, "lr_scheduler_type": "constant", "warmup_steps": 0}
    return shared.timed(shared.trial_trainer(rows, keys, folder=folder)).seconds


def _collator(tokenizer: Any) -> Any:
    """Tokenizes prompts and targets, and pads them; labels of prompts and padding are -100."""
    begin = [tokenizer.bos_token_id] if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id else []

    def collate(batch: Texts) -> dict[str, torch.Tensor]:
        options: dict[str, Any] = {"truncation": True, "add_special_tokens": False}
        sources = tokenizer([row["text"] for row in batch], max_length=SOURCE_LENGTH - len(begin), **options)
        targets = tokenizer([row["label"] + tokenizer.eos_token for row in batch], max_length=TARGET_LENGTH, **options)
        inputs, labels = [], []
        for source, target in zip(sources["input_ids"], targets["input_ids"], strict=True):
            inputs.append(torch.tensor([*begin, *source, *target]))
            labels.append(torch.tensor([-100] * (len(begin) + len(source)) + target))
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(inputs, batch_first=True, padding_value=tokenizer.pad_token_id)
        mask = pad([torch.ones_like(each) for each in inputs], batch_first=True, padding_value=0)
        return {"input_ids": ids, "attention_mask": mask, "labels": pad(labels, batch_first=True, padding_value=-100)}

    return collate


def trainer_seconds(texts: Texts, folder: Path) -> float:
    """Seconds of the training loop of a Trainer with peft."""
    set_seed(0)
    model = AutoModelForCausalLM.from_pretrained(shared.backbone)
    lora = LoraConfig(r=RANK, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    rows = Dataset.from_list([{**row, "length": len(row["text"]) + len(row["label"])} for row in texts])
    keys = _keys() | {"max_grad_norm": 0.3, "lr_scheduler_type": "constant", "remove_unused_columns": False}
    collate = _collator(load_tokenizer(shared.backbone))
    return shared.timed(
        shared.plain_trainer(
            get_peft_model(model, lora), rows, collate, folder=folder, train_sampling_strategy="group_by_length", **keys
        )
    ).seconds


def training_ratio(rows: Rows, texts: Texts, *, turns: int, folder: Path) -> dict[str, float]:
    part = rows.parts[TASK]["train"]
    targets = int((part.lengths - np.array(part.encoded.data.column(SOURCE))).sum())
    warm = dict(rows.parts[TASK]) | {"train": take(part, np.arange(2 * BATCH))}
    contenders = {
        "trial": lambda own, folder: (trial_seconds(own, folder),),
        "trainer": lambda own, folder: (trainer_seconds(texts[: len(own.parts[TASK]["train"].ids)], folder),),
    }
    taken = Turns.of(contenders, rows, warm_up=Rows(rows.tasks, {TASK: warm}), turns=turns, folder=folder)
    return {"target_tokens_per_second": targets / taken.median("trial"), "vs_trainer": taken.ratio("trainer")}


def writing_ratio(rows: Rows, count: int, *, folder: Path) -> dict[str, float]:
    """Texts of so many prompts, written by a trial's model and by a pipeline, in float32."""
    part = rows.parts[TASK]["train"]
    part = take(part, np.arange(count))
    keys = _keys() | {"adapter": "lora", "lora_r": RANK, "bf16": False}
    model = shared.trial_trainer(rows, keys, folder=folder).model
    tokenizer = load_tokenizer(shared.backbone)
    start = shared.now()
    ours, _ = generate(model, part, task=TASK, tokenizer=tokenizer, device=shared.device)
    seconds = shared.now() - start
    writer = pipeline("text-generation", model=shared.backbone, tokenizer=tokenizer, device="cpu")
    ids, starts, _ = part.flat
    assert part.targets is not None
    prompts = [tokenizer.decode(ids[begin : begin + size]) for begin, size in zip(starts, part.targets, strict=False)]
    start = shared.now()
    written = [
        writer(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, return_full_text=False, add_special_tokens=False)
        for prompt in prompts
    ]
    theirs = shared.now() - start
    same = np.mean(
        [own.strip() == other[0]["generated_text"].strip() for own, other in zip(ours, written, strict=True)]
    )
    print(f"\n{count} texts: {seconds:.1f} s, pipeline {theirs:.1f} s; {100 * same:.1f} % are the same")
    return {"vs_pipeline": theirs / seconds, "same_texts": float(same)}


def main() -> None:
    parser = shared.arguments(__doc__, quick="160 rows, 3 turns, 100 texts: under 5 minutes")
    parser.set_defaults(data=INSTRUCTIONS)
    options = shared.with_cpu_time(parser)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, texts = instruction_rows(options.data, 178 if options.quick else 1600, folder)
        values = training_ratio(rows, texts, turns=3 if options.quick else 5, folder=folder)
        values |= writing_ratio(rows, min(100 if options.quick else 200, len(texts)), folder=folder / "writing")
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
