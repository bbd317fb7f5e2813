"""The folder that an output is written to, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.errors import StudyError
from tutti.outputs.folder import output_folder


@pytest.mark.parametrize(
    ("out", "got"),
    [(".", "the current folder"), ("..", "a folder above the current one"), ("/proc", "a mount point")],
)
def test_a_folder_that_cannot_be_replaced_as_a_whole_is_refused(
    out: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    message = f"must be a folder that can be replaced as a whole; got {got}; name a folder inside it"
    with pytest.raises(StudyError, match=message), output_folder(Path(out)):
        pass
    with output_folder(Path("inside")) as folder:
        (folder / "card.json").write_text("{}", encoding="utf-8")
    assert Path("inside", "card.json").is_file()
