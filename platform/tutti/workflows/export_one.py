"""Exports the best member of a vote, or a checkpoint, as a plain model of transformers or as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tutti.errors import counted
from tutti.files import whole_folder, write_whole
from tutti.workflows.base import StudyBase
from tutti.workflows.predict import Predictors

if TYPE_CHECKING:
    from tutti.tasks.task import Task
    from tutti.workflows.export import Exported

_COMPARED = 256  # validation rows


def export_one(
    study: StudyBase, task: Task, predictors: Predictors, out: Path, *, form: Literal["transformers", "onnx"]
) -> Exported:
    """Writes one model and its tokenizer, and says how far its outputs are from Tutti's own.

    Raises:
        StudyError: if the head has no such form.
    """
    from tutti.bundle.one import export_onnx, export_plain
    from tutti.outputs.election.bundle_card import Speed
    from tutti.workflows.export import Exported

    elected = predictors.elected
    number = max(predictors.vote.groups, key=lambda place: elected.members[place].weight if elected else 1.0)
    checkpoint = predictors.checkpoints[predictors.vote.groups[number][0]].folder
    rows = study.prepared.rows(task.name, "validation").head(_COMPARED)
    texts = {name: rows[name].tolist() for name in ("text", "text_b", "choices") if name in rows}
    write = export_plain if form == "transformers" else export_onnx
    with whole_folder(out) as folder:
        said = write(folder, checkpoint, task, texts)
        page = f"# {task.name}\n\n{said.page}\nMade by Tutti from the study `{study.name}`.\n"
        write_whole(folder / "README.md", page)
    study.console.print(f"{out}: {said.text}, compared on {counted(len(rows), 'row')}")
    return Exported(out, Speed(said.seconds * 1000 / len(rows), {}, len(rows), "float32", None, said.difference))
