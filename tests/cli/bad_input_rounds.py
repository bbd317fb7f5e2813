"""Bad input to ``tutti round``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bad_input_changes import Case, Change, both, forget_pool, write

ROUND = "round studies/moods"
ENDED = {"number": 1, "recipe": "r", "recipe_sha256": "0", "study": 5, "teachers": ["moods"], "kept": True}


def _study(change: Callable[[dict[str, Any]], object]) -> Change:
    def changed(folder: Path) -> None:
        path = folder / "studies/moods/study.json"
        document = json.loads(path.read_text(encoding="utf8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf8")

    return changed


def _enough_rows(folder: Path) -> None:
    """Makes the finished study seem to have enough validation rows for a round."""
    path = folder / "studies/moods/data/prepared.json"
    document = json.loads(path.read_text(encoding="utf8"))
    document["parts"]["mood"]["validation"] = document["parts"]["mood"]["train"]
    path.write_text(json.dumps(document), encoding="utf8")


ROUNDS: dict[str, Sequence[Case]] = {
    "Rounds": (
        Case("a round of a study without unlabelled rows", forget_pool, ROUND),
        Case("a round of a study that lacks trials", _study(lambda study: study["search"].update(trials=5)), ROUND),
        Case("a round of a study with few validation rows", command=ROUND),
        Case(
            "the result of a round was changed by hand",
            both(
                lambda folder: (folder / "studies/moods/rounds/1").mkdir(parents=True),
                write("studies/moods/rounds/1/round.json", json.dumps(ENDED)),
                _enough_rows,
            ),
            ROUND,
            code=1,
        ),
        Case("a round of fewer trials than one", command=f"{ROUND} --trials 0"),
    )
}
