"""Writes a bundle: its members, the vote, and the code that predicts with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tutti.bundle.carried import carry
from tutti.bundle.predict import FORMAT, MANIFEST
from tutti.data.encode import load_tokenizer
from tutti.data.encoding_key import encoding_key
from tutti.ensembling.fitted import Fitted
from tutti.ensembling.task_vote import TaskVote
from tutti.files import sha256_of, write_whole
from tutti.modeling.checkpoint import METADATA, load_checkpoint, save_checkpoint
from tutti.modeling.int8 import save_int8
from tutti.modeling.merge import merged_model
from tutti.tasks.layouts.table import Table
from tutti.tasks.layouts.tagged import Tagged
from tutti.tasks.task import Task

Member = tuple[str, Path]
"""A name for its folder, and the checkpoint."""


def portable(task: Task) -> Task:
    """The task without what only training and submissions need."""
    return replace(task, own_metric=None, report=(), metric="", submission="")


def write_bundle(
    folder: Path,
    *,
    vote: TaskVote,
    members: Sequence[Member],
    layout: Table | Tagged,
    cleaning: Mapping[str, Any],
    training: Mapping[str, Any],
) -> None:
    """Writes members, ``bundle.json`` and the code into an empty folder.

    Args:
        vote: what combines the outputs of the members, of a kind whose outputs are no texts.
        layout: of files with rows to predict.
        cleaning: the steps of ``tutti.data.clean``.
        training: keys that rule out a precision.

    Raises:
        StorageError, BackboneError: if a member does not load, or the file system refuses.
    """
    task = portable(vote.task)
    encodings: list[str] = []
    listed = []
    for name, checkpoint in members:
        tokenizer = load_tokenizer(str(checkpoint))
        place = f"members/{name}"
        model, metadata = merged_model(checkpoint, task)
        key = encoding_key(tokenizer, task.limit(metadata.limit))
        (folder / place).parent.mkdir(exist_ok=True)
        save_checkpoint(
            folder / place,
            model=model,
            tokenizer=tokenizer,
            tasks=[task],
            key=metadata.key,
            number=metadata.number,
            epoch=metadata.epoch,
            score=metadata.score,
            task_scores={task.name: metadata.task_scores[task.name]},
            limit=metadata.limit,
        )
        encodings += [key] * (key not in encodings)
        listed.append({"folder": place, "encoding": encodings.index(key)})
    ensemble, table = vote.ensemble, None
    if (emoji := cleaning.get("emoji")) not in (None, "zh", "en"):  # a table of the user's own
        table = "emoji.json"
        shutil.copyfile(emoji, folder / table)
    content = {
        "format": FORMAT,
        "task": task.to_dict(folder),
        "layout": {"layout": "tokens" if isinstance(layout, Tagged) else "table", **asdict(layout)},
        "cleaning": dict(cleaning),
        "emoji_table": table,
        "members": listed,
        "groups": {place: list(own) for place, own in vote.groups.items()},
        "vote": ensemble.to_json() if isinstance(ensemble, Fitted) else None,
        "decision": None if vote.decision is None else vote.decision.tolist(),
        "calibrated": vote.calibrated,
        "training": dict(training),
        "quantize": "none",
    }
    write_whole(folder / MANIFEST, json.dumps(content, ensure_ascii=False, indent=1))
    carry(folder, emoji=emoji is not None and table is None)


def store_int8(folder: Path) -> None:
    """Replaces the weights of a bundle's linear layers by ones of 8 bits, in its files too.

    Raises:
        StorageError: if a member does not load, or the file system refuses.
    """
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for member in content["members"]:
        place = folder / member["folder"]
        model, _ = load_checkpoint(place)
        save_int8(model.encoder, place)
        metadata = json.loads((place / METADATA).read_text(encoding="utf-8"))
        metadata["files"] = {file.name: sha256_of(file) for file in sorted(place.iterdir()) if file.name != METADATA}
        write_whole(place / METADATA, json.dumps(metadata, ensure_ascii=False, indent=1))
    write_whole(folder / MANIFEST, json.dumps({**content, "quantize": "int8"}, ensure_ascii=False, indent=1))
