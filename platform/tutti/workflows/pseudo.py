"""Labels unlabelled rows by the vote of the best checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import fold_name
from tutti.config.recipe import Recipe
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, poll_of, pools_of, voting_studies
from tutti.workflows.waiting import waiting

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

    from tutti.outputs.pseudo.labels import PseudoLabelling
    from tutti.outputs.pseudo.report import PseudoLabelReport


class PseudoLabels:
    """Labels of unlabelled rows. Nothing is written until ``write``.

    Attributes:
        report: how many rows of each class were labelled, how often labels are expected to be right, and why not.
        folder: where ``write`` puts them by default.
    """

    def __init__(self, labelling: PseudoLabelling, folder: Path) -> None:
        self._labelling, self.folder = labelling, folder
        self.report: PseudoLabelReport = labelling.report

    def _repr_markdown_(self) -> str:  # in notebooks
        return self.report.to_markdown()

    def labels(self, task: str) -> DataFrame:
        """The rows of a task that were chosen: id, text, text_b (pairs), label and, of classes, confidence."""
        return self._labelling.rows(task)

    def write(self, folder: Path | str | None = None) -> PseudoLabelReport:
        """Writes one file per task in its own training layout, which the next study's ``extra_train`` takes.

        Args:
            folder: a new or empty one, or that of earlier labels; by default ``pseudo-labels/RECIPE`` in the study.

        Returns:
            The report with the files; it has none where no row was chosen or the labels drift.

        Raises:
            StudyError: if the folder holds other files.
            StorageError: if it cannot be written.
        """
        self.folder = self.folder if folder is None else Path(folder)
        self.report = self._labelling.write(self.folder)
        return self.report


def pseudo_labels(study: StudyBase, recipe: str | None = None, *, others: Sequence[str] = ()) -> PseudoLabels:
    """Labels the unlabelled rows that the recipe chooses. Arguments and errors are those of ``ensemble``.

    Example:
        >>> study.pseudo_labels("self_training").write()
    """
    study = study.stored
    name, chosen = chosen_recipe(study, recipe)
    studies = voting_studies(study, members=chosen.members, others=others)
    return make_pseudo_labels(
        studies, rows_of=study.name, recipe=chosen, recipe_name=name, out=study.folder.pseudo_labels / name
    )


def pseudo_labels_by_fold(
    study: StudyBase, recipe: str | None = None, *, others: Sequence[str] = ()
) -> list[PseudoLabels]:
    """Labels for a student that has the study's folds: of each fold, by the models that never saw that fold's rows.

    What a fold's rows say cannot reach the student that is judged by them: the fold's own models alone label, and who
    votes, with what weight, is chosen on the other folds' rows. Arguments and errors are those of ``ensemble``.

    Returns:
        By fold, labels for ``extra_train: [{path: ..., fold: 0}, ...]`` of the student.

    Raises:
        StudyError: if the study has no folds, or its bank no predictions by fold.

    Example:
        >>> for labels in study.pseudo_labels_by_fold("self_training"):
        ...     labels.write()
    """
    study = study.stored
    name, chosen = chosen_recipe(study, recipe)
    studies = voting_studies(study, members=chosen.members, others=others)
    out = study.folder.pseudo_labels / f"{name}-by-fold"
    return make_pseudo_labels_by_fold(studies, rows_of=study.name, recipe=chosen, recipe_name=name, out=out)


def make_pseudo_labels_by_fold(
    studies: Mapping[str, StudyBase], *, rows_of: str, recipe: Recipe, recipe_name: str, out: Path
) -> list[PseudoLabels]:
    """As ``make_pseudo_labels``, by fold: each into the folder ``fold-N`` of ``out``."""
    from tutti.outputs.pseudo.folds import folds_of

    folds = folds_of({name: study.prepared for name, study in studies.items()})
    given: dict[str, Any] = {"rows_of": rows_of, "recipe": recipe, "recipe_name": recipe_name}
    return [
        make_pseudo_labels(studies, **given, out=out / fold_name(fold), without=(folds, fold))
        for fold in range(1 + max(int(own.max()) for own in folds.values()))
    ]


def make_pseudo_labels(
    studies: Mapping[str, StudyBase],
    *,
    rows_of: str,
    recipe: Recipe,
    recipe_name: str,
    out: Path,
    without: tuple[Mapping[str, np.ndarray], int] | None = None,
) -> PseudoLabels:
    """Labels that the trials of ``studies`` give to the unlabelled rows of one of them.

    Args:
        studies: by name; the report bears the name of the first.
        rows_of: the name of the one whose rows are labelled and whose training rows get no label again.
        out: where they are written by default.
        without: by task each validation row's fold, and the fold whose models label, as if it had no rows.
    """
    study = studies[rows_of]
    with waiting("Choosing the ensemble's members and the rows to label", quiet=study.console.quiet) as say:
        from tutti.outputs.pseudo.folds import OfFold, without_fold
        from tutti.outputs.pseudo.labels import label

        poll = poll_of(studies, recipe, name=recipe_name, say=say)
        if without is not None:
            folds, fold = without
            bank, validation = OfFold(poll.bank, poll.tasks, folds, fold=fold), without_fold(poll.validation, *without)
            poll = replace(poll, bank=bank, validation=validation, folded=False)
        labelling = label(poll, pools=pools_of(studies, rows_of), labelling=recipe.pseudo_labels)
    return PseudoLabels(labelling, out)
