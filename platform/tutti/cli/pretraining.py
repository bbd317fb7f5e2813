"""Pretrains a backbone on a study's texts or on text files, tells how far it is, and logs it to MLflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tutti.cli.console import console
from tutti.cli.stores import quiet_mlflow, read_study_file
from tutti.cluster.ending import EXIT_CODE
from tutti.config.folder import StudyFolder, sqlite_url
from tutti.config.paths import DATABASES
from tutti.config.training import limit_of
from tutti.data.encode import load_parts
from tutti.errors import Fault, StudyError
from tutti.files import resolved
from tutti.records import TextLimit
from tutti.training.pretraining.loop import Progress
from tutti.training.pretraining.run import TextFiles, pretrain
from tutti.training.pretraining.settings import ObjectiveName, Settings, check_settings

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.tracking.protocol import Tracker


def pretrain_backbone(
    *,
    out: Path,
    settings: Settings,
    objective: ObjectiveName | None,
    tracking: str | None,
    study: Path | None = None,
    overrides: Sequence[str] = (),
    backbone: str | None = None,
    texts: TextFiles | None = None,
) -> None:
    """Runs the command, either of a study or of a backbone and texts.

    Raises:
        UserError: if what is needed is not given; and as ``pretrain`` does.
    """
    check_settings(settings, out=out)
    if texts and (studies := [file for file in texts.files if file.suffix in (".yaml", ".yml")]):
        remedy = "name the study alone, or texts and a backbone alone"
        raise StudyError(Fault("--texts and --backbone", "come without a study file", str(studies[0]), remedy))
    with ExitStack() as stack:
        rows: TextFiles | Sequence[EncodedPart]
        if texts is None or backbone is None or not texts.files:
            if study is None:
                rule, got = "have a study file, or --texts and --backbone", "neither"
                if texts is not None:
                    got = "--texts alone" if backbone is None else "--backbone alone"
                raise StudyError(Fault("`backbone pretrain`", rule, got, "name what is missing"))
            temporary = Path(stack.enter_context(TemporaryDirectory()))
            backbone, rows = _study_rows(study, overrides, temporary)
        else:
            rows = texts
        try:
            made = pretrain(
                backbone=backbone,
                texts=rows,
                out=out,
                settings=settings,
                objective=objective,
                on_progress=_tell,
                on_notice=console.print,
                make_tracker=_tracker(out, tracking),
            )
        except KeyboardInterrupt:
            console.print("Interrupted; the same command continues after the last saved state.")
            sys.exit(EXIT_CODE)
    console.print(f"wrote {made.path}: {made.documents:,} different texts, held-out loss {made.loss:.3f}")
    console.print(f"Next: `backbone: {made.path}` in the study file")


def _study_rows(study: Path, overrides: Sequence[str], folder: Path) -> tuple[str, list[EncodedPart]]:
    from tutti.orchestration.before.abilities import abilities_of, check_backbone
    from tutti.orchestration.before.rows import prepare_rows

    config, _ = read_study_file(study, overrides=overrides)
    check_backbone(config, abilities_of(config.backbone), begun=False)
    temporary = StudyFolder(folder / config.study)
    prepared = prepare_rows(config, temporary)
    console.print("Encoding the texts")
    limit = TextLimit(limit_of(config.training).max_length)
    parts = load_parts(prepared, tokenizer=config.backbone, limit=limit, cache=temporary.encoded)
    return config.backbone, [part for by_name in parts.values() for part in by_name.values()]


def _tell(progress: Progress) -> None:
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
