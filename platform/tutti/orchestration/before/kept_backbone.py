"""Whether a study goes on with the backbone it began with."""

from __future__ import annotations

import json
from pathlib import Path

from tutti.config.backbones import by_backbone
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StorageError, StudyError
from tutti.files import sha256_of, storage_faults, write_whole

_TOKENIZER = ("tokenizer*.json", "vocab.*", "merges.txt", "*.model")  # patterns of its files


def keep_backbone(study: StudyConfig, folder: StudyFolder) -> None:
    """Writes the hashes of the backbones' configuration, weights and tokenizer, or compares them with an earlier run's.

    A backbone from the hub is not compared.

    Raises:
        StudyError: if the study began with others: its trials would not be comparable, and those cut off not go on.
        StorageError: if the hashes cannot be read or written.
    """
    from tutti.modeling.adapters import backbone_files

    place, backbones = folder.backbone_file, [*by_backbone(study)]
    files: dict[str, str] = {}
    tokenizer: dict[str, str] = {}
    for backbone in backbones:
        prefix = f"{Path(backbone).name}/" if len(backbones) > 1 else ""
        found = backbone_files(backbone)
        files |= {prefix + name: value for name, value in found.items()}
        tokenizer |= {prefix + name: value for name, value in (_tokenizer_files(backbone) if found else {}).items()}
    with storage_faults(place):
        if not place.exists():
            write_whole(place, json.dumps(files | tokenizer, indent=1))
        try:
            kept = dict(json.loads(place.read_bytes()))
        except (ValueError, TypeError) as error:
            rule, remedy = "hold the hashes of the backbone's files", "restore it, or remove it to go on unchecked"
            raise StorageError(Fault(str(place), rule, str(error), remedy)) from error
    if kept.keys() & tokenizer.keys():  # older studies have kept none of them
        files |= tokenizer
    differing = sorted(name for name in kept.keys() | files.keys() if kept.get(name) != files.get(name))
    if differing and kept and files:
        name = differing[0]
        got = f"no {name}" if name not in files else f"{'another' if name in kept else 'a new'} {name}"
        rule = f"hold the configuration, tokenizer and weights that it held when the study {study.study!r} began"
        remedy = "restore them, or give `study:` another name"
        raise StudyError(Fault(f"the backbone {' or '.join(backbones)}", rule, got, remedy))


def _tokenizer_files(backbone: str) -> dict[str, str]:
    folder = Path(backbone).expanduser()
    return {file.name: sha256_of(file) for pattern in _TOKENIZER for file in folder.glob(pattern) if file.is_file()}
