from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from word_backbone import save_tokenizer

from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.tasks.build import ExtraRows, TaskSpec
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.soft import SoftLabels


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., TaskSpec]:
    """Writes competition files from lists of rows by part, and returns the task that reads them."""

    def make(
        name: str = "A",
        *,
        pair: bool = False,
        metric: str = "macro_f1",
        extra: list[tuple[list[tuple[str, ...]], float]] | None = None,
        soft: list[tuple[Path, float]] | None = None,
        **parts: list[tuple[str, ...]],
    ) -> TaskSpec:
        def written(file: str, rows: list[tuple[str, ...]]) -> Path:
            path = tmp_path / "files" / name / f"{file}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
            return path

        layout = Competition(pair=pair)
        return TaskSpec(
            name=name,
            layout=layout,
            extra_layout=layout,
            sources={part.replace("__", "-"): str(written(part, rows)) for part, rows in parts.items()},
            pair=pair,
            metric=metric,
            submission="competition",
            extra_train=(
                *(
                    ExtraRows(written(f"extra{n}", rows), weight, layout)
                    for n, (rows, weight) in enumerate(extra or [])
                ),
                *(ExtraRows(file, weight, SoftLabels(pair)) for file, weight in soft or []),
            ),
        )

    return make


@pytest.fixture
def run_preparation(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares tasks, with a fifth of the rows to validate on."""

    def prepared(*specs: TaskSpec, validation: float = 0.2, seed: int = 0, folder: str = "data") -> Prepared:
        return prepare(specs, validation=validation, seed=seed, folder=tmp_path / folder)

    return prepared


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of whole words, ``w0`` to ``w99``, with BERT's special tokens and token types."""
    folder = tmp_path_factory.mktemp("tokenizer")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    save_tokenizer(folder, [f"w{n}" for n in range(100)], model_input_names=inputs)
    return str(folder)
