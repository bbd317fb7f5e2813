"""The notebook examples/tour.ipynb."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_tour_is_executed_without_errors_and_small():
    cells = [cell for cell in nbformat.read(TOUR, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert TOUR.stat().st_size < 400_000


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_the_tour_can_be_taken(tmp_path):
    book = nbformat.read(TOUR, as_version=4)
    NotebookClient(book, timeout=1500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "tour/studies/demo/report/report.html").is_file()
