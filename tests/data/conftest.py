from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.tasks.build import ExtraRows, TaskSpec
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.soft import SoftLabels


@pytest.fixture
def shared_data() -> Path:
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    return folder


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


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of whole words, ``w0`` to ``w99``, with BERT's special tokens and token types."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(100))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return str(folder)
