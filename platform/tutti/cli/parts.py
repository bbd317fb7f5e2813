"""The only place that picks concrete parts: which store, which tracker, which bank."""

from __future__ import annotations

import json
import os
import platform as machine
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import tutti
from tutti.config.conditions import fixed_values
from tutti.config.folder import StudyFolder, find_study, studies_folder
from tutti.config.load import load_study, parse_study
from tutti.config.study import StudyConfig
from tutti.data.prepare import Prepared, load_prepared
from tutti.errors import Fault, StudyError
from tutti.files import write_whole
from tutti.records import Finding, Scalar, TrialRecord

if TYPE_CHECKING:
    from tutti.search.study_store import StudyStore
    from tutti.search.warm_start import OlderStudy
    from tutti.tracking.protocol import Tracker

console = Console(highlight=False, markup=False, emoji=False)  # a path may hold what rich takes for its marks
if not console.is_terminal:
    console.width = 120  # a log has no width of its own; tables of 80 columns would break their words


def read_study_file(file: Path, *, overrides: Sequence[str], shared: bool = False) -> tuple[StudyConfig, StudyFolder]:
    """The validated study and the folder it lives in, with ``storage.path`` absolute.

    Args:
        shared: whether other machines have to see the folder, so that it may not be this one's by default.

    Raises:
        ConfigError: with every fault of the file.
        StudyError: where the folder has to be shared and none is named.
    """
    from tutti.training import check_training

    study = load_study(
        file,
        overrides=overrides,
        check_training=lambda training, space, name: check_training(training, search_space=space, file=name),
    )
    if shared and study.storage.path is None and not os.environ.get("TUTTI_STUDIES"):
        rule, remedy = "name the folder of studies on a cluster", "set `storage.path` to a folder that every node sees"
        raise StudyError(Fault(f"{file}: storage.path", rule, "nothing", remedy))
    path = (study.storage.path or studies_folder()).absolute()
    study = study.model_copy(update={"storage": study.storage.model_copy(update={"path": path})})
    return study, StudyFolder(path / study.study)


def program() -> str:
    """The command ``tutti`` as it can be typed here: where it is not on the PATH, as it was called."""
    if shutil.which("tutti"):
        return "tutti"
    called = Path(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m tutti" if called.name == "__main__.py" else shlex.quote(str(called))


def open_folder(name: str) -> tuple[StudyConfig, StudyFolder, Prepared]:
    """A study that ``tutti tune`` made, by name or folder."""
    folder = find_study(name)
    study = parse_study(folder.study_file)
    return study, folder, load_prepared(folder.data)


def load_store(study: StudyConfig, folder: StudyFolder, *, mend: bool = False) -> StudyStore:
    """The study's trials, to read, or to ``mend``."""
    from tutti.search.study_store import StudyStore

    return StudyStore.load(folder.optuna_url, name=study.study, mend=mend)


def open_store(study: StudyConfig, folder: StudyFolder) -> StudyStore:
    """The study's trials, to run more of them."""
    from tutti.search.study_store import StudyStore

    search = study.search
    return StudyStore.open(
        folder.optuna_url,
        name=study.study,
        space=study.search_space,
        sampler=search.sampler,
        seed=search.seed,
        fixed=fixed_values(study.training),
        enqueued=search.enqueue,
        older=_older_studies(study),
    )


def count_trials(study: StudyConfig, folder: StudyFolder) -> int:
    """How many trials a study has, those that were cut off too."""
    store = load_store(study, folder)
    try:
        return len(store.records())
    finally:
        store.close()


def fitting_trials(study: StudyConfig) -> dict[str, int]:
    """Of each older study that this one starts warm from, how many finished trials its search space could draw.

    Raises:
        StudyError: where one of them has none.
        StorageError: where a database cannot be read.
    """
    if not study.search.warm_start:
        return {}
    from tutti.search.warm_start import fitting_trials

    fixed = fixed_values(study.training)
    return {older.name: len(fitting_trials(older, study.search_space, fixed=fixed)) for older in _older_studies(study)}


def _older_studies(study: StudyConfig) -> list[OlderStudy]:
    from tutti.search.warm_start import OlderStudy

    found = []
    for place in map(Path, study.search.warm_start):
        older = parse_study(StudyFolder(place).study_file)
        found.append(OlderStudy(older.study, StudyFolder(place).optuna_url, fixed_values(older.training)))
    return found


def with_tracking_uri(study: StudyConfig) -> StudyConfig:
    """The study with MLflow's own ``$MLFLOW_TRACKING_URI`` written in where its file names no store."""
    uri = study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    return study.model_copy(update={"tracking": study.tracking.model_copy(update={"uri": uri})})


def tracking_uri(study: StudyConfig, folder: StudyFolder) -> str:
    """The study's MLflow store."""
    return study.tracking.uri or folder.mlflow_uri


def is_tracked(study: StudyConfig, folder: StudyFolder) -> bool:
    """Whether there is a store to look into; one of the study's own comes with its first run."""
    return bool(study.tracking.uri) or (folder.path / "mlflow.db").is_file()


def run_findings(
    study: StudyConfig, folder: StudyFolder, trials: Sequence[TrialRecord], *, complete: bool
) -> list[Finding]:
    """What is wrong with the study's runs in MLflow; nothing where it has no store of its own yet."""
    if not is_tracked(study, folder):
        return []
    quiet_mlflow()
    from tutti.tracking.mending import run_findings

    uri = tracking_uri(study, folder)
    return run_findings(uri, experiment=study.study, folder=folder.path, trials=trials, complete=complete)


def quiet_mlflow() -> None:
    """Nothing is sent to anybody. Read when mlflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def open_tracker(study: StudyConfig, folder: StudyFolder) -> Tracker:
    """MLflow behind a durable queue, so that no trial waits for it or dies of it."""
    quiet_mlflow()
    from tutti.tracking.mlflow_tracker import MlflowTracker
    from tutti.tracking.queued import QueuedTracker

    uri = tracking_uri(study, folder)
    artifacts = None if study.tracking.uri else folder.mlflow_artifacts.as_uri()
    tracker = QueuedTracker(
        lambda: MlflowTracker(uri, experiment=study.study, artifact_location=artifacts),
        spool=folder.path / "tracking.jsonl",
    )
    tracker.start()
    return tracker


def study_parameters(study: StudyConfig, prepared: Prepared) -> dict[str, Scalar]:
    """What defines the study, flat, for the tracker's parent run: its keys, and the SHA-256 of every file of rows.

    Of each task the layout and the metric; of the search space one text for each key that it varies.
    """
    document = study.model_dump(mode="json", exclude={"tasks", "search_space", "storage", "tracking", "ensemble"})
    parameters = {key: _scalar(value) for key, value in flat(document).items()}
    for key, distribution in study.search_space.root.items():
        unconditional = None if distribution.when else {"when"}
        parameters[f"search_space.{key}"] = json.dumps(distribution.model_dump(mode="json", exclude=unconditional))
    for name, task in study.tasks.items():
        parameters |= {f"tasks.{name}.{key}": getattr(task, key) for key in ("layout", "metric")}
    for name, files in prepared.origins.items():
        parameters |= {f"data.{name}.{part}": known["sha256"] for part, known in files.items()}
    return parameters


def study_columns(study: StudyConfig) -> list[str]:
    """What the tracker's list of trials shows at first: each task's score, then what the search space varies."""
    return [*(f"metrics.score/{task}" for task in study.tasks), *(f"params.{key}" for key in study.search_space.root)]


def study_note(prepared: Prepared) -> str:
    """What the study is, in Markdown, for the page of the tracker's parent run."""
    lines = [
        "The score is the mean of the tasks' metrics on the validation rows, whose ids are in `study/split.json`.",
        "",
        "| task | metric | classes | rows |",
        "|---|---|---|---|",
    ]
    for task in prepared.tasks:
        rows = ", ".join(f"{part} {info.rows:,}" for part, info in prepared.parts[task.name].items())
        classes = "none: a number" if task.regression else len(task.class_names)
        lines.append(f"| {task.name} | {task.metric} | {classes} | {rows} |")
    return "\n".join(lines)


def write_split(prepared: Prepared, folder: StudyFolder) -> None:
    """The ids of every task's validation rows, or of each fold's, as a file that the tracker keeps with the study.

    Raises:
        StorageError: where the file system refuses.
    """
    split = {}
    for task in prepared.tasks:
        ids = prepared.ids(task.name, "validation")
        if folds := prepared.settings["split"].get("folds"):
            of_row = prepared.folds(task.name)
            own = of_row[of_row >= 0]
            split[task.name] = {f"fold-{fold}": ids[own == fold].tolist() for fold in range(folds)}
        else:
            split[task.name] = {"validation": ids.tolist()}
    write_whole(folder.data / "split.json", json.dumps(split, ensure_ascii=False, indent=1) + "\n")


def flat(document: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Dotted keys to values; a list or an empty mapping is a value."""
    leaves: dict[str, object] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def study_tags(prepared: Prepared) -> dict[str, str]:
    """Environment and description, for the tracker's parent run."""
    tags = {f"tutti.version.{name}": version(name) for name in ("torch", "transformers", "ray", "optuna")}
    tags |= {
        "tutti.version.tutti": tutti.__version__,
        "tutti.version.python": machine.python_version(),
        "tutti.machine": machine.platform(),
    }
    return tags | run_tags() | {"mlflow.note.content": study_note(prepared)}


def run_tags() -> dict[str, str]:
    """Where it runs; who runs it, the tracker says itself."""
    return {"tutti.host": socket.gethostname()}
