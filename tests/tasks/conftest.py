from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes, str], str]:
    """Writes a file and returns its path as a source."""

    def written(content: str | bytes, name: str = "rows.tsv") -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return written
