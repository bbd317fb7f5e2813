"""Two workers of a real Ray pretrain together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoModel
from word_backbone import save_bert, save_tokenizer

from tutti.config.pretraining import PretrainingSettings
from tutti.config.study import Resources
from tutti.data.corpus import CorpusOptions
from tutti.errors import BackboneError
from tutti.orchestration.worker.pretraining import pretrain_on_workers
from tutti.training.pretraining.run import TextFiles, encode_texts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.usefixtures("cluster_of_two")]
TWO = Resources(workers=2)
WORDS = [f"w{each}" for each in range(59)]


@pytest.fixture
def arguments(tmp_path) -> dict[str, Any]:
    save_bert(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert", [*WORDS, "[MASK]"], mask_token="[MASK]")
    lines = [" ".join(WORDS[(row * step) % 59] for step in range(1, 9)) for row in range(1, 60)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    given = {
        "backbone": str(tmp_path / "bert"),
        "texts": TextFiles((tmp_path / "texts.txt",), CorpusOptions(max_length=16)),
        "out": tmp_path / "made",
        "settings": PretrainingSettings(epochs=20, batch_size=2),
    }
    encode_texts(**given)
    return given


def test_workers_tell_their_progress_and_go_on_where_they_were_cut_off(arguments, tmp_path):
    told: list[Any] = []

    def cut(progress) -> None:
        if progress.held_out:  # its state is saved
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pretrain_on_workers(arguments, resources=TWO, told={"on_progress": cut, "on_notice": print})
    made = pretrain_on_workers(arguments, resources=TWO, told={"on_progress": told.append, "on_notice": print})
    assert min(progress.epoch for progress in told) >= 1
    assert [progress.epoch for progress in told if progress.held_out][-1] == 20
    AutoModel.from_pretrained(made.path)
    assert {each.name for each in tmp_path.iterdir()} == {"bert", "made", "texts.txt"}


def test_what_is_wrong_for_a_worker_is_told_as_for_a_single_process(arguments):
    too_long = replace(arguments["texts"], options=CorpusOptions(max_length=600))
    with pytest.raises(BackboneError, match="--max-length must be at least 4 and at most 512"):
        pretrain_on_workers({**arguments, "texts": too_long}, resources=TWO, told={})
