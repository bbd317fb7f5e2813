"""The folder that an output is written to, as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tutti.errors import StorageError, StudyError
from tutti.files import hashes, write_whole
from tutti.outputs.folder import output_folder


def test_a_page_that_a_user_wrote_beside_a_report_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"files": ["report.html"]}', encoding="utf-8")
    (tmp_path / "report.html").touch()
    (tmp_path / "card.md").touch()
    message = "hold nothing but what this command wrote there before; got card.md"
    with pytest.raises(StudyError, match=message), output_folder(tmp_path, listing="report.json"):
        pass
    assert (tmp_path / "card.md").is_file()


def test_what_is_put_into_the_folder_while_the_output_is_made_is_not_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = "hold nothing but what this command wrote there before; got notes.txt"
    with pytest.raises(StudyError, match=message), output_folder(out):
        write_whole(out / "notes.txt", "years of work")
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_link_to_a_folder_is_not_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "data").symlink_to(tmp_path)
    message = "hold nothing but what this command wrote there before; got data"
    with pytest.raises(StudyError, match=message), output_folder(out):
        pass
    assert (out / "data").is_symlink()


def test_one_kind_of_output_does_not_replace_another(tmp_path: Path) -> None:
    labels = tmp_path / "mood.tsv"
    labels.touch()
    (tmp_path / "card.json").write_text('{"files": ["mood.tsv"], "kind": "pseudo-labels"}', encoding="utf-8")
    message = "hold nothing but what this command wrote there before; got the pseudo-labels of an earlier run"
    with pytest.raises(StudyError, match=message), output_folder(tmp_path, kind="ensemble"):
        pass
    assert labels.exists()
    with output_folder(tmp_path, kind="pseudo-labels"):
        pass
    assert not labels.exists()


def test_a_file_that_somebody_corrected_by_hand_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # a file that nobody touched is
        with output_folder(out) as folder:
            write_whole(folder / "mood.tsv", "0\tso glad\tsad\n")
            write_whole(folder / "card.json", json.dumps({"files": hashes(folder)}))
    (out / "mood.tsv").write_text("0\tso glad\tglad\n")
    message = (
        "hold nothing but what this command wrote there before; got mood.tsv, which was changed since; name another"
    )
    with pytest.raises(StudyError, match=message), output_folder(out):
        pass
    assert (out / "mood.tsv").read_text() == "0\tso glad\tglad\n"


def test_a_loop_of_symbolic_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("out")
    with pytest.raises(StorageError, match="out must be written whole"), output_folder(tmp_path / "out"):
        pass


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    message = rf"out must be in a folder; got the file {tmp_path}/notes; name another folder"
    with pytest.raises(StudyError, match=message), output_folder(tmp_path / "notes" / "more" / "out"):
        pass


@pytest.mark.parametrize(
    ("out", "got"),
    [
        (".", "the current folder"),
        ("..", "a folder above the current one"),
        ("/proc", "a mount point"),
        ("/", "a mount point"),
    ],
)
def test_a_folder_that_cannot_be_replaced_as_a_whole_is_refused(out, got, tmp_path, monkeypatch):
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    message = f"must be a folder that can be replaced as a whole; got {got}; name a folder inside it"
    with pytest.raises(StudyError, match=message), output_folder(Path(out)):
        pass
    with output_folder(Path("inside")) as folder:
        (folder / "card.json").write_text("{}", encoding="utf-8")
    assert Path("inside", "card.json").is_file()
