"""Lets the best checkpoints of one or several studies vote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas import DataFrame

from tutti.config.study import StudyConfig
from tutti.errors import Fault, StudyError, SubmissionError, nearest
from tutti.files import sha256_of
from tutti.tasks.build import ids_by, submission_of, task_spec
from tutti.tasks.layouts.candidates import from_json
from tutti.tasks.layouts.tagged import Tagged
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, poll_of, voting_studies
from tutti.workflows.grading import answers
from tutti.workflows.waiting import waiting

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.data.prepared import Prepared
    from tutti.ensembling.nested import Estimate
    from tutti.outputs.election.card import Card
    from tutti.outputs.election.ensemble import Tagging, Voted
    from tutti.outputs.election.members import Member
    from tutti.outputs.submission.submission import Formats, TestIds
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.kinds.protocol import Kind
    from tutti.workflows.export import Exported
    from tutti.workflows.predict import FramePredictor


class Vote:
    """An ensemble of a study's best checkpoints. Nothing is written until ``write``.

    Attributes:
        card: who voted, with what weight, and every score; what ``card.md`` shows.

    Example:
        >>> vote = study.ensemble("auto")
        >>> vote.score.score, vote.gain.score
        >>> vote.submission("TASK").to_csv("submission.csv", index=False)
    """

    def __init__(self, studies: Mapping[str, StudyBase], name: str, recipe: Recipe, voted: Voted) -> None:
        self._studies, self._name, self._recipe, self._voted = studies, name, recipe, voted
        self._study = next(iter(studies.values()))
        self._predictors: dict[str, FramePredictor] = {}
        self.card: Card = voted.card

    def __repr__(self) -> str:
        from tutti.outputs.formatting import estimate_text, signed

        best, vote = estimate_text(self.card.single), estimate_text(self.score)
        scores = f"best trial {best}, vote {vote}, gain {signed(self.gain)}"
        return f"<Vote of study {self.card.study}, recipe {self.card.recipe}: {scores}>"

    def _repr_markdown_(self) -> str:  # in notebooks
        return self.card.to_markdown()

    @property
    def score(self) -> Estimate | None:
        """The ensemble's score on rows that had no part in choosing it, with its 95 % interval; the mean over tasks.

        None if there are too few validation rows.
        """
        return self.card.objective

    @property
    def gain(self) -> Estimate | None:
        """How much higher that is than the best single trial's; None as for ``score``."""
        return self.card.gain

    @property
    def members(self) -> dict[str, tuple[Member, ...]]:
        """By task: its voters with their weights, best first."""
        return {task.task: task.members for task in self.card.tasks}

    def submission(self, task: str, part: str = "test") -> DataFrame:
        """The submission of one test file: id and label, or id and what the file has for each label, in its order; with
        a sample its columns, in the sample's order.

        Args:
            part: ``test-NAME`` for one of several test sets.

        Raises:
            StudyError: if the task has no such test file.
        """
        items = self._voted.items.get(task, {})
        if part not in items:
            have = [f"{name}/{each}" for name, parts in self._voted.items.items() for each in parts]
            remedy = nearest(task, self._voted.items, otherwise="name one of them")
            rule = f"be one of a test file: {', '.join(have) or 'the study has none'}"
            raise StudyError(Fault("the submission", rule, f"{task}/{part}", remedy))
        return DataFrame(items[part])

    def write(self, folder: Path | str | None = None) -> list[Path]:
        """Writes submission files, a zip of them, the card and its pictures; returns the files.

        Args:
            folder: a new or empty one, or that of an earlier ensemble, which is replaced as a whole; by default
                ``ensembles/RECIPE`` in the study.

        Raises:
            StudyError: if it holds other files.
            StorageError: if it cannot be written.
        """
        target = self._study.folder.ensembles / self._name if folder is None else Path(folder)
        self.card = self._voted.write(target)
        return [target / name for name in (*self.card.files, "card.json", "card.md")]

    def predict(self, rows: DataFrame, task: str | None = None) -> DataFrame:
        """Predicts new rows with the members' weights, in this process.

        Args:
            rows: with the columns that the task names, else those of its file or text, and text_b for pairs; ids and
                labels are optional.
            task: which task, where the study has several.

        Returns:
            With the index of ``rows``: id, label, confidence and each class's probability ``p_NAME``; of a task of
            numbers id and the numbers: as ``tutti predict`` writes them.

        Raises:
            StudyError: if a member's weights are missing, or the task is not the study's.
            TaskFileError: if a column is missing.

        Example:
            >>> vote.predict(pandas.DataFrame({"text": ["a fine day"]}), "mood")
        """
        from tutti.workflows.predict import FramePredictor, chosen_members, task_named

        own = task_named(self._study, task)
        if own.name not in self._predictors:
            members = chosen_members(self._studies, own, self._name, self._recipe)
            self._predictors[own.name] = FramePredictor(self._study, own, members)
        return self._predictors[own.name](rows)

    def predict_proba(self, rows: DataFrame, task: str | None = None) -> np.ndarray:
        """``(rows, classes)`` float32 probabilities in the order of the task's classes; as ``predict`` otherwise.

        Raises:
            StudyError: as ``predict`` does, and if the task's predictions are numbers.
        """
        from tutti.workflows.predict import task_named

        chosen = task_named(self._study, task)
        if not chosen.kind.probabilistic or chosen.kind.sequential:
            rule, got = "have probabilities", chosen.kind.describe(chosen.names)
            raise StudyError(Fault(f"the task {chosen.name}", rule, got, "call predict"))
        table = self.predict(rows, chosen.name)
        return table[[f"p_{name}" for name in chosen.names]].to_numpy(dtype=np.float32)

    def export(self, out: Path | str, task: str | None = None, **options: Any) -> Exported:
        """Writes the vote as a folder that predicts by itself; see ``Study.export`` for options and errors.

        Example:
            >>> vote.export("bundle", members=3)
        """
        from tutti.workflows.export import export

        others = [str(study.folder.path) for study in self._studies.values() if study is not self._study]
        return export(self._study, out, task=task, recipe=(self._name, self._recipe), others=others, **options)


def ensemble(
    study: StudyBase,
    recipe: str | None = None,
    *,
    others: Sequence[str] = (),
    score: Sequence[str] | Mapping[str, str | Path] = (),
) -> Vote:
    """Lets the best checkpoints vote. Needs no GPU and no weights, and writes nothing.

    Args:
        recipe: the name of a shipped recipe or the path of a file; by default the study's own.
        others: names or folders of studies whose trials may vote too.
        score: files of the test rows' labels to grade the vote on, by task or as ``TASK=FILE``; ``TASK/SET`` for one
            of several test sets.

    Raises:
        StudyError: if the study is unfinished, or the bank lacks what is needed.
        ConfigError: with every fault of the recipe.
        SubmissionError: if a test file has changed, or labels do not fit.

    Example:
        >>> study.ensemble("auto").write()
    """
    with waiting("Choosing the ensemble's members and scoring it", quiet=study.console.quiet) as say:
        from tutti.outputs.election.ensemble import vote

        study = study.stored
        config, prepared = study.config, study.prepared
        name, chosen = chosen_recipe(study, recipe)
        if changed := tuple(_changed_test_files(config, prepared)):
            raise SubmissionError(*changed)
        studies = voting_studies(study, members=chosen.members, others=others)
        files = [f"{task}={file}" for task, file in score.items()] if isinstance(score, Mapping) else score
        voted = vote(
            poll_of(studies, chosen, name=name, say=say),
            test_ids=test_ids(config, prepared),
            submission=formats_of(config, prepared, chosen),
            answers=answers(config, prepared, files, console=study.console),
            prompts=_cells(config, prepared, "text", lambda kind: kind.generative),
            tagged=_tagged(config, prepared),
            recipe_keys=recipe_keys(chosen, studies),
        )
    return Vote(studies, name, chosen, voted)


def _cells(
    config: StudyConfig, prepared: Prepared, column: str, of: Callable[[Kind], bool]
) -> dict[str, dict[str, list[str]]]:
    """By task of such a kind and test part: a column of the test file's rows, in its order."""
    return {
        task.name: {part: prepared.rows(task.name, part)[column].tolist() for part in parts}
        for task in prepared.tasks
        if of(task.kind) and (parts := config.tasks[task.name].test_sets())
    }


def _tagged(config: StudyConfig, prepared: Prepared) -> dict[str, dict[str, Tagging]]:
    """By task of tags and test part: what writes the test file with tags, as the training file is written."""
    found: dict[str, dict[str, Tagging]] = {}
    for task in prepared.tasks:
        spec = task_spec(task.name, config.tasks[task.name])
        for part in config.tasks[task.name].test_sets():
            if write := tagging(spec, spec.sources[part]):
                found.setdefault(task.name, {})[part] = write
    return found


def tagging(spec: TaskSpec, file: str = "") -> Tagging | None:
    """What writes a file of a task of tags with tags, as its training file is written; None for other tasks, and for a
    trial run, which has some of the file's rows alone.
    """
    if not isinstance(spec.layout, Tagged) or spec.max_rows:
        return None
    return partial(partial(spec.layout.tagged, like=spec.sources["train"]), file)


def recipe_keys(recipe: Recipe, studies: Mapping[str, StudyBase]) -> dict[str, Any]:
    """What a card keeps of a recipe, with the folders of the studies that vote beside the first."""
    others = [str(each.folder.path.resolve()) for each in [*studies.values()][1:]]
    return {**recipe.model_dump(mode="json"), "others": others}


def test_ids(config: StudyConfig, prepared: Prepared) -> TestIds:
    """By task and test part: the ids of the test file, in its order."""
    return {
        task.name: {part: prepared.ids(task.name, part) for part in config.tasks[task.name].test_sets()}
        for task in prepared.tasks
    }


def formats_of(config: StudyConfig, prepared: Prepared, recipe: Recipe) -> Formats:
    """The formats of a recipe's submission files. Its templates go before the samples that the study's tasks name.

    Raises:
        SubmissionError: if a template's ids are a column of its test table that are not the study's ids.
    """
    tested = {name for name, task in config.tasks.items() if task.test_sets()}
    templates = templates_of(config, recipe, tested)
    if faults := tuple(_other_ids(config, prepared, templates)):
        raise SubmissionError(*faults)
    cells = _cells(config, prepared, "choices", lambda kind: kind.exchangeable)
    choices = {task: {part: from_json(own) for part, own in by_part.items()} for task, by_part in cells.items()}
    texts = _cells(config, prepared, "text", lambda kind: kind.spans == "one")
    return formats_for(config, recipe, tested, templates, choices, texts=texts)


def templates_of(config: StudyConfig, recipe: Recipe, tested: Collection[str]) -> dict[str, Path]:
    """The samples that these tasks name, by task, and those of a recipe, which go before them."""
    samples = {name: task.sample for name, task in config.tasks.items() if task.sample and name in tested}
    return {**samples, **recipe.submission.templates}


def formats_for(
    config: StudyConfig,
    recipe: Recipe,
    tested: Collection[str],
    templates: Mapping[str, Path],
    choices: Mapping[str, Mapping[str, Sequence[Sequence[str]]]],
    *,
    texts: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    form: str | None = None,
    rows: Mapping[str, tuple[str, ...]] | None = None,
) -> Formats:
    """The formats of the submission files of these tasks.

    Args:
        form: for all tasks, in place of the recipe's.
        templates, choices, texts, rows: as of ``Formats``.
    """
    from tutti.outputs.submission.submission import Formats

    form = form or recipe.submission.format
    kinds = {
        name: config.tasks[name].glue or name
        for name in tested
        if (form or submission_of(config.tasks[name])) == "glue"
    }
    separators = {name: own for name in tested if (own := config.tasks[name].columns.separator)}
    return Formats(form, templates, kinds, separators, choices, rows or {}, texts or {})


def _other_ids(config: StudyConfig, prepared: Prepared, templates: Mapping[str, Path]) -> Iterator[Fault]:
    """A fault for each template that counts rows by a column which the study did not take the test table's ids from.

    Row numbers, or another column's values, may be the same ids in another order, which nothing else could tell.
    """
    from tutti.outputs.submission.formats.csv import Csv
    from tutti.outputs.submission.submission import named

    for name, task in config.tasks.items():
        for part, file in task.test_sets().items():
            if not (template := templates.get(named(name, part)) or templates.get(name)):
                continue
            form = Csv.by_template(template)
            theirs, ours = ids_by(form.header[0], task_spec(name, task), file), prepared.ids(name, part).tolist()
            # Ids that the study file names are right if they are the template's: another column may bear its name.
            named_well = task.columns.id and set(form.order or ()) == set(ours) != set(theirs or ())
            if theirs not in (None, ours) and not named_well:
                rule = f"name the column that the study has taken the ids of {file} from"
                remedy = f"set `columns: {{id: {form.header[0]}}}` for the task {name}, and tune it as a new study"
                yield Fault(str(template), rule, f"{form.header[0]!r}, another one", remedy)


def _changed_test_files(config: StudyConfig, prepared: Prepared) -> Iterator[Fault]:
    """A fault for each test file whose content differs from what the study read. A missing file may have been moved."""
    for name, task in config.tasks.items():
        for part, file in task.test_sets().items() if task.layout != "hub" else ():
            with suppress(OSError):
                if sha256_of(Path(file)) != prepared.origins[name][part]["sha256"]:
                    rule = "be the test file that the study was prepared from"
                    yield Fault(file, rule, "another content", "restore the file, or start a study with the new one")
