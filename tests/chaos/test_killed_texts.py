"""A decoder that is tuned to write texts is killed in mid-epoch, with all that trains it, and goes on by --resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chaos_study import CHANGES, check_whole, ends
from word_backbone import save_decoder

from tutti.bank.bank import Bank

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TRIALS, EPOCHS, ROWS, BATCH = 2, 4, 320, 16
STEPS = ROWS * 3 // 4 // BATCH  # of an epoch
TRAINING = {
    "num_train_epochs": EPOCHS,
    "per_device_train_batch_size": BATCH,
    "max_length": 16,
    "target_max_len": 8,
    "adapter": "lora",
    "lora_r": 2,
    "lora_dropout": 0.1,
    "state_steps": 4,
}


def study_of_texts(make_study, folder: Path) -> Any:
    """Prompts, the first word of which says what is to be written."""
    folder.mkdir()
    decoder = folder.parent / "decoder"  # of both studies, since checkpoints name its path
    if not decoder.exists():
        save_decoder(decoder, "qwen2")
    for part, rows in {"train": ROWS, "test": 20}.items():
        prompts = [(row % 3, 10 + row // 20, 30 + row % 20) for row in range(rows)]
        lines = [
            json.dumps({"input": " ".join(map("w{}".format, prompt)), "output": "w50" + " w50" * prompt[0]})
            for prompt in prompts
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    files = {part: str(folder / f"{part}.jsonl") for part in ("train", "test")}
    task = {"layout": "instructions", **files, "report": ["exact_match"], "generation": {"max_new_tokens": 4}}
    search = {**CHANGES["search"], "trials": TRIALS, "enqueue": CHANGES["search"]["enqueue"][:TRIALS]}
    given = {**CHANGES, "search": search, "training": TRAINING, "ensemble": {}}
    return make_study(folder, backbone=str(decoder), tasks={"answers": task}, **given)


def is_within_an_epoch(study) -> bool:
    """Whether a trial has a state of steps after its second epoch, and none of the third."""
    newest = 0
    for manifest in study.folder.path.glob("trials/t*/resume/stage-*/manifest.json"):
        try:
            newest = max(newest, json.loads(manifest.read_text())["position"]["step"])
        except FileNotFoundError:  # an older state goes as a newer one comes
            continue
    return 2 * STEPS < newest < 3 * STEPS


def texts(study) -> dict[tuple[str, str], list[str]]:
    bank = Bank(study.folder.bank)
    keys = [(record.key, part) for record in study.records() for part in ("validation", "test")]
    return {(key, part): bank.predictions(key, "answers", part).outputs.tolist() for key, part in keys}


@pytest.mark.timeout(2400)
def test_texts_tuned_with_adapters_and_killed_in_mid_epoch_end_bit_equal(make_study, tutti, tutti_command, tmp_path):
    calm = study_of_texts(make_study, tmp_path / "calm")
    tutti("tune", calm.file)
    untouched = ends(calm)
    for *_, files in untouched.values():
        assert "adapter_model.safetensors" in files
        assert "model.safetensors" not in files
    study = study_of_texts(make_study, tmp_path / "hit")
    first = tutti_command("tune", study.file)
    first.wait_for(lambda: is_within_an_epoch(study), what="a trial within its third epoch")
    first.kill()  # SIGKILL to the driver and to every process below it
    assert is_within_an_epoch(study)
    assert not any(record.state.name == "FINISHED" for record in study.records())
    tutti("tune", study.file, "--resume")
    check_whole(study, untouched, epochs=EPOCHS)
    assert texts(study) == texts(calm)
    assert any(texts(calm).values())
