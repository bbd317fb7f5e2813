"""What the command line prints for bad input; docs/bad-input.md lists the same messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bad_input_changes import Case
from bad_input_run import Result, Templates, make_templates, run
from bad_input_table import PAGE, cases, page_of, row_of, rows_on, run_case

ALL = list(cases())
HOW = "docs/bad-input.md is not what the commands print: run `python tests/cli/bad_input_table.py` and read it"


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return make_templates(tmp_path_factory.mktemp("bad") / "templates")


def _shown(case: Case, folder: Path, templates: Templates) -> Result:
    if reason := case.missing():
        pytest.skip(reason)
    return run_case(case, folder, templates)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.what, marks=[pytest.mark.slow, pytest.mark.ray] if case.ray else [])
        for _, case in ALL
    ],
)
def test_bad_input_gets_its_message_and_leaves_nothing_behind(case: Case, templates: Templates, tmp_path: Path) -> None:
    got = _shown(case, tmp_path / "case", templates)
    assert got.code == case.code, got.err
    assert "Traceback" not in got.out + got.err
    assert "None" not in got.message
    assert rows_on(PAGE.read_text(encoding="utf8"))[case.what] == row_of(case, got.message), HOW
    if not case.ray:  # by then the study's data are there, and a second start makes them anew
        assert left_behind(tmp_path / "case", case.template(templates)) == []


def left_behind(folder: Path, template: Path) -> list[str]:
    """Studies that have begun, and partly written files."""
    before = {file.relative_to(template) for file in template.rglob("*")}
    new = [file.relative_to(folder) for file in folder.rglob("*") if file.relative_to(folder) not in before]
    return [str(file) for file in new if file.name == "study.json" or re.search(r"\.(tmp|old)$", file.name)]


def test_the_study_that_every_case_breaks_is_valid(templates: Templates) -> None:
    assert run(templates.finished, "trials studies/moods").code == 0
    assert run(templates.finished, "ensemble studies/moods").code == 0


def test_the_page_lists_every_case_once_and_nothing_else() -> None:
    page = PAGE.read_text(encoding="utf8")
    assert len(ALL) >= 30
    assert len({case.what for _, case in ALL}) == len(ALL)
    assert list(rows_on(page)) == [case.what for _, case in ALL], HOW
    assert page == page_of(rows_on(page)), HOW


def test_a_start_that_failed_does_not_bind_the_next_one(templates: Templates, tmp_path: Path) -> None:
    """A new start, with other settings too, remakes what it left in the study's folder, without --resume."""
    import contextlib
    import io
    import shutil

    from bad_input_run import inside

    from tutti.workflows import stores
    from tutti.workflows.base import StudyBase
    from tutti.workflows.preparation import prepare_study

    folder = tmp_path / "case"
    shutil.copytree(templates.new, folder, symlinks=True)
    with inside(folder), contextlib.redirect_stdout(io.StringIO()):
        for share in (0.2, 0.4):
            study, place = stores.read_study_file(Path("study.yaml"), overrides=[f"split.validation={share}"])
            prepared = prepare_study(StudyBase(study, place), resume=False)
            assert prepared.parts["mood"]["validation"].rows == 30 * share
