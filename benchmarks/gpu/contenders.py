"""The contenders of ``measure.py`` over one backbone: trials, the plain Trainer and a bare loop, on random rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import torch
from bench import Bench, Sizes, Steps
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from tutti.config.folder import TrialFolder
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.modeling.model import model_type_of
from tutti.records import TextLimit
from tutti.tasks.task import Task
from tutti.training.loop.fine_tune import _Run
from tutti.training.loop.trainer import MultiTaskTrainer

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
TASK = Task(name="rows", names=("no", "yes"), pair=False, metric="accuracy", submission="csv")


class TrainingAlone(_Run):
    """A trial that only trains, without evaluation or saving."""

    def save_and_report(self, trainer: MultiTaskTrainer) -> None:
        pass


def make_rows(sizes: Sizes, vocabulary: int) -> EncodedPart:
    """Random rows, most of which are short: their mean length is about a quarter of the longest."""
    generator = np.random.default_rng(0)
    lengths = generator.gamma(2.0, sizes.longest / 8, sizes.rows).clip(8, sizes.longest).astype(np.int32)
    lengths[0] = sizes.longest
    tokens = [generator.integers(len(SPECIAL), vocabulary, length).tolist() for length in lengths]
    features = datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int32")), "length": datasets.Value("int32")}
    )
    return EncodedPart(
        ids=np.arange(sizes.rows).astype(str),
        encoded=datasets.Dataset.from_dict({"input_ids": tokens, "length": lengths}, features=features),
        lengths=lengths,
        labels=generator.integers(0, 2, sizes.rows),
        weights=np.ones(sizes.rows, dtype=np.float32),
        pad_token_id=0,
    )


def save_backbone(folder: Any, model: PreTrainedModel) -> str:
    """A folder with the model in bf16 and a tokenizer of few words: rows are made of numbers."""
    words = {word: index for index, word in enumerate((*SPECIAL, "word"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>"
    ).save_pretrained(folder)
    model.bfloat16().save_pretrained(folder)
    return str(folder)


class Contenders:
    """The contenders over one backbone, by name."""

    def __init__(self, bench: Bench, name: str, model: PreTrainedModel) -> None:
        self.bench, self.name, self.config = bench, name, model.config
        self.backbone = save_backbone(bench.folder / name, model)
        self.part = make_rows(bench.sizes, model.config.vocab_size)
        self.tokens = bench.sizes.tokens[name]
        lengths = self.part.lengths.astype(np.float64)
        self.mean, self.attended = float(lengths.mean()), float((lengths**2).sum() / lengths.sum())

    def trainer(self, **keys: Any) -> MultiTaskTrainer:
        """The trainer of a trial with these keys."""
        bench, sizes = self.bench, self.bench.sizes
        run = TrainingAlone(
            backbone=self.backbone,
            tasks=[TASK],
            parts={TASK.name: {"train": self.part}},
            folder=TrialFolder(bench.folder / "trial"),
            key="",
            number=0,
            tokenizer=load_tokenizer(self.backbone),
            model_type=model_type_of(self.backbone),
            limit=TextLimit(sizes.longest),
            on_epoch=lambda report: None,
            stage_count=1,
        )
        training = {
            "use_cpu": bench.device.type == "cpu",
            "bf16": True,
            "max_steps": sizes.warm + sizes.steps,
            "max_tokens_per_batch": self.tokens,
            "max_length": sizes.longest,
            "optim": "adamw_torch_fused",
        }
        return run.make_trainer(0, {**training, **keys}, torch.get_num_threads())

    def trial(self, **keys: Any) -> dict[str, float | str]:
        """A trial with these keys, and which attention it chose."""
        trainer = self.trainer(**keys)
        rows = self.bench.sizes.rows / len(trainer.get_train_dataloader())
        attention = trainer.model.encoder.config._attn_implementation
        return {**self._trained(trainer, rows), "attention": attention, "rows_per_step": rows}

    def plain(self, rows: int, *, adapter: bool = False, bits: bool = False) -> dict[str, float | str]:
        """transformers.Trainer with so many rows per step, and peft if asked."""
        options: dict[str, Any] = {"dtype": torch.float32}
        if bits:
            config = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16,
            )
            device = {"": self.bench.device}
            options = {"dtype": torch.bfloat16, "quantization_config": config, "device_map": device}
        model = AutoModelForSequenceClassification.from_pretrained(
            self.backbone, num_labels=2, pad_token_id=0, **options
        )
        if adapter:
            lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="SEQ_CLS")
            model = get_peft_model(model, lora)
        args = TrainingArguments(
            output_dir=str(self.bench.folder / "trainer"),
            max_steps=self.bench.sizes.warm + self.bench.sizes.steps,
            per_device_train_batch_size=rows,
            bf16=True,
            use_cpu=self.bench.device.type == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        args._n_gpu = min(args.n_gpu, 1)
        assert self.part.labels is not None
        table = [
            {"input_ids": ids, "labels": int(label)}
            for ids, label in zip(self.part.encoded["input_ids"], self.part.labels, strict=True)
        ]
        collator = DataCollatorWithPadding(load_tokenizer(self.backbone))
        return self._trained(Trainer(model=model, args=args, train_dataset=table, data_collator=collator), rows)

    def bare(self) -> dict[str, float | str]:
        """A plain loop over the packed trial's batches, with its model, attention and optimizer."""
        bench, trainer = self.bench, self.trainer(batching="packed")
        model, loader = trainer.model.train(), trainer.get_train_dataloader()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
        began = bench.now()
        for step, batch in enumerate(_without_end(loader)):
            if step == bench.sizes.warm:
                began = bench.now()
            if step == bench.sizes.warm + bench.sizes.steps:
                break
            tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
            if bench.device.type == "cuda":
                tensors = {name: own.pin_memory().to(bench.device, non_blocking=True) for name, own in tensors.items()}
            labels, weights = tensors.pop("labels"), tensors.pop("weights")
            with torch.autocast(bench.device.type, torch.bfloat16):
                outputs = model(TASK.name, **tensors)
            losses = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
            ((losses * weights).sum() / batch["weight_sum"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return self._speed((bench.now() - began) / bench.sizes.steps, bench.sizes.rows / len(loader))

    def operations_per_token(self) -> float:
        """Operations of a step per token: 6 for each weight of the layers' matrices and 12 for each entry of attention
        (arXiv 2204.02311, appendix B), of which a decoder computes half.
        """
        config, causal = self.config, self.name == "decoder"
        hidden, heads = config.hidden_size, config.num_attention_heads
        shared = getattr(config, "num_key_value_heads", heads) / heads
        products = 3 if causal else 2  # Qwen2's inner layer is gated
        matrices = (2 + 2 * shared) * hidden**2 + products * hidden * config.intermediate_size
        attention = 12 * hidden * self.attended * (0.5 if causal else 1)
        return float(config.num_hidden_layers * (6 * matrices + attention))

    def _trained(self, trainer: Trainer, rows: float) -> dict[str, float | str]:
        """Trains; ``rows`` are those of a step on average."""
        watch = Steps(self.bench)
        trainer.add_callback(watch)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return self._speed(watch.seconds / self.bench.sizes.steps, rows)

    def _speed(self, seconds: float, rows: float) -> dict[str, float | str]:
        return {
            "ms_per_step": seconds * 1000,
            "examples_per_second": rows / seconds,
            "tokens_per_second": rows * self.mean / seconds,
        }


def _without_end(loader: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader
