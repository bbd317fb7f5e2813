"""``tutti backbone new``: make a small encoder from texts, where no pretrained one can be had."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tutti.cli.parts import console

app = typer.Typer(help="Make backbones.", no_args_is_help=True)


class Size(StrEnum):
    """Sizes of a new backbone."""

    TINY = "tiny"
    MINI = "mini"
    SMALL = "small"


@app.callback()
def _group() -> None:
    """Make backbones."""


@app.command("new")
def new(
    texts: Annotated[list[Path], typer.Option("--texts", metavar="FILE...", help="Text files; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.")],
    size: Annotated[Size, typer.Option("--size")] = Size.TINY,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further text files.")] = None,
) -> None:
    """Makes a tokenizer from texts and an encoder with random weights, which `backbone: DIR` of a study file takes.

    Sizes, with a vocabulary of 6,000: tiny (2 layers of 128, 1.2 million weights), mini (4 of 256, 4.8 million), small
    (6 of 384, 13 million).

    Example: `tutti backbone new --texts data/OCNLI_train.csv data/TNEWS_train.csv --size mini --out backbone`
    """
    from tutti.modeling.new_backbone import new_backbone

    made = new_backbone(texts=[*texts, *(more or [])], size=size.value, out=out)
    console.print(
        f"wrote {made.path}: {made.size}, {made.weights / 1e6:.1f} million weights, {made.vocabulary:,} tokens",
        soft_wrap=True,
    )
