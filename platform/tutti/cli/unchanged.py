"""What of a study file may change when its study is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tutti.cli import tracking_metadata
from tutti.config.folder import StudyFolder
from tutti.config.load import parse_study
from tutti.config.paths import map_task_paths
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StudyError

# Keys that may change when a study is resumed.
FREE: Mapping[str, set[str] | bool] = {
    "search": {"trials", "max_hours", "target_score", "patience", "max_trial_hours", "retries"},
    "resources": {"cpus_per_worker", "gpus_per_worker", "concurrent_trials", "isolation"},
    "storage": True,
    "tracking": True,
    "ensemble": True,
}


def check_unchanged(study: StudyConfig, folder: StudyFolder) -> None:
    """Checks that a study that has begun goes on with the settings that define its results.

    Raises:
        StudyError: with a fault for each other one, but for keys that are taken out and that no trial used.
    """
    from tutti.training.options import unused_faults

    begun = parse_study(folder.study_file)
    # An earlier version took keys that no trial uses. This one asks to take them out.
    unused = {fault.what for fault in unused_faults(begun.training, search_space=begun.search_space.root, file="")}
    rule = "stay as it was when the study is resumed"
    remedy = "put it back, with --set if it was given so, or give `study:` another name"
    faults = [
        Fault(f"{key} of the study {study.study!r}", rule, f"{new!r} where it was {old!r}", remedy)
        for key, (old, new) in changed_keys(begun, study).items()
        if new is not None or f": {key}" not in unused
    ]
    if faults:
        raise StudyError(*faults)


def changed_keys(old: StudyConfig, new: StudyConfig) -> dict[str, tuple[object, object]]:
    """Keys that define a study's results and differ, with both values.

    Only names of files are compared, so that files may move; ``prepare`` and ``keep_backbone`` compare hashes.
    """

    def defining(study: StudyConfig) -> dict[str, object]:
        document = study.model_dump(mode="json", exclude=FREE)
        for name, config in document["tasks"].items():
            task = map_task_paths(config, lambda _, path: Path(path).name)
            test = {"": task["test"]} if isinstance(task["test"], str) else task["test"]
            document["tasks"][name] = task | {"test": test or {}}
        document["search"]["warm_start"] = [Path(older).name for older in document["search"]["warm_start"]]
        if Path(document["backbone"]).is_absolute():
            document["backbone"] = Path(document["backbone"]).name
        return tracking_metadata.flat(document)

    before, after = defining(old), defining(new)
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
