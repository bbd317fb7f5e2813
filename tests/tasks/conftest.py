from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes, str], str]:
    """Writes a file and returns its path as a source."""

    def written(content: str | bytes, name: str = "rows.tsv") -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return written
