"""Pretrains a backbone on a study's texts or on text files, tells how far it is, and logs it to MLflow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tutti.cluster.shipped import SUBMITTED
from tutti.config.folder import StudyFolder, sqlite_url
from tutti.config.pretraining import PretrainingConfig, PretrainingRun, load_pretraining
from tutti.errors import BackboneError, masked
from tutti.files import new_folder_fault, resolved, storage_faults, write_whole
from tutti.records import TextLimit
from tutti.workflows.base import StudyBase
from tutti.workflows.console import console as default_console
from tutti.workflows.console import quiet_console
from tutti.workflows.stores import queued_tracker, quiet_mlflow

if TYPE_CHECKING:
    from rich.console import Console

    from tutti.data.encode import EncodedPart
    from tutti.tracking.mlflow_tracker import MlflowTracker
    from tutti.tracking.protocol import Tracker
    from tutti.training.pretraining.loop import Progress
    from tutti.training.pretraining.run import Pretrained, TextFiles

_RUN = "run.json"


def pretrain(
    file: Path | str | Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    option: Callable[[str], str] = "tutti.pretrain: {}".format,
    **options: Any,
) -> Pretrained:
    """Pretrains a backbone on text files. Called again, it goes on where it was cut off.

    Args:
        file: a pretraining file, or its content as a mapping.
        quiet: whether nothing is printed.
        option: names an option in messages, by its key.
        options: keys of a pretraining file, ``tutti.config.pretraining.PretrainingConfig``, which take the place of
            those in the file: ``texts``, ``backbone``, ``out``, ``objective``, ``epochs`` ...

    Raises:
        ConfigError: with every fault of the options.
        BackboneError: if ``out`` holds something else, or the backbone cannot be pretrained.
        StudyError: if a text file cannot be read, or an unfinished run has other settings.

    Example:
        >>> tutti.pretrain(texts=["news.txt.gz"], backbone="small", out="pretrained", objective="electra").loss
    """
    config = load_pretraining(PretrainingConfig, file, options, option=option)
    _check_new(config.out)
    from tutti.training.pretraining.run import TextFiles

    console = quiet_console() if quiet else default_console
    if config.search_space.root:
        console.print("search_space has no effect on a single run; `tutti tune` searches.")
    return _run(config, config.backbone, TextFiles.of(config), console)


def pretrain_backbone(
    study: StudyBase,
    out: Path | str | None,
    *,
    option: Callable[[str], str] = "study.pretrain: {}".format,
    **options: Any,
) -> Pretrained:
    """Goes on pretraining a study's backbone on the texts of its tasks. No label is used.

    Called again, it goes on where it was cut off.

    Args:
        out: where to write the new backbone, which ``backbone:`` of a study file takes.
        option: names an option in messages, by its key.
        options: as of ``tutti.pretrain``, except those that say what the texts are.

    Raises:
        ConfigError: with every fault of the options.
        BackboneError: if ``out`` holds something else, or the backbone cannot be pretrained.

    Example:
        >>> tutti.Study("chinese_trio.yaml").pretrain("adapted", epochs=20).loss
    """
    run, config = load_pretraining(PretrainingRun, None, {**options, "out": out}, option=option), study.config
    _check_new(run.out)
    from tutti.config.training import limit_of
    from tutti.data.encode import load_parts
    from tutti.orchestration.before.abilities import abilities_of, check_backbone
    from tutti.orchestration.before.rows import prepare_rows

    check_backbone(config, abilities_of(config.backbone), begun=False)
    # Workers read the encoded texts, on other nodes too, so these are beside what is written.
    with TemporaryDirectory(prefix=f".{run.out.name}.", dir=run.out.parent if run.workers > 1 else None) as folder:
        temporary = StudyFolder(Path(folder, config.study))
        prepared = prepare_rows(config, temporary)
        study.console.print("Encoding the texts")
        limit = TextLimit(limit_of(config.training).max_length)
        parts = load_parts(prepared, tokenizer=config.backbone, limit=limit, cache=temporary.encoded)
        texts = [part for by_name in parts.values() for part in by_name.values()]
        return _run(run, config.backbone, texts, study.console)


def _check_new(out: Path) -> None:
    """Checks that ``out`` is a new or an empty folder, and makes the one that it is in."""
    if fault := new_folder_fault(out):
        raise BackboneError(fault)
    with storage_faults(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)


def _run(run: PretrainingRun, backbone: str, texts: TextFiles | Sequence[EncodedPart], console: Console) -> Pretrained:
    from tutti.training.pretraining.run import TextFiles, encode_texts, pretrain

    told: dict[str, Callable[[Any], None]] = {"on_progress": partial(_tell, console), "on_notice": console.print}
    arguments: dict[str, Any] = {
        "backbone": backbone,
        "texts": texts,
        "out": run.out,
        "settings": run.settings,
        "objective": run.objective,
        "make_tracker": _tracker(run.out, run.tracking),
    }
    if run.workers == 1 and not os.environ.get(SUBMITTED):  # a job's own process has no share of the cluster
        return pretrain(**{**arguments, **told})
    from tutti.cluster.connect import connected
    from tutti.orchestration.worker.pretraining import pretrain_on_workers, resources_of

    if isinstance(texts, TextFiles):
        encode_texts(texts, backbone=backbone, out=run.out, settings=run.settings)
    resources = resources_of(run)
    with connected(resources, tell=console.print):
        return pretrain_on_workers(arguments, resources=resources, told=told)


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
    name = resolved(out).name
    folder = resolved(out).with_name(f"{name}.tracking")
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or sqlite_url(folder / "mlflow.db")

    def make(run: str) -> Tracker:
        write_whole(folder / _RUN, json.dumps({"run": run, "uri": uri if masked(uri) == uri else None}))
        places = {"artifacts": folder / "artifacts", "spool": folder / "tracking.jsonl"}
        return queued_tracker(uri, experiment=name, owner=run, **places)

    return make


def tracked_run(out: Path) -> MlflowTracker | None:
    """The run in MLflow of what pretrained, or pretrains, this backbone; None where it is not known.

    Raises:
        TrackingError: where the store cannot be reached.
    """
    name = resolved(out).name
    try:
        saved = json.loads((resolved(out).with_name(f"{name}.tracking") / _RUN).read_text(encoding="utf8"))
    except (OSError, ValueError):
        return None
    if not (uri := saved["uri"] or os.environ.get("MLFLOW_TRACKING_URI")):  # one with a password is not kept
        return None
    quiet_mlflow()
    from tutti.tracking.mlflow_tracker import MlflowTracker

    return MlflowTracker(uri, experiment=name, owner=saved["run"])
