"""Which studies may vote together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tutti.config.cleaning import Cleaning
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.errors import StudyError
from tutti.outputs.election.studies import check_together
from tutti.outputs.pseudo.pool import pools
from tutti.tasks.build import ExtraRows, TaskSpec
from tutti.tasks.layouts.competition import Competition

LAYOUT = Competition()
POOL = ["0\tpool 0!!", "1\tpool 1", "2\ttext 3"]


@pytest.fixture
def study(tmp_path: Path):
    """A study of 20 rows and a pool of three, and perhaps further rows to train on; each task has the same rows."""

    def made(
        name: str,
        *,
        extra: list[str] | None = None,
        folds: int | None = None,
        cleaning: Cleaning | None = None,
        tasks: str = "A",
        seed: int = 0,
        shared: bool = True,
    ) -> tuple[Prepared, TaskSpec]:
        def written(part: str, lines: list[str]) -> Path:
            file = tmp_path / f"{name}-{part}.tsv"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
            return file

        rows = [f"{n}\ttext {n}\t{'yes' if n % 4 else 'no'}" for n in range(20)]
        spec = TaskSpec(
            name="A",
            layout=LAYOUT,
            extra_layout=LAYOUT,
            sources={"train": str(written("train", rows)), "unlabeled": str(written("pool", POOL))},
            pair=False,
            metric="macro_f1",
            submission="csv",
            extra_train=(ExtraRows(written("extra", extra), 1.0, LAYOUT),) if extra else (),
            cleaning=cleaning or Cleaning(),
        )
        share = None if folds else 0.2

        def named(task: str) -> TaskSpec:
            """The task, with texts of its own unless all share theirs, which are then split together."""
            own = rows if shared else [row.replace("text", f"{task} text") for row in rows]
            return replace(spec, name=task, sources={**spec.sources, "train": str(written(f"train-{task}", own))})

        specs = [named(task) for task in tasks]
        return prepare(specs, validation=share, folds=folds, seed=seed, folder=tmp_path / name), spec

    return made


@pytest.mark.parametrize("folds", [None, 4])
def test_studies_with_other_rows_to_train_on_vote_together(study, folds):
    extra = [*(f"{n}\ttext {n}\tyes" for n in range(20)), "new\tnowhere else\tno"]
    (one, _), (other, _) = study("one", folds=folds), study("other", folds=folds, extra=extra)
    check_together({"one": one, "other": other}, by_task=False)


def test_a_study_that_trained_on_rows_of_another_split_is_refused(study, tmp_path):
    one, spec = study("one")
    other = prepare([spec], validation=0.2, seed=1, folder=tmp_path / "other")
    both = set(one.ids("A", "validation")) & set(other.ids("A", "validation"))
    with pytest.raises(
        StudyError, match=rf"other, task A must not have trained on .* the texts of {4 - len(both)} such rows"
    ):
        check_together({"one": one, "other": other}, by_task=False)


def test_a_study_that_composes_its_texts_in_another_way_is_refused_since_no_text_would_be_known_again(study):
    one, _ = study("one")
    settings = {"tasks.A": {**one.settings["tasks.A"], "layout": {"columns": {"template": "{a} {b}"}}}}
    other = replace(one, settings={**one.settings, **settings})
    check_together({"one": other, "other": other}, by_task=False)
    with pytest.raises(StudyError, match=r"other, task A must have the templates of one, no template; got '{a} {b}'"):
        check_together({"one": one, "other": other}, by_task=False)


def test_a_text_that_another_study_cleans_in_another_way_is_known_again(study):
    one, spec = study("one")
    other, _ = study("other", extra=["0\tpool 0!!\tyes"], cleaning=Cleaning(repeated_punctuation=True))
    assert other.rows("A", "train")["text"].tolist()[-1] == "pool 0!"
    assert pools(one, [spec])["A"].seen.tolist() == [False, False, True]
    assert pools(one, [spec], others=[other])["A"].seen.tolist() == [True, False, True]


def test_a_held_out_text_is_known_in_rows_whose_file_could_not_hold_its_white_space(study, tmp_path):
    one, spec = study("one")
    held_out = one.rows("A", "validation")["text"].tolist()
    rows = [f"{n}\ttext {n}\tyes\n" for n in range(20) if f"text {n}" not in held_out]
    file = tmp_path / "others.tsv"
    file.write_text("".join([*rows, f"20\t{held_out[0].replace(' ', '  ')}\tyes\n", "21\tits own\tno\n"]))
    (tmp_path / "own.tsv").write_text("0\tits own row\tno\n")
    sources = {**spec.sources, "train": str(file), "validation": str(tmp_path / "own.tsv")}
    other = prepare([replace(spec, sources=sources)], validation=None, seed=0, folder=tmp_path / "other")
    with pytest.raises(StudyError, match=r"must not have trained on .*; got the texts of 1 such row"):
        check_together({"one": one, "other": other}, by_task=False)


@pytest.mark.parametrize(("tasks", "alone"), [("A", "A"), ("AC", "A"), ("ABC", "A and B")])
def test_a_study_with_other_tasks_votes_in_those_it_shares_where_members_are_chosen_by_task(study, tasks, alone):
    (one, _), (other, _) = study("one", tasks="AB", shared=False), study("other", tasks=tasks, shared=False)
    check_together({"one": one, "other": other}, by_task=True)
    with pytest.raises(StudyError) as error:
        check_together({"one": one, "other": other}, by_task=False)
    remedy = rf"set `members: {{by: task}}` in the recipe, so that it votes in {alone} alone, or leave it out."
    assert str(error.value) == f"the study other must have the tasks of one: A, B; got {', '.join(tasks)}; {remedy}"


def test_a_study_of_one_of_several_tasks_that_share_texts_holds_out_other_rows_and_is_refused(study, tmp_path):
    one, spec = study("one")
    other = prepare([spec, replace(spec, name="B")], validation=0.2, seed=0, folder=tmp_path / "other")
    with pytest.raises(StudyError, match=r"other, task A must not have trained on rows that one holds out"):
        check_together({"one": one, "other": other}, by_task=True)


@pytest.mark.parametrize("by_task", [True, False])
def test_a_study_without_a_common_task_is_refused(study, by_task):
    (one, _), (other, _) = study("one", tasks="AB"), study("other", tasks="C")
    with pytest.raises(StudyError, match="the study other must have a task of one: A, B; got C; leave the study out"):
        check_together({"one": one, "other": other}, by_task=by_task)


def test_a_study_that_trained_on_held_out_rows_of_the_one_task_it_shares_is_refused(study):
    (one, _), (other, _) = study("one", tasks="AB"), study("other", tasks="B", seed=1)
    with pytest.raises(StudyError, match="the study other, task B must not have trained on rows that one holds out"):
        check_together({"one": one, "other": other}, by_task=True)


def test_rows_that_a_study_of_other_tasks_saw_in_a_common_one_get_no_label_in_it(study):
    one, spec = study("one", tasks="AB")
    other, _ = study("other", tasks="B", extra=["new\tpool 1\tyes"])
    found = pools(one, [spec, replace(spec, name="B")], others=[other])
    assert {name: pool.seen.tolist() for name, pool in found.items()} == {
        "A": [False, False, True],
        "B": [False, True, True],
    }


def test_a_study_that_weighs_the_tasks_otherwise_votes_only_where_members_are_chosen_by_task(study):
    (one, _), (other, _) = study("one", tasks="AB"), study("other", tasks="AB")
    first, second = other.tasks
    check_together(
        {"one": one, "other": replace(other, tasks=(replace(first, weight=2.0), replace(second, weight=2.0)))},
        by_task=False,
    )
    weighted = {"one": one, "other": replace(other, tasks=(replace(first, weight=2.0), second))}
    check_together(weighted, by_task=True)
    with pytest.raises(StudyError, match=r"the study other must weigh the tasks as one does: A 1, B 1; got A 2, B 1"):
        check_together(weighted, by_task=False)
