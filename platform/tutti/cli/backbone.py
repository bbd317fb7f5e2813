"""``tutti backbone``: makes a small backbone with random weights, or continues pretraining one on a study's texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from tutti.cli.options import Overrides, interruptible, local
from tutti.modeling.new_backbone import SMALLEST_VOCABULARY, Architecture, Size, new_backbone
from tutti.modeling.new_tokenizer import TokenizerKind
from tutti.workflows.console import console
from tutti.workflows.study import Study


def new(
    texts: Annotated[list[Path], typer.Option("--texts", metavar="FILE...", help="Text files; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.", callback=local)],
    size: Annotated[Size, typer.Option("--size")] = "tiny",
    architecture: Annotated[
        Architecture, typer.Option("--architecture", help="A BERT encoder, or a Llama decoder.")
    ] = "encoder",
    tokenizer: Annotated[
        TokenizerKind | None,
        typer.Option(
            "--tokenizer",
            help="unigram finds words in Chinese text, where wordpiece, the default, takes single characters. "
            "Decoders have bytes.",
        ),
    ] = None,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", min=SMALLEST_VOCABULARY, help="Most entries of the tokenizer.")
    ] = 6_000,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further text files.")] = None,
) -> None:
    """Makes a tokenizer from texts and a backbone with random weights, which `backbone: DIR` of a study file takes.

    Sizes, with a vocabulary of 6,000: tiny (2 layers of 128, 1.2 million weights), mini (4 of 256, 4.8 million), small
    (6 of 384, 13 million).

    Example: `tutti backbone new --texts data/OCNLI_train.csv data/TNEWS_train.csv --size mini --out backbone`
    """
    made = new_backbone(
        texts=[*texts, *(more or [])],
        size=size,
        out=out,
        architecture=architecture,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
    )
    console.print(
        f"wrote {made.path}: {made.size}, {made.weights / 1e6:.1f} million weights, {made.vocabulary:,} tokens"
    )


def pretrain(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="Its backbone and the texts of its tasks.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the new backbone.", callback=local)],
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 10,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="1e-3 suits random weights, 2e-3 those of size tiny.")
    ] = 1e-4,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows a step.")] = 64,
    objective: Annotated[
        Literal["masked", "causal"] | None,
        typer.Option("--objective", help="Guess masked tokens, or the next ones. By default what the backbone can."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Goes on pretraining a backbone on the texts of a study: an encoder learns to guess masked tokens, a decoder the
    next ones. No label is used.

    All texts are read, those to predict and those without labels too. What is written, `backbone: DIR` of a study file
    takes. The same command goes on where it was cut off.

    Example: `tutti backbone pretrain chinese_trio.yaml --out adapted --epochs 20`
    """
    from tutti.cluster.connect import TORCH_ENVIRONMENT

    for name, value in TORCH_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with interruptible(lambda _: "Interrupted; the same command continues after the last whole epoch."):
        opened = Study(study, overrides=overrides or ())
        made = opened.pretrain(
            out, epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, objective=objective
        )
    console.print(f"wrote {made.path}: {made.rows:,} different texts, held-out loss {made.loss:.3f}")
    console.print(f"Next: `backbone: {made.path}` in the study file")
