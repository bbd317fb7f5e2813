"""``tutti demo`` leaves alone what it has not written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.errors import StudyError
from tutti.workflows.demo import run_demo


@pytest.mark.parametrize("name", ["my_labels.csv", "study.yaml"])
def test_somebody_s_own_data_are_neither_replaced_nor_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("years of work")
    with pytest.raises(
        StudyError, match=r"data must be a new or an empty folder; got .*; name another folder as --out"
    ):
        run_demo(tmp_path, seed=0)
    assert (tmp_path / "data" / name).read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
