"""A study whose outcome does not depend on what is killed meanwhile, and whether it is whole in the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tutti.records import TrialState

MOMENTS = int(os.environ.get("CHAOS_MOMENTS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", "20"))
TRIALS, EPOCHS = 8, (60 if MOMENTS > 3 else 20)
CHANGES: dict[str, Any] = {
    "training": {"num_train_epochs": EPOCHS, "per_device_train_batch_size": 16, "max_length": 16, "ema_decay": 0.9},
    "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-2}},
    "search": {
        "trials": TRIALS,
        "scheduler": "none",
        "retries": 1000,
        "enqueue": [{"learning_rate": 1e-4 * 1.7**number} for number in range(TRIALS)],
    },
    "resources": {"workers": 1, "cpus_per_worker": 1, "concurrent_trials": 2},
}
"""What makes of the tiny study one whose outcome does not depend on which trials had ended when."""


def calm_ends(make_study, tutti, place: Path) -> dict[str, Any]:
    """How the study ends when nobody touches it."""
    calm = make_study(place, **CHANGES)
    tutti("tune", calm.file)
    untouched = ends(calm)
    assert len(untouched) == TRIALS
    return untouched


def trained(study) -> int:
    """Epochs that the study's trials have told of."""
    return sum(len(record.scores_by_epoch) for record in study.records())


def how_far(study) -> str:
    records = study.records()
    if not records:
        return "not begun"
    ended = sum(record.state is TrialState.FINISHED for record in records)
    running = [f"{r.key} epoch {len(r.scores_by_epoch)}" for r in records if r.state is TrialState.RUNNING]
    return f"{ended} done; {', '.join(running) or 'none running'}"


def ends(study) -> dict[str, Any]:
    """Trial to what it scored at its best and the hash of each file of its checkpoint."""
    ended = {}
    for record in study.records():
        best = json.loads((study.folder.trial(record.key).best / "tutti.json").read_text(encoding="utf8"))
        ended[record.key] = (record.state, record.parameters, record.score, record.task_scores, best["files"])
    return ended


def check_whole(study, untouched: dict[str, Any], *, epochs: int = EPOCHS) -> None:
    """Each trial once, ended, with the weights and scores of the study that nobody touched."""
    assert ends(study) == untouched
    runs = study.runs()
    assert set(runs) == {"", *untouched}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for record in study.records():
        assert record.state is TrialState.FINISHED
        reported = study.reported_epochs(record.key)
        assert reported == sorted(set(reported)), f"{record.key} trained an epoch again that it had a state of"
        assert study.tracked_epochs(record.key) == [*record.scores_by_epoch] == reported == [*range(1, epochs + 1)]
        assert not study.folder.trial(record.key).resume.exists()
