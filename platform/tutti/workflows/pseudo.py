"""Labels unlabelled rows by the vote of the best checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.recipe import Recipe
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, electorate_of, pools_of, voting_studies
from tutti.workflows.vote import rule_of
from tutti.workflows.waiting import waiting

if TYPE_CHECKING:
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


def make_pseudo_labels(
    studies: Mapping[str, StudyBase], *, rows_of: str, recipe: Recipe, recipe_name: str, out: Path
) -> PseudoLabels:
    """Labels that the trials of ``studies`` give to the unlabelled rows of one of them.

    Args:
        studies: by name; the report bears the name of the first.
        rows_of: the name of the one whose rows are labelled and whose training rows get no label again.
        out: where they are written by default.
    """
    study = studies[rows_of]
    with waiting("Choosing the ensemble's members and the rows to label", quiet=study.console.quiet) as say:
        from tutti.outputs.election.estimates import Estimates
        from tutti.outputs.pseudo.labels import label

        labelling = label(
            study=next(iter(studies)),
            recipe_name=recipe_name,
            tasks=study.prepared.tasks,
            validation=study.prepared.validation_rows(),
            pools=pools_of(studies, rows_of),
            bank=electorate_of(studies, members=recipe.members),
            rule=rule_of(recipe),
            labelling=recipe.pseudo_labels,
            folded=study.config.split.folds is not None,
            estimates=Estimates(study.folder.estimates, say=say),
        )
    return PseudoLabels(labelling, out)
