"""Makes pseudo-labels, trains on them, and keeps the result only if it beats a control."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tutti import mirror
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, parse_study
from tutti.config.recipe import Recipe
from tutti.config.study import ExtraTrain
from tutti.errors import Fault, StudyError, TrialError, counted
from tutti.files import write_whole
from tutti.records import TrialRecord, TrialState
from tutti.workflows import pseudo, stores, tune
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, electorate_of, poll_of, voting_studies
from tutti.workflows.shown import show_card, show_comparison, show_pseudo_labels
from tutti.workflows.vote import ensemble, formats_of, test_ids

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tutti.bank.electorate import Electorate
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.pseudo.rounds import Round, RoundFolder

_MOST_POINTS = 4


@dataclass(frozen=True)
class _Base:
    """The study that the rounds start from, and the recipe of the current round."""

    study: StudyBase
    records: list[TrialRecord]
    recipe: Recipe

    def folder_of(self, study: str) -> StudyFolder:
        """The folder of this study or of a study that a round trains."""
        folder = self.study.folder
        if study == self.study.name:
            return folder
        mirror.pull(folder.path.parent / study)
        return StudyFolder(folder.path.parent / study)

    def voting(self, others: Sequence[str]) -> dict[str, StudyBase]:
        """By name: the study, ``others`` of its rounds, and the studies that the recipe names."""
        paths = [str(self.folder_of(study).path) for study in others]
        return voting_studies(self.study, members=self.recipe.members, others=paths)

    def voters(self, *others: str, only: Collection[str]) -> Electorate:
        """The checkpoints of these studies that may vote; ``only`` limits the last one to some of its trials."""
        return electorate_of(self.voting(others), members=self.recipe.members, only={others[-1]: only})


def run_rounds(
    study: StudyBase, recipe: str | None = None, *, trials: int | None = None, until_no_gain: bool = False
) -> list[Round]:
    """Labels unlabelled rows, trains the study's best points on them too, and keeps that only if it gains.

    A control study trains the same points for as many steps without the pseudo-labels. The round is kept where the
    ensemble with its trials beats the one with the control's by more than one standard error, and is not below the one
    before, on rows that had no part in choosing members. Interrupted, it goes on where it was when it is called again.

    Args:
        recipe: the name of a shipped recipe or the path of a file; by default the study's own.
        trials: of each of the round's two studies; by default 4 at most.
        until_no_gain: whether to go on as long as rounds gain.

    Returns:
        The rounds that were run, each with whether it is ``kept``.

    Raises:
        StudyError: if the study cannot have a round with the recipe, or there are no labels.
        TrialError: if no trial of the round finished.

    Example:
        >>> study.round("self_training", trials=2)[-1].kept
    """
    from tutti.orchestration.upkeep.lock import study_lock
    from tutti.outputs.pseudo.rounds import RoundFolder, ended_rounds, next_round

    study = study.stored
    folder = study.folder
    run: list[Round] = []
    name, chosen = chosen_recipe(study, recipe)
    with study_lock(folder):
        base = _Base(study, _checked_records(study, chosen, name), chosen)
        finished = sum(record.state is TrialState.FINISHED for record in base.records)
        while True:
            ended = ended_rounds(folder.rounds)
            current = next_round(ended, study=study.name, trials=finished, recipe=name, recipe_sha256=chosen.sha256)
            place = RoundFolder(folder.rounds / str(current.number))
            if place.is_planned:
                current = place.check_plan(current, trials=trials, studies=folder.path.parent)
                study.console.print(f"Continuing round {current.number}")
            elif not _plan(base, current, place, trials=trials):
                shutil.rmtree(place.path, ignore_errors=True)
                # A command that was killed between two rounds and started again ends as it would have without the kill.
                if until_no_gain and ended and ended[-1].recipe_sha256 == current.recipe_sha256:
                    study.console.print(f"Round {current.number} has no pseudo-labels: rounds end here.")
                    return run
                got, remedy = "none, for the reasons above", "do what they say"
                raise StudyError(Fault(f"round {current.number}", "have pseudo-labels", got, remedy))
            run.append(replace(current, kept=_run(base, current, place)))
            if not run[-1].kept or not until_no_gain:
                return run


def _checked_records(study: StudyBase, recipe: Recipe, recipe_name: str) -> list[TrialRecord]:
    """The study's trials, after checking that it can have rounds with the recipe."""
    from tutti.orchestration.after.rounds import check_rounds

    config, prepared = study.config, study.prepared
    with closing(stores.load_store(config, study.folder)) as store:
        records, seconds = store.records(), store.run_seconds()
    formats_of(config, prepared, recipe).check(test_ids(config, prepared), prepared.tasks)
    check_rounds(config, study.folder, prepared, records, seconds=seconds, recipe=recipe, recipe_name=recipe_name)
    return records


def _plan(base: _Base, current: Round, place: RoundFolder, *, trials: int | None) -> bool:
    """Writes the round's pseudo-labels, its two study files and its plan; returns whether there are any labels."""
    from tutti.orchestration.after.rounds import best_points, studies_with_labels

    points = best_points(base.records, count=trials or _MOST_POINTS)
    if len(points) < (trials or 0):
        rule = f"be at most the {counted(len(points), 'point')} of finished trials, to train each once"
        raise StudyError(Fault("--trials", rule, str(trials), "give a smaller number"))
    shutil.rmtree(place.labels, ignore_errors=True)  # of a run that was killed before it wrote the plan
    console = base.study.console
    console.rule(f"Round {current.number}: pseudo-labels of {' and '.join(current.teachers)}")
    studies, latest = base.voting(current.teachers[1:]), current.teachers[-1]
    given: dict[str, Any] = {"rows_of": latest, "recipe": base.recipe, "out": place.labels}
    given["recipe_name"] = current.recipe
    folded = bool(base.study.config.split.folds)
    if folded:  # a fold's student learns what models say that never saw its rows
        found = pseudo.make_pseudo_labels_by_fold(studies, **given)
    else:
        found = [pseudo.make_pseudo_labels(studies, **given)]
    files: dict[str, list[ExtraTrain]] = {}
    counts: Counter[str] = Counter()
    for fold, each in enumerate(found):
        report = each.write()
        show_pseudo_labels(console, report, each.folder)
        for task in report.tasks:
            if task.file is not None:
                labels, of_fold = "soft" if task.soft else "hard", fold if folded else None
                extra = {"path": each.folder / task.file, "labels": labels, "fold": of_fold}
                files.setdefault(task.task, []).append(ExtraTrain.model_validate(extra))
                counts[task.task] += task.written
    if not files:
        return False
    both = studies_with_labels(
        base.study.config,
        base.study.folder,
        name=current.study,
        latest=studies[latest].config,
        prepared=studies[latest].prepared,
        labels=files,
        counts={task: -(-count // len(found)) for task, count in counts.items()},
        points=points,
    )
    for config in both:
        write_whole(place.study_file(config.study), dump_study(config))
    place.write_plan(current, trials=both[0].search.trials)
    return True


def _run(base: _Base, current: Round, place: RoundFolder) -> bool:
    """Trains the round's two studies and compares the ensembles with each; returns whether the round is kept."""
    from tutti.outputs.pseudo.rounds import compare, write_round

    study, console = base.study, base.study.console
    finished, others = _train(base, current, place), current.teachers[1:]
    comparison = compare(
        poll_of(base.voting(others), base.recipe),
        control=base.voters(*others, current.control, only=finished),
        with_round=base.voters(*others, current.study, only=finished),
        needed={task: list(config.test_sets()) for task, config in study.config.tasks.items()},
    )
    console.rule(f"Round {current.number}: scores on validation rows that chose no member")
    show_comparison(console, comparison)
    gain = comparison.objective["gain"]
    if comparison.kept:
        doubt = " The interval contains 0: this may be chance." if gain.low <= 0 else ""
        console.print(f"Round {current.number} is kept: it gains {gain.score:+.4f} over its control.{doubt}")
        together = [str(base.folder_of(name).path) for name in (*others, current.study)]
        recipe_file = place.path / f"{current.recipe}.yaml"  # a copy, since the original may change; JSON is YAML too
        write_whole(recipe_file, base.recipe.model_dump_json(indent=2, exclude_unset=True) + "\n")
        vote = ensemble(study, str(recipe_file), others=together)
        files = vote.write(place.ensemble)
        show_card(console, vote.card)
        for file in files:
            console.print(f"wrote {file}")
    else:
        stays = f"The ensemble stays that of {' and '.join(current.teachers)}."
        console.print(f"Round {current.number} is not kept: {_why_not(gain)}. {stays}")
    console.print(f"wrote {write_round(place.path, current, comparison)}")
    return comparison.kept


def _why_not(gain: Estimate) -> str:
    """Why a round with this gain over its control is not kept."""
    if gain.score <= 0:
        return f"it gains nothing over its control ({gain.score:+.4f})"
    gains = f"it gains {gain.score:+.4f} over its control"
    if gain.score <= gain.error:
        return f"{gains}, not more than one standard error, {gain.error:.4f}"
    return f"{gains}, but scores below the ensemble without either"


def _train(base: _Base, current: Round, place: RoundFolder) -> set[str]:
    """Trains the round's study and its control; returns the keys of the trials that finished in both."""
    console, again = base.study.console, base.study.again or (lambda **_: "study.round()")
    finished: list[set[str]] = []
    for name, control in ((current.study, False), (current.control, True)):
        what = "the control: as many steps without pseudo-labels" if control else "training on pseudo-labels too"
        console.rule(f"Round {current.number}: {what}")
        config, folder = parse_study(place.study_file(name)), base.folder_of(name)
        tuned = tune.run(
            StudyBase(stores.with_stores(config, folder), folder, console=console, again=again), resume=True
        )
        finished.append({record.key for record in tuned.trials if record.state is TrialState.FINISHED})
        if not set.intersection(*finished):  # checked before the control is trained in vain
            remedy = f"mend what `tutti trials` says, and {place.anew(current, folder.path.parent)}"
            rule = "have a finished trial" + " of a point that the round finished too" * control
            raise TrialError(Fault(f"the study {name}", rule, "none", remedy))
    both = set.intersection(*finished)
    if alone := set.union(*finished) - both:
        console.print(
            f"Left out of the comparison, since only one of the two studies finished them: {', '.join(sorted(alone))}"
        )
    return both
