"""Pretrains a backbone on a study's texts or on text files, tells how far it is, and logs it to MLflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder, sqlite_url
from tutti.config.paths import DATABASES
from tutti.errors import Fault, StudyError
from tutti.files import resolved
from tutti.records import TextLimit
from tutti.workflows.base import StudyBase
from tutti.workflows.console import console as default_console
from tutti.workflows.stores import quiet_mlflow

if TYPE_CHECKING:
    from rich.console import Console

    from tutti.tracking.protocol import Tracker
    from tutti.training.pretraining.loop import Progress
    from tutti.training.pretraining.run import Pretrained, TextFiles
    from tutti.training.pretraining.settings import ObjectiveName, Settings


def check_sources(files: Sequence[Path], *, texts: Sequence[Path] | None, backbone: str | None) -> None:
    """Checks that there is a study file, or texts with a backbone, and not both.

    Raises:
        StudyError: if not.
    """
    if texts and (studies := [file for file in (*texts, *files) if file.suffix in (".yaml", ".yml")]):
        remedy = "name the study alone, or texts and a backbone alone"
        raise StudyError(Fault("--texts and --backbone", "come without a study file", str(studies[0]), remedy))
    if not (texts and backbone) and (texts or backbone or not files):
        got = "--texts alone" if texts else "--backbone alone" if backbone else "neither"
        rule = "have a study file, or --texts and --backbone"
        raise StudyError(Fault("`backbone pretrain`", rule, got, "name what is missing"))


def pretrain_backbone(
    study: StudyBase,
    out: Path | str,
    *,
    objective: ObjectiveName | None = None,
    tracking: str | None = None,
    settings: Settings | None = None,
    **keys: Any,
) -> Pretrained:
    """Goes on pretraining a study's backbone on the texts of its tasks. No label is used.

    Called again, it goes on where it was cut off.

    Args:
        out: where to write the new backbone, which ``backbone:`` of a study file takes.
        objective: guess ``masked`` tokens, tell replaced ones (``electra``), or guess the next ones (``causal``); by
            default what the backbone can.
        tracking: MLflow's URI, by default ``$MLFLOW_TRACKING_URI``, else a file beside ``out``.
        settings: how it is trained; ``keys``, such as ``epochs=20``, are fields of it given one by one.

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
    from tutti.training.pretraining.run import pretrain
    from tutti.training.pretraining.settings import Settings, check_settings

    config, settings = study.config, settings or Settings(**keys)
    check_settings(settings, out=Path(out))
    check_backbone(config, abilities_of(config.backbone), begun=False)
    with TemporaryDirectory() as folder:
        temporary = StudyFolder(Path(folder, config.study))
        prepared = prepare_rows(config, temporary)
        study.console.print("Encoding the texts")
        limit = TextLimit(limit_of(config.training).max_length)
        parts = load_parts(prepared, tokenizer=config.backbone, limit=limit, cache=temporary.encoded)
        return pretrain(
            backbone=config.backbone,
            texts=[part for by_name in parts.values() for part in by_name.values()],
            out=Path(out),
            settings=settings,
            objective=objective,
            on_progress=partial(_tell, study.console),
            on_notice=study.console.print,
            make_tracker=_tracker(Path(out), tracking),
        )


def pretrain_texts(
    texts: TextFiles,
    backbone: str,
    out: Path | str,
    *,
    settings: Settings,
    objective: ObjectiveName | None = None,
    tracking: str | None = None,
) -> Pretrained:
    """Pretrains a backbone on text files; otherwise as ``pretrain_backbone``."""
    from tutti.training.pretraining.run import pretrain
    from tutti.training.pretraining.settings import check_settings

    check_settings(settings, out=Path(out))
    return pretrain(
        backbone=backbone,
        texts=texts,
        out=Path(out),
        settings=settings,
        objective=objective,
        on_progress=partial(_tell, default_console),
        on_notice=default_console.print,
        make_tracker=_tracker(Path(out), tracking),
    )


def _tell(console: Console, progress: Progress) -> None:
    measures = progress.measures
    if progress.held_out:
        console.print(f"epoch {progress.epoch:.4g}, held-out loss {measures['held_out_loss']:.3f}")
    else:
        minutes = progress.seconds_left / 60
        console.print(
            f"step {progress.step:,} of {progress.steps:,}, loss {measures['loss']:.3f}, "
            f"{measures['tokens_per_second']:,.0f} tokens/s, {minutes:.0f} min left"
        )


def _tracker(out: Path, uri: str | None) -> Callable[[str], Tracker]:
    """Opens MLflow behind a durable queue; its experiment has the name of the folder to be written."""
    quiet_mlflow()
    name = resolved(out).name
    folder = resolved(out).with_name(f"{name}.tracking")
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or sqlite_url(folder / "mlflow.db")

    def make(run: str) -> Tracker:
        from tutti.tracking.mlflow_tracker import MlflowTracker
        from tutti.tracking.queued import QueuedTracker

        artifacts = (folder / "artifacts").as_uri() if uri.startswith(DATABASES) else None
        tracker = QueuedTracker(
            lambda: MlflowTracker(uri, experiment=name, owner=run, artifact_location=artifacts),
            spool=folder / "tracking.jsonl",
        )
        tracker.start()
        return tracker

    return make
