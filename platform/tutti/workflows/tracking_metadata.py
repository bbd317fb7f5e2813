"""What the tracker records about a study: its parameters, columns, tags, description and validation split."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import version

import tutti
from tutti.config.folder import StudyFolder
from tutti.config.objective_weights import listed_if_unequal
from tutti.config.study import StudyConfig
from tutti.data.prepared import Prepared
from tutti.files import write_whole
from tutti.records import Scalar


def study_parameters(study: StudyConfig, prepared: Prepared) -> dict[str, Scalar]:
    """What defines the study's results, as flat parameters of the tracker's parent run.

    These are the study's keys, each task's layout and metric, the search space as one JSON text per varied key, and the
    SHA-256 of every data file.
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
    """The columns that the tracker's list of trials shows by default: objectives, score by task, varied parameters."""
    objectives = [name for name in study.search.objectives if name not in ("score", "seconds")]  # those always show
    metrics = [f"metrics.{name}" for name in (*objectives, *(f"score/{task}" for task in study.tasks))]
    return [*metrics, *(f"params.{key}" for key in study.search_space.root)]


def study_tags(prepared: Prepared) -> dict[str, str]:
    """Tags of the tracker's parent run: versions, machine, and the study's description."""
    tags = {f"tutti.version.{name}": version(name) for name in ("torch", "transformers", "ray", "optuna")}
    tags |= {
        "tutti.version.tutti": tutti.__version__,
        "tutti.version.python": platform.python_version(),
        "tutti.machine": platform.platform(),
    }
    return tags | run_tags() | {"mlflow.note.content": study_note(prepared)}


def run_tags() -> dict[str, str]:
    """Tags of every run: the host. The tracker itself adds the user."""
    return {"tutti.host": socket.gethostname()}


def study_note(prepared: Prepared) -> str:
    """A Markdown description of the study, for the tracker's parent run."""
    weights = listed_if_unequal({task.name: task.weight for task in prepared.tasks})
    mean = f"mean of the tasks' metrics, weighted {weights}," if weights else "mean of the tasks' metrics"
    lines = [
        f"The score is the {mean} on the validation rows, whose ids are in `study/split.json`.",
        "",
        "| task | metric | labels | rows |",
        "|---|---|---|---|",
    ]
    for task in prepared.tasks:
        rows = ", ".join(f"{part} {info.rows:,}" for part, info in prepared.parts[task.name].items())
        lines.append(f"| {task.name} | {task.metric} | {task.kind.describe(task.names)} | {rows} |")
    return "\n".join(lines)


def write_split(prepared: Prepared, folder: StudyFolder) -> None:
    """Writes ``split.json``, an artifact of the study: each task's validation ids, by fold if the study has folds.

    Raises:
        StorageError: if the file cannot be written.
    """
    split = {}
    for task in prepared.tasks:
        ids = prepared.ids(task.name, "validation")
        if folds := prepared.settings["split"].get("folds"):
            fold_of_row = prepared.folds(task.name)
            fold_of_id = fold_of_row[fold_of_row >= 0]
            split[task.name] = {f"fold-{fold}": ids[fold_of_id == fold].tolist() for fold in range(folds)}
        else:
            split[task.name] = {"validation": ids.tolist()}
    write_whole(folder.data / "split.json", json.dumps(split, ensure_ascii=False, indent=1) + "\n")


def flat(document: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flattens nested mappings to dotted keys. A list and an empty mapping count as values."""
    leaves: dict[str, object] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
