"""Pretraining's speed in tokens a second, without padding, beside loops as others write them.

* ``masked_vs_trainer``: transformers' Trainer with its collator for masked language modelling on grouped texts, as its
  example run_mlm.py does.
* ``electra_vs_plain``: a plain ELECTRA loop: a row for each text, padded; masks drawn for each row; the generator's
  logits, and Gumbel noise on them, for all tokens.
* ``vs_bare``: a loop of the needed products alone, on rows that are tensors already.
* ``two_workers_vs_one``: two gloo workers with a thread each, with twice the rows in a step, against one.
* ``encoding``: reading, removing equal documents, tokenizing and packing of the text file by ``load_corpus``, against
  ``datasets.map`` with the fast tokenizer of the texts in memory, on as many processes; both write Arrow files.

All train the same new encoder on the sentences of SST-2, in one precision, on one thread each.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import shared
import torch
import torch.distributed as dist
from datasets import Dataset, disable_progress_bars
from torch import nn
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from tutti.config.pretraining import PretrainingSettings
from tutti.data.corpus import Corpus, CorpusOptions, load_corpus
from tutti.data.encode import load_tokenizer
from tutti.modeling.new_backbone import new_backbone
from tutti.training.machine.precision import autocast, fastest
from tutti.training.pretraining.electra import Electra
from tutti.training.pretraining.loop import Loop
from tutti.training.pretraining.masked import Masked
from tutti.training.pretraining.objective import Objective
from tutti.training.pretraining.states import States

TARGETS = {
    "masked_vs_trainer": shared.Target(1.5),
    "electra_vs_plain": shared.Target(2),
    "vs_bare": shared.Target(0.95),
    "two_workers_vs_one": shared.Target(1.5),
    "encoding": shared.Target(0.9),
}
BATCH, WIDTH, RATE, SHARE = 16, 128, 5e-4, 0.15
WARM_UP = 3  # steps that are not measured


def main() -> None:
    parser = shared.arguments(__doc__, quick="a tiny encoder and a few steps")
    parser.add_argument("--job", type=Path, help="internal: what a worker trains")
    options = shared.with_cpu_time(parser)
    disable_progress_bars()
    if options.job:
        work(options.job)
        return
    steps, size = (8, "tiny") if options.quick else (60, "mini")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = folder / "texts.tsv"
        lines = (options.data / "SST-2" / "train.tsv").read_text(encoding="utf8").splitlines(keepends=True)
        texts.write_text("".join(lines[: 3_000 if options.quick else None]), encoding="utf8")
        made: dict[str, str] = {}
        for kind in ("encoder", "electra"):
            new_backbone(texts=[texts], size=size, out=folder / kind, architecture=kind)  # type: ignore[arg-type]
            made[kind] = str(folder / kind)
        corpora = {
            packed: corpus_of(texts, made["encoder"], cache=folder / "cache", packed=packed) for packed in (True, False)
        }
        values = measure(made, corpora[True], corpora[False], steps=steps, folder=folder)
        job = {"backbone": made["encoder"], "texts": str(texts), "cache": str(folder / "cache"), "steps": steps}
        values["two_workers_vs_one"] = two_workers(job, folder=folder, turns=1 if options.quick else 3)
        texts.write_text("".join(lines), encoding="utf8")
        values["encoding"] = encoding(texts, made["encoder"], folder=folder, turns=1 if options.quick else 3)
    shared.show_results(values, TARGETS, options.json)


def measure(made: dict[str, str], packed: Corpus, apart: Corpus, *, steps: int, folder: Path) -> dict[str, float]:
    """Tokens a second of each contender, and their ratios."""
    tokenizer = load_tokenizer(made["encoder"])
    settings = PretrainingSettings(
        steps=steps + WARM_UP, learning_rate=RATE, batch_size=BATCH, mask_share=SHARE, log_steps=1
    )
    masked = Masked(made["encoder"], tokenizer=tokenizer, settings=settings)
    electra = Electra(made["electra"], tokenizer=tokenizer, settings=settings)
    speeds = {
        "masked": ours(masked, packed, settings, folder / "masked", tokenizer),
        "trainer": with_trainer(made["encoder"], packed, steps=steps, folder=folder / "trainer"),
        "bare": bare(made["encoder"], packed, steps=steps),
        "electra": ours(electra, packed, settings, folder / "states", tokenizer),
        "plain": plain_electra(made["electra"], apart, steps=steps, settings=settings),
    }
    ratios = {
        "masked_vs_trainer": speeds["masked"] / speeds["trainer"],
        "electra_vs_plain": speeds["electra"] / speeds["plain"],
        "vs_bare": speeds["masked"] / speeds["bare"],
    }
    return {**{f"{name}_tokens_per_second": speed for name, speed in speeds.items()}, **ratios}


def corpus_of(texts: Path, backbone: str, *, cache: Path, packed: bool = True, processes: int = 1) -> Corpus:
    options = CorpusOptions(columns=("sentence",), max_length=WIDTH, packed=packed)
    return load_corpus([texts], tokenizer=load_tokenizer(backbone), cache=cache, options=options, processes=processes)


def two_workers(job: dict[str, Any], *, folder: Path, turns: int) -> float:
    """Tokens a second of two workers, relative to one: the median over turns."""
    ratios = []
    for turn in range(turns):
        speeds = {}
        for workers in (1, 2) if turn % 2 == 0 else (2, 1):
            file = folder / f"{turn}-{workers}.json"
            file.write_text(json.dumps({**job, "states": str(folder / f"states-{turn}-{workers}")}))
            shared.run_ranks([__file__, "--job", str(file)], workers=workers, threads=1)
            speeds[workers] = float(file.with_suffix(".found").read_text())
        ratios.append(speeds[2] / speeds[1])
    return median(ratios)


def work(file: Path) -> None:
    """Trains as one rank, or alone; rank 0 writes the tokens a second of all ranks."""
    job, workers = json.loads(file.read_text()), int(os.environ.get("WORLD_SIZE", "1"))
    if workers > 1:
        dist.init_process_group("gloo")
    tokenizer = load_tokenizer(job["backbone"])
    corpus = corpus_of(Path(job["texts"]), job["backbone"], cache=Path(job["cache"]))
    settings = PretrainingSettings(
        steps=job["steps"] + WARM_UP, learning_rate=RATE, batch_size=BATCH, mask_share=SHARE, log_steps=1
    )
    learner = Masked(job["backbone"], tokenizer=tokenizer, settings=settings)
    speed = workers * ours(learner, corpus, settings, Path(job["states"]), tokenizer)
    if os.environ.get("RANK", "0") == "0":
        file.with_suffix(".found").write_text(str(speed))


def encoding(texts: Path, backbone: str, *, folder: Path, turns: int) -> float:
    """The time that ``datasets.map`` takes, relative to that of ``load_corpus``: the median over turns."""
    processes, ratios = len(os.sched_getaffinity(0)), []
    lines = [line.split("\t")[0] for line in texts.read_text(encoding="utf8").splitlines()[1:]]
    for turn in range(turns):
        tokenizer = load_tokenizer(backbone)
        began = time.perf_counter()
        Dataset.from_dict({"text": lines}).map(
            lambda rows, tokenizer=tokenizer: tokenizer(rows["text"], truncation=True, max_length=WIDTH),
            batched=True,
            num_proc=processes,
            remove_columns=["text"],
            cache_file_name=str(folder / f"map-{turn}.arrow"),
        )
        theirs = time.perf_counter() - began
        began = time.perf_counter()
        corpus_of(texts, backbone, cache=folder / f"corpus-{turn}", processes=processes)
        ratios.append(theirs / (time.perf_counter() - began))
    return median(ratios)


def ours(learner: Objective, corpus: Corpus, settings: PretrainingSettings, folder: Path, tokenizer: Any) -> float:
    seconds: list[float] = []
    before = 0.0  # the end of the step before; 0 after what is no step

    def note(progress: Any) -> None:
        nonlocal before
        if before and not progress.held_out and progress.step > WARM_UP:
            seconds.append(shared.now() - before)
        before = 0.0 if progress.held_out else shared.now()

    Loop(
        objective=learner,
        corpus=corpus,
        settings=settings,
        states=States(folder, on_notice=print),
        device=shared.device,
        precision=_precision(),
        pad=tokenizer.pad_token_id,
        report=note,
    ).train()
    return len(seconds) * BATCH * WIDTH / sum(seconds)


def with_trainer(backbone: str, corpus: Corpus, *, steps: int, folder: Path) -> float:
    tokenizer = load_tokenizer(backbone)
    rows = corpus.train.select_columns(["input_ids"])

    def trainer(count: int) -> Trainer:
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=count,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            bf16=_precision() == "bf16",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=shared.device.type == "cpu",
        )
        model = AutoModelForMaskedLM.from_pretrained(backbone, dtype=torch.float32)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=SHARE)
        return Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)

    shared.timed(trainer(WARM_UP))
    return steps * BATCH * WIDTH / shared.timed(trainer(steps)).seconds


def bare(backbone: str, corpus: Corpus, *, steps: int) -> float:
    tokenizer = load_tokenizer(backbone)
    model = AutoModelForMaskedLM.from_pretrained(backbone, dtype=torch.float32).train()
    rows = torch.tensor([row for row in corpus.train[: BATCH * (steps + WARM_UP)]["input_ids"] if len(row) == WIDTH])
    selected_count = round(SHARE * BATCH * WIDTH)

    def step(ids: torch.Tensor) -> torch.Tensor:
        chosen = torch.rand(ids.numel()).topk(selected_count).indices
        labels = ids.flatten()[chosen]
        hidden = model.bert(ids.flatten().index_fill(0, chosen, tokenizer.mask_token_id).view_as(ids))[0]
        logits = model.cls(hidden.flatten(0, 1)[chosen])
        return nn.functional.cross_entropy(logits.float(), labels)

    return _timed_steps(model, [rows[i : i + BATCH] for i in range(0, len(rows) - BATCH, BATCH)], step)


def plain_electra(backbone: str, corpus: Corpus, *, steps: int, settings: PretrainingSettings) -> float:
    tokenizer = load_tokenizer(backbone)
    learner = Electra(backbone, tokenizer=tokenizer, settings=settings)
    learner.generator.generator_predictions._forward_pre_hooks.clear()  # logits of all tokens
    texts = round(BATCH * WIDTH / corpus.train.select_columns("length").to_pandas()["length"].mean())  # as many tokens
    rows = corpus.train[: texts * (steps + WARM_UP)]["input_ids"]
    batches = [rows[i : i + texts] for i in range(0, len(rows), texts)]

    def step(batch: Sequence[list[int]]) -> torch.Tensor:
        padded = tokenizer.pad({"input_ids": list(batch)}, return_tensors="pt")
        ids, mask = padded["input_ids"], padded["attention_mask"]
        labels = torch.full_like(ids, -100)
        for number, row in enumerate(batch):
            places = torch.randperm(len(row) - 2)[: max(1, round(SHARE * (len(row) - 2)))] + 1
            labels[number, places] = ids[number, places]
        is_masked = labels != -100
        logits = learner.generator(ids.masked_fill(is_masked, tokenizer.mask_token_id), attention_mask=mask).logits
        generator = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
            guessed = torch.where(is_masked, (logits + noise).argmax(-1), ids)
        scores = learner.discriminator({"input_ids": guessed, "attention_mask": mask}).float()
        losses = nn.functional.binary_cross_entropy_with_logits(scores, (guessed != ids).float(), reduction="none")
        return generator + 50 * (losses * mask).sum() / mask.sum()

    return _timed_steps(learner.module, batches, step)


def _timed_steps(model: nn.Module, batches: Sequence[Any], step: Callable[[Any], torch.Tensor]) -> float:
    """Tokens a second of a plain loop over batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    model.train()
    began, tokens = 0.0, 0
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            began, tokens = shared.now(), 0
        with autocast(shared.device, _precision()):
            loss = step(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += batch.numel() if isinstance(batch, torch.Tensor) else sum(map(len, batch))
    return tokens / (shared.now() - began)


def _precision() -> str:
    return fastest(shared.device, model_type="bert", training={})


if __name__ == "__main__":
    main()
