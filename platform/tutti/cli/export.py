"""``tutti export`` and ``tutti push``: models that leave the study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from tutti.cli.options import Checkpoint, RecipeName, Refit, Study, Task, With, local
from tutti.workflows import push as _push
from tutti.workflows.export import Format
from tutti.workflows.study import open_study


def export(
    study: Study,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="What is written: a new or an empty folder.", callback=local)
    ],
    recipe: RecipeName = None,
    others: With = None,
    task: Task = None,
    checkpoint: Checkpoint = None,
    refit: Refit = False,
    members: Annotated[int | None, typer.Option("--members", min=1, help="Most trials that vote.")] = None,
    quantize: Annotated[
        str | None, typer.Option("--quantize", metavar="int8", help="Linear layers of 8 bits, on CPUs.")
    ] = None,
    max_hours: Annotated[
        float | None, typer.Option("--max-hours", min=0, help="That --rows may take on this machine.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=1, help="How many rows --max-hours is for.")] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="bundle; of the best member transformers or onnx.")
    ] = "bundle",
    register: Annotated[
        str | None, typer.Option("--register", metavar="NAME", help="Register it in the study's MLflow.")
    ] = None,
    alias: Annotated[str | None, typer.Option("--alias", help="Of the registered version, such as champion.")] = None,
) -> None:
    """Writes an ensemble as a folder that predicts by itself, offline and without Tutti, and is an MLflow model too.

    `python predict.py` in it needs torch, transformers, tokenizers, safetensors and numpy. Its predictions are those of
    `tutti predict`. How long 1,000 rows take is measured and said.

    Example: `tutti export glue_trio --task CoLA --recipe auto --members 3 --out bundle`
    """
    open_study(study).export(
        out,
        task=task,
        recipe=recipe,
        others=others or (),
        checkpoint=checkpoint,
        refit=refit,
        members=members,
        quantize=quantize,
        max_hours=max_hours,
        rows=rows,
        form=cast("Format", form),
        register=register,
        alias=alias,
    )


def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `tutti export` wrote.")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="NAME or OWNER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="A new repository is public.")] = False,
) -> None:
    """Uploads an exported folder to a repository of the Hugging Face hub, private if it is new.

    Example: `tutti push bundle me/mood`
    """
    _push.push(folder, repo, private=not public)
