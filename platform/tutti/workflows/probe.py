"""Tries the backbones that a pretraining run keeps on a study, while the run goes on."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.pretraining import is_pretraining_file, output_of
from tutti.errors import Fault, StudyError, TrackingError
from tutti.files import resolved, write_whole
from tutti.workflows.base import StudyBase
from tutti.workflows.listing import show_table
from tutti.workflows.pretraining import tracked_run

if TYPE_CHECKING:
    from rich.console import Console

_MEMORY, _TABLE, _PICTURE = "scores.json", "scores.csv", "scores.png"


@dataclass(frozen=True)
class Score:
    """What one fine-tuning of one kept backbone gave.

    Attributes:
        step: of the pretraining run.
        score: the study's, of the best epoch.
        weights: the SHA-256 of each of the backbone's files, by name.
    """

    step: int
    seed: int
    score: float
    task_scores: Mapping[str, float]
    weights: Mapping[str, str]


@dataclass(frozen=True)
class Probed:
    """The result of probing.

    Attributes:
        folder: holds ``scores.csv`` and ``scores.png``.
        scores: by step, then by seed, those of earlier calls too.
    """

    folder: Path
    scores: tuple[Score, ...]

    @property
    def steps(self) -> dict[int, float]:
        """The mean score over seeds, by step."""
        return {step: mean(each.score for each in group) for step, group in by_step(self.scores).items()}


def run_of(run: Path | str) -> Path:
    """What a pretraining run writes, or will write: of its file, or the folder itself, or that of kept backbones."""
    path = Path(run)
    out = output_of(path) if is_pretraining_file(path) else path
    return resolved(out if out.suffix != ".kept" else out.with_suffix(""))


def newest_kept(run: Path | str) -> Path:
    """The backbone that a run has kept last.

    Raises:
        StudyError: if none is kept.
    """
    from tutti.training.pretraining.kept import kept_backbones, kept_folder

    out = run_of(run)
    if not (kept := kept_backbones(out)):
        got, remedy = f"none in {kept_folder(out)}", "pretrain with --keep-every N, or name another run"
        raise StudyError(Fault(f"the run {out}", "have kept a backbone", got, remedy))
    return [*kept.values()][-1]


def probe_run(study: StudyBase, run: Path | str, *, seeds: int = 1) -> Probed:
    """Fine-tunes every backbone that a pretraining run has kept so far on the study's tasks, and draws their scores.

    The settings are those of ``training:``, the same for all; the search space is left out. What an earlier call has
    probed is not probed again, and a fine-tuning that was cut off goes on: call it as often as the run has kept more.

    Args:
        run: the folder that the run writes, or its pretraining file; it ran with ``keep_every``.
        seeds: fine-tunings of each backbone, from the seed in ``training:`` on.

    Raises:
        StudyError: if no backbone is kept, another process probes, or earlier scores are of other settings.
        ConfigError, TaskFileError, BackboneError, TrialError, StorageError: as of ``tune``.

    Example:
        >>> tutti.Study("study.yaml").probe("pretrained").steps
        {0: 0.412, 2000: 0.538, 4000: 0.561}
    """
    from tutti.modeling.adapters import backbone_files
    from tutti.orchestration.upkeep.lock import study_lock
    from tutti.orchestration.worker.probe import definition, fixed_study, probe
    from tutti.training.pretraining.kept import kept_backbones

    newest_kept(run)  # raises if there is none
    out, config = run_of(run), fixed_study(study.config)
    folder = StudyFolder(out.with_name(f"{out.name}.probes") / config.study)
    settings = definition(config)
    first = int(config.training.get("seed", 0))
    with study_lock(folder):
        known = _remembered(folder.path / _MEMORY, settings)
        tried: set[int] = set()
        while left := {step: kept for step, kept in kept_backbones(out).items() if step not in tried}:
            step, backbone = next(iter(left.items()))
            tried.add(step)
            weights = backbone_files(str(backbone))
            name = sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()[:12]  # a cut-off one is of these
            known = [each for each in known if each.step != step or each.weights == weights]
            for seed in range(first, first + seeds):
                if any((each.step, each.seed) == (step, seed) for each in known):
                    continue
                made = probe(config, folder, backbone=backbone, seed=seed, key=f"step-{step}-seed-{seed}-{name}")
                known.append(Score(step, seed, made.score, dict(made.task_scores), weights))
                study.console.print(f"step {step:,}, seed {seed}: {made.score:.4f}")
                known.sort(key=lambda each: (each.step, each.seed))
                _write(folder.path, known, settings)
                _track(out, config.study, known, first, study.console)
        _write(folder.path, known, settings)
    _show(study.console, known)
    study.console.print(f"wrote {folder.path / _TABLE} and {folder.path / _PICTURE}")
    return Probed(folder.path, tuple(known))


def _track(out: Path, study: str, scores: Sequence[Score], first: int, console: Console) -> None:
    """Logs scores by step to the run of the pretraining in MLflow, those that it has not yet.

    Args:
        first: the seed whose metrics have no seed in their names.
    """
    try:
        if (tracker := tracked_run(out)) is None:
            return
        for each in scores:
            of_seed = "" if each.seed == first else f"/seed-{each.seed}"
            named = {"score": each.score, **each.task_scores}
            metrics = {f"probe/{study}{of_seed}/{name}": value for name, value in named.items()}
            tracker.log_metrics("", metrics, step=each.step, at=time.time())
    except TrackingError as error:
        console.print(f"Not stored in MLflow: {error}", markup=False)


def by_step(scores: Sequence[Score]) -> dict[int, list[Score]]:
    return {step: [each for each in scores if each.step == step] for step in sorted({each.step for each in scores})}


def _remembered(file: Path, settings: Mapping[str, Any]) -> list[Score]:
    """The scores of earlier calls; none where the file is damaged, which only costs time.

    Raises:
        StudyError: if they are of other settings.
    """
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        saved = json.loads(file.read_text(encoding="utf8"))
        scores = [Score(**each) for each in saved["scores"]]
        if saved["study"] == settings:
            return scores
        differing = sorted(key for key in settings if settings[key] != saved["study"].get(key))
        rule, got = "be of the study as it is now", f"scores with other {', '.join(differing)}"
        remedy = f"give `study:` another name, or remove {file.parent}"
        raise StudyError(Fault(str(file), rule, got, remedy))
    return []


def _write(folder: Path, scores: Sequence[Score], settings: Mapping[str, Any]) -> None:
    """Writes the curve as CSV and as a picture, then what a later call remembers."""
    from tutti.outputs.pictures import curves_png, drawn

    tasks = sorted({name for each in scores for name in each.task_scores})
    sink = io.StringIO()
    table = csv.writer(sink, lineterminator="\n")
    table.writerow(["step", "seed", "score", *tasks])
    table.writerows([each.step, each.seed, each.score, *map(each.task_scores.get, tasks)] for each in scores)
    write_whole(folder / _TABLE, sink.getvalue())
    curves = {"score": [(each.step, each.score) for each in scores]}
    curves |= {task: [(each.step, each.task_scores[task]) for each in scores] for task in tasks if len(tasks) > 1}
    for name, png in drawn({_PICTURE: lambda: curves_png(curves, xlabel="steps of pretraining")}).items():
        write_whole(folder / name, png)
    write_whole(folder / _MEMORY, json.dumps({"study": settings, "scores": [*map(asdict, scores)]}, indent=1))


def _show(console: Console, scores: Sequence[Score]) -> None:
    tasks = sorted({name for each in scores for name in each.task_scores})
    rows = []
    for step, group in by_step(scores).items():
        means = [mean(each.task_scores[task] for each in group) for task in tasks]
        whole = [each.score for each in group]
        rows.append([f"{step:,}", *(f"{each:.4f}" for each in (*means, mean(whole), min(whole), max(whole)))])
    show_table(console, ["step", *tasks, "score", "lowest", "highest"], rows)
