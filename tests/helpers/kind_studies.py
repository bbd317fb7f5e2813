"""Studies of every kind with weights, without training: those of the contract of kinds, and random models."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from saved_models import save_model
from word_backbone import save_bert, save_decoder, save_tokenizer

from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study
from tutti.files import write_whole
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import TextLimit
from tutti.workflows.study import Study

WORDS = ("text", "test", "train", "answer", *(str(number) for number in range(50)))


def _contract() -> ModuleType:
    file = Path(__file__).parents[1] / "contract" / "test_kinds.py"
    spec = importlib.util.spec_from_file_location("contract_of_kinds", file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


contract = _contract()
_PAIR = "metric: macro_f1\n    template_b: 'answer {text}'"
_ONE_TEXT = "metric: macro_f1\n    template: 'is {text} like {id}?'\n    columns: {id: id, text_b: id}"
EXAMPLES = {**contract.EXAMPLES}
EXAMPLES |= {
    name: contract.Example(("label",), keys, contract.classes)
    for name, keys in {"pairs": _PAIR, "pairs in one text": _ONE_TEXT}.items()
}


def save_backbone(folder: Path) -> Path:
    save_tokenizer(folder, WORDS, model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    save_bert(folder)
    return folder


def study_with_weights(
    folder: Path, example: str, *, heads: HeadOptions | None = None, limit: TextLimit | None = None, **changes: Any
) -> Study:
    """A study whose four trials have random weights, each with others, and predictions of its own in the bank.

    Args:
        heads: by default each trial has another pooling.
        changes: to the study's contract example.
    """
    backbone = save_backbone(folder / "backbone")
    if EXAMPLES[example].layout == "instructions":
        save_decoder(backbone)
    made = contract.make(folder, EXAMPLES[example], **changes)
    place = StudyFolder(folder / "studies" / "kinds")
    place.path.mkdir(parents=True)
    shutil.copytree(folder / "data", place.data)
    shutil.copytree(folder / "bank", place.bank)
    write_whole(place.study_file, dump_study(made.config))
    for number, pooling in enumerate(("attention", "mean", "cls", "cls")):
        torch.manual_seed(number)
        options = heads or HeadOptions(pooling=pooling, layers=1 + (number == 1))
        model = MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=[made.task], heads=options)
        with torch.no_grad():
            for weight in model.heads.parameters():
                weight.mul_(20)
        key = f"t{number:04d}"
        save_model(place.trial(key).best, model, backbone, key=key, number=number, limit=limit or TextLimit(16))
    return Study(place, quiet=True)
