"""Names of studies, tasks and trials that try to leave their folder: none does, in the config or by any command."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from bad_input_run import inside
from pydantic import ValidationError
from stored_study import CONFIG, StoredStudy, make_stored_study

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder, find_study
from tutti.config.study import StudyConfig
from tutti.data.prepared import load_prepared
from tutti.errors import StorageError, StudyError, TuttiError
from tutti.files import is_plain
from tutti.records import CheckpointRecord

NAMES = (
    *("../outside", "../../outside", "../../../etc/passwd", "..\\outside", "..%2foutside", "%2e%2e/outside"),
    *("../", "./", "..\0/outside", "%252e%252e%252foutside", "..%c0%af..%c0%afoutside", "....//outside"),
    *("．．／outside", "․․/outside", "/outside", "//outside", "~/outside", "a/../outside", "file:///etc/passwd"),
    *("http://b/outside", "C:\\", "\\\\host\\a", "", ".", "..", "...", "~root", "-rf", "--help", " a", "a\n"),
    *("a\0b", ".encoded", "a" * 81, "a" * 5000, "$HOME", "`id`", "mоods", "moo\u202eds", "\udcff"),
)
"""One of each way to name a file elsewhere, or to look like another name."""

COMMANDS = ("trials", "ui", "ensemble", "pseudo-label", "doctor")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``studies`` has the study ``moods``; no name in ``studies`` may lead to the study ``outside``."""
    place = tmp_path_factory.mktemp("hostile")
    outside = make_stored_study(place / "outside").folder.path
    shutil.copytree(outside, place / "studies" / "moods")
    (place / "studies" / "link").symlink_to(outside)
    (place / "here/1/2/3").mkdir(parents=True)
    return place


def everything(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def tutti(*arguments: str, place: Path) -> tuple[int, str]:
    """The exit code and the output, run in an empty folder."""
    from tutti.cli.main import run

    out, given = io.StringIO(), sys.argv
    sys.argv = ["tutti", *arguments]
    env = {"TUTTI_STUDIES": str(place / "studies")}
    try:
        with inside(place / "here/1/2/3", **env), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                run()
            except SystemExit as ended:
                return int(ended.code or 0), out.getvalue()
    finally:
        sys.argv = given
    return 0, out.getvalue()


@pytest.mark.parametrize(("command", "name"), list(zip(itertools.cycle(COMMANDS), NAMES, strict=False)), ids=ascii)
def test_no_name_leads_out_of_its_folder(command, name, place):
    """Each name for a study, a task, a test file and a trial, and as the STUDY argument of a command."""
    task = CONFIG["tasks"]["mood"]
    for changes in ({"study": name}, {"tasks": {name: task}}, {"tasks": {"mood": {**task, "test": {name: "/file"}}}}):
        with pytest.raises(ValidationError):
            StudyConfig.model_validate(CONFIG | changes)
    before = everything(place)
    with pytest.raises(StudyError), inside(place / "here/1/2/3"):
        find_study(name, beside=place / "studies")
    code, output = tutti(command, name, place=place)
    assert (code, "Traceback" in output) == (0 if name == "--help" else 2, False), output
    study = StudyFolder(place / "studies" / "moods")
    if is_plain(name):
        assert study.trial(name).path.parent == study.trial("t0000").path.parent
    else:
        with pytest.raises(StudyError):
            study.trial(name)
        with pytest.raises(StorageError):
            Bank(study.bank).put(CheckpointRecord(name, 9, 1, 0.5, {}, None), {})
    assert everything(place) == before


@pytest.mark.parametrize("name", [name for name in NAMES if "/" in name or name in ("..", ".")], ids=ascii)
def test_no_name_of_a_task_in_a_planted_file_becomes_a_path(name, tmp_path):
    prepared = {"parts": {name: {}}, "tasks": [], "origins": {}, "settings": {}}
    (tmp_path / "prepared.json").write_text(json.dumps(prepared))
    with pytest.raises(StorageError, match="which is a path"):
        load_prepared(tmp_path)


def test_a_study_may_be_named_by_any_folder_but_not_reached_through_a_link_by_its_name(place):
    assert tutti("trials", str(place / "outside"), place=place)[0] == 0
    code, output = tutti("trials", "link", place=place)
    assert code == 2
    assert f"the study 'link' must lie in {place / 'studies'}; got a link to {place / 'outside'}" in output


def test_a_study_is_not_run_through_a_link(place):
    from tutti.workflows.preparation import check_place

    with pytest.raises(StudyError, match="got a link to"):
        check_place(StudyFolder(place / "studies" / "link"))
    check_place(StudyFolder(place / "studies" / "moods"))


def test_what_is_mended_does_not_lie_behind_a_link(place, tmp_path):
    """A bank, a trial's folder and a fold's folder that link elsewhere: nothing there is removed."""
    study = StoredStudy(StudyFolder(place / "outside")).copy(tmp_path / "moods")
    elsewhere = tmp_path / "elsewhere"
    for file in ("0001-abc/predictions/x", "resume/stage-0-step-1/x", "best/x", ".best.abcdefgh.tmp/x"):
        (elsewhere / file).parent.mkdir(parents=True)
        (elsewhere / file).write_text("somebody's")
    for link in ("bank/t0001", "trials/t0001/fold-0", "trials/t0001/resume", ".moods.abcdefgh.tmp"):
        (study.folder.path / link).symlink_to(elsewhere)
        os.utime(study.folder.path / link, (0, 0), follow_symlinks=False)  # nobody is writing it
    before = everything(elsewhere)
    assert tutti("doctor", str(study.folder.path), place=place)[0] in (0, 1)
    assert everything(elsewhere) == before


def test_a_recipe_s_name_does_not_lead_out_of_the_folder_of_ensembles(place, tmp_path):
    (tmp_path / "...yaml").write_text("members: {top: 1}")
    before = everything(place)
    with contextlib.suppress(TuttiError):
        assert tutti("ensemble", "moods", "--recipe", str(tmp_path / "...yaml"), place=place)[0] == 2
    assert everything(place) == before
