"""Continues pretraining a backbone on a study's texts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from tutti.config.folder import StudyFolder
from tutti.records import TextLimit
from tutti.workflows.base import StudyBase

if TYPE_CHECKING:
    from tutti.training.loop.pretrain import Pretrained


def pretrain_backbone(
    study: StudyBase,
    out: Path | str,
    *,
    epochs: int = 10,
    learning_rate: float = 1e-4,
    batch_size: int = 64,
    objective: Literal["masked", "causal"] | None = None,
) -> Pretrained:
    """Goes on pretraining a study's backbone on the texts of its tasks: an encoder learns to guess masked tokens, a
    decoder the next ones.

    No label is used; all texts are, those to predict and those without labels too. Called again, it goes on where it
    was cut off.

    Args:
        out: where to write the new backbone, which ``backbone:`` of a study file takes.
        learning_rate: 1e-3 suits random weights, 2e-3 those of size tiny.
        batch_size: rows a step.
        objective: guess masked tokens, or the next ones; by default what the backbone can.

    Raises:
        StudyError: if ``out`` holds something else.
        BackboneError: if the backbone cannot be pretrained.

    Example:
        >>> tutti.Study("chinese_trio.yaml").pretrain("adapted", epochs=20).loss
    """
    from tutti.config.training import limit_of
    from tutti.data.encode import load_parts
    from tutti.orchestration.before.abilities import abilities_of, check_backbone
    from tutti.orchestration.before.rows import prepare_rows
    from tutti.training.loop.pretrain import check_pretraining, pretrain

    config, console = study.config, study.console
    check_pretraining(out=Path(out), learning_rate=learning_rate)
    check_backbone(config, abilities_of(config.backbone), begun=False)
    with TemporaryDirectory() as folder:
        temporary = StudyFolder(Path(folder, config.study))
        prepared = prepare_rows(config, temporary)
        console.print("Encoding the texts")
        limit = TextLimit(limit_of(config.training).max_length)
        parts = load_parts(prepared, tokenizer=config.backbone, limit=limit, cache=temporary.encoded)
        return pretrain(
            backbone=config.backbone,
            parts=[part for by_name in parts.values() for part in by_name.values()],
            out=Path(out),
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            seed=config.search.seed,
            objective=objective,
            on_epoch=lambda epoch, loss: console.print(f"epoch {epoch} of {epochs}, held-out loss {loss:.3f}"),
        )
