"""What an ensemble writes after each prompt, beside the submission."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.outputs.election.members import Elected, votes

if TYPE_CHECKING:
    from tutti.tasks.task import Task


def written_texts(bank: Checkpoints, task: Task, part: str, elected: Elected, prompts: Sequence[str]) -> bytes:
    """JSON Lines: id, input, prediction, log_probability (the mean of the members who write this text; null where the
    bank has none) and agreement (their share).

    Raises:
        StudyError, StorageError: as ``votes`` does.
    """
    voted = votes(bank, task=task, part=part, elected=elected)
    kept = [bank.predictions(member.key, task.name, part).log_probabilities for member in elected.members]
    scores = np.array([np.full(len(voted.ids), np.nan) if own is None else own for own in kept])
    same = voted.members == voted.combined
    lines = []
    for row, (name, prompt) in enumerate(zip(voted.ids.tolist(), prompts, strict=True)):
        own = scores[same[:, row], row]
        score = None if not len(own) or np.isnan(own).any() else round(float(own.mean()), 4)
        item = {"id": name, "input": prompt, "prediction": voted.combined[row], "log_probability": score}
        item["agreement"] = round(float(same[:, row].mean()), 4)
        lines.append(json.dumps(item, ensure_ascii=False) + "\n")
    return "".join(lines).encode()
