"""What is written appears whole or not at all, and what it replaces is lost in no case."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.errors import StorageError
from tutti.files import clear_stray, strays, whole_folder, write_whole


def test_the_earlier_folder_is_put_back_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "labels").write_text("earlier")
    replace = Path.replace

    def full(source: Path, target: Path) -> Path:
        if source.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match="No space left on device"), whole_folder(out) as folder:
        (folder / "labels").write_text("new")
    assert (out / "labels").read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [out]


def test_a_replaced_folder_that_a_kill_left_takes_no_place_that_was_emptied_since(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f"""
import os
from pathlib import Path
from tutti import files
with files.whole_folder(Path({str(out)!r})) as folder:
    (folder / "labels").write_text("earlier")
with files.whole_folder(Path({str(out)!r})) as folder:
    (folder / "labels").write_text("new")
    files.shutil.rmtree = lambda *_, **__: os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    assert (out / "labels").read_text() == "new"
    shutil.rmtree(out)  # as where checkpoints are pruned
    for stray in strays(tmp_path):
        clear_stray(stray)
    assert [*tmp_path.iterdir()] == []


def test_folders_below_one_that_is_written_can_be_read_by_others_too(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        with whole_folder(tmp_path / "out") as folder:
            (folder / "checkpoint").mkdir()
            (folder / "checkpoint" / "weights").write_text("")
    finally:
        os.umask(mask)
    out = tmp_path / "out"
    modes = [path.stat().st_mode & 0o777 for path in (out, out / "checkpoint", out / "checkpoint" / "weights")]
    assert modes == [0o755, 0o755, 0o644]


def test_a_file_in_the_folder_that_cannot_be_written_is_named_as_the_user_knows_it(tmp_path: Path) -> None:
    message = rf"^{tmp_path}/out/a+ must be written whole; got File name too long"
    with pytest.raises(StorageError, match=message), whole_folder(tmp_path / "out") as folder:
        write_whole(folder / ("a" * 300), "")


def test_a_folder_that_another_process_has_completed_meanwhile_stays(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    with whole_folder(folder, unless=folder.exists) as temporary:
        (temporary / "rows").write_text("ours")
        with whole_folder(folder) as theirs:
            (theirs / "rows").write_text("theirs")
    assert (folder / "rows").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
