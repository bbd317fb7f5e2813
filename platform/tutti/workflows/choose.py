"""Chooses the two submissions of a study that are to count in the end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault, StudyError
from tutti.workflows.base import StudyBase, found_study
from tutti.workflows.electorate import election_of

if TYPE_CHECKING:
    from tutti.outputs.election.choice import Choice, Submission
    from tutti.outputs.election.members import Election


def choose_submissions(study: StudyBase, *, public_share: float = 0.3) -> Choice:
    """Chooses the pair of submissions with the best expected private score, and says why.

    Candidates are the ensembles in the study's folder and those whose public scores were added. Their recipes are run
    again, so that errors of two can be compared row by row.

    Args:
        public_share: of the test rows, that public scores are of.

    Raises:
        StudyError: if there are fewer than two with a local score.

    Example:
        >>> study.choose_submissions(public_share=0.2).pairs[0]
    """
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.election.choice import Submission, choose
    from tutti.outputs.submission.leaderboard import Leaderboard, key_of

    study = study.stored
    if not 0 < public_share < 1:
        rule, remedy = "be between 0 and 1", "give the share of the test rows that public scores are of"
        raise StudyError(Fault("--public-share", rule, str(public_share), remedy))
    entries = {
        str(Path(entry.submission).resolve()): entry for entry in Leaderboard(study.folder.leaderboard).entries()
    }
    folders = {str(path.parent.resolve()) for path in study.folder.ensembles.glob("*/card.json")} | entries.keys()
    found: list[Submission] = []
    election: Election | None = None
    rows: dict[str, int] = {}
    known: dict[str, Election] = {}
    names = Counter(Path(folder).name for folder in folders)
    for folder in sorted(folders):
        card = _card(Path(folder))
        if card is None or card["objective"] is None:
            study.console.print(f"{folder} has no local score that can be made again: left out")
            continue
        keys = json.dumps(card["recipe_keys"], sort_keys=True)
        if keys not in known:
            known[keys] = _elect(study, card["recipe_keys"])
        election = known[keys]
        judged = {name: each.together[1] for name, each in election.tasks.items()}
        means = Estimate.mean(
            [each.estimate for each in judged.values()], election.overlap, [*election.weights.values()]
        )
        entry = entries.get(folder)
        if entry is not None and entry.key != key_of(Path(folder)):
            study.console.print(f"{folder} was written anew since its public score was added, which is left out")
            entry = None
        name = Path(folder).name if names[Path(folder).name] == 1 else folder
        found.append(Submission(name, means, judged, None if entry is None else entry.public))
        rows = {
            "validation": sum(task["rows"].get("validation", 0) for task in card["tasks"]),
            "test": sum(n for task in card["tasks"] for part, n in task["rows"].items() if part.startswith("test")),
        }
    if len(found) < 2 or election is None:
        remedy = "write another with `tutti ensemble STUDY --recipe RECIPE`"
        raise StudyError(Fault(f"the study {study.name}", "have two submissions to choose", str(len(found)), remedy))
    public_rows = round(public_share * rows["test"])
    return choose(
        found,
        overlap=election.overlap,
        weights=[*election.weights.values()],
        validation_rows=rows["validation"],
        public_rows=public_rows,
        private_rows=rows["test"] - public_rows,
    )


def _card(folder: Path) -> dict[str, Any] | None:
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        return card if card.get("recipe_keys") and card["kind"] == "ensemble" else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _elect(study: StudyBase, keys: dict[str, Any]) -> Election:
    from tutti.config.recipe import Recipe

    recipe = Recipe.model_validate({name: value for name, value in keys.items() if name != "others"})
    studies = {study.name: study, **{Path(path).name: found_study(path, like=study) for path in keys["others"]}}
    return election_of(studies, recipe)[1]
