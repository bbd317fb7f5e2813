"""What a bad input is, and ways to make one of a valid study."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
from bad_input_run import Templates
from filelock import FileLock

from tutti.bank.bank import Bank
from tutti.bank.tables import to_parquet
from tutti.tasks.predictions import Predictions

Change = Callable[[Path], object]
TUNE = "tune study.yaml"


@dataclass(frozen=True)
class Case:
    """One mistake, and the command that reports it. What it says then is pinned by docs/bad-input.md.

    Attributes:
        what: the mistake, in the documentation's words.
        change: breaks the valid study in a folder.
        command: the command that is run there, without ``tutti``.
        code: the expected exit code: 2 for the user's mistake.
        finished: whether the study has a finished trial; None: if the command names the study or resumes it.
        env: environment variables that name places in the folder.
        after: undoes what ``change`` did outside the folder.
        ray: whether the command starts Ray, which is slow.
        missing: returns why the case cannot be reproduced on this machine, or none.
    """

    what: str
    change: Change = lambda folder: None
    command: str = TUNE
    code: int = 2
    finished: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    after: Change = lambda folder: None
    ray: bool = False
    missing: Callable[[], str | None] = lambda: None

    def template(self, templates: Templates) -> Path:
        """The valid study that the case breaks."""
        implied = "studies/moods" in self.command or "--resume" in self.command
        return templates.finished if (implied if self.finished is None else self.finished) else templates.new


def write(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def rows(name: str, row: str, count: int = 12) -> Change:
    """A file of rows, in which ``{n}`` is the row's number and ``{c}`` one of three classes."""
    return write(name, "".join(row.format(n=n, c="abc"[n % 3]) + "\n" for n in range(count)))


def replace(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf8")
        assert text.count(old) >= 1, f"{old!r} is not in {name}"
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf8")

    return change


def yaml(old: str, new: str) -> Change:
    return replace("study.yaml", old, new)


def training(line: str) -> Change:
    return yaml("training:\n", f"training:\n  {line}\n")


def space(line: str) -> Change:
    return yaml("  learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-3}\n", f"  {line}\n")


def split(keys: str) -> Change:
    return yaml("search:\n", f"split: {{{keys}}}\nsearch:\n")


def weights(by_task: str) -> Change:
    return yaml("search:\n", f"objective_weights: {by_task}\nsearch:\n")


def mood(line: str) -> Change:
    return yaml("    layout: competition\n", f"    layout: competition\n    {line}\n")


def task(text: str) -> Change:
    """Replaces the study's task by one of another kind."""

    def change(folder: Path) -> None:
        head, rest = (folder / "study.yaml").read_text(encoding="utf8").split("tasks:\n")
        (folder / "study.yaml").write_text(f"{head}tasks:\n  {text}\ntraining:\n{rest.split('training:')[1]}")

    return change


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def line(name: str, number: int, text: str) -> Change:
    def change(folder: Path) -> None:
        lines = (folder / name).read_text(encoding="utf8").splitlines()
        lines[number - 1] = text
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf8")

    return change


def removed(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def own_backbone(change: Change = lambda folder: None) -> Change:
    """Gives the study its own copy of the backbone and changes it."""

    def made(folder: Path) -> None:
        original = (folder / "backbone").resolve()
        (folder / "backbone").unlink()
        shutil.copytree(original, folder / "backbone")
        change(folder / "backbone")

    return made


def damaged(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb+") as file:
        file.truncate(1000)


def other_model(kind: str, **settings: object) -> Change:
    """Replaces the backbone's weights by those of a small model of another kind."""

    def made(folder: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModel

        from tutti.modeling.model import no_progress_bars

        (folder / "model.safetensors").unlink()
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **{"vocab_size": 300, **settings})
        with no_progress_bars():
            AutoModel.from_config(config).save_pretrained(folder)

    return own_backbone(made)


def no_root_mount() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False).returncode:
            return "a small file system cannot be mounted without the right to"
        subprocess.run(["umount", folder], check=True)
    return None


def small_disk(size: str) -> Change:
    def mounted(folder: Path) -> None:
        (folder / "studies").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder / "studies"], check=True)

    return mounted


def unmounted(folder: Path) -> None:
    subprocess.run(["umount", folder / "studies"], check=True)


def linked_away(folder: Path) -> None:
    """Moves the finished study elsewhere and leaves a link in its place."""
    (folder / "studies/moods").rename(folder / "elsewhere")
    (folder / "studies/moods").symlink_to(folder / "elsewhere")


def put_back(folder: Path) -> None:
    (folder / "studies/moods").unlink()
    (folder / "elsewhere").rename(folder / "studies/moods")


_LOCKS: dict[Path, FileLock] = {}


def held(folder: Path) -> None:
    """Locks the finished study as another process would."""
    _LOCKS[folder] = FileLock(folder / "studies/moods/study.lock")
    _LOCKS[folder].acquire()
    (folder / "studies/moods/study.lock").write_text("ann@gpu1 (process 4711)")


def let_go(folder: Path) -> None:
    _LOCKS.pop(folder).release()


def own_test_file(folder: Path) -> None:
    """Makes the finished study refer to the test file in this folder instead of its template's."""
    path = folder / "studies/moods/study.json"
    document = json.loads(path.read_text(encoding="utf8"))
    document["tasks"]["mood"]["test"] = str(folder / "mood_test.tsv")
    path.write_text(json.dumps(document), encoding="utf8")


def forget_pool(folder: Path) -> None:
    """Removes the study's unlabelled rows."""
    for file, keys in {"data/prepared.json": ("parts", "mood"), "study.json": ("tasks", "mood")}.items():
        path = folder / "studies/moods" / file
        node = document = json.loads(path.read_text(encoding="utf8"))
        for key in keys:
            node = node[key]
        del node["unlabeled"]
        path.write_text(json.dumps(document), encoding="utf8")


def second_trial(folder: Path) -> None:
    """Adds a second trial to the finished study's bank, with another row order."""
    bank = Bank(folder / "studies/moods/bank")
    first = bank.records()[0]
    predictions = {part: bank.predictions(first.key, "mood", part) for part in bank.parts(first.key)["mood"]}
    predictions["validation"] = replaced(predictions["validation"], ids=predictions["validation"].ids[::-1])
    bank.put(replaced(first, key="t0001", number=1), {"mood": predictions})


def other_study(change: Callable[[Path, dict[str, Any]], object] = lambda study, prepared: None) -> Change:
    """Puts a copy of the finished study beside it under the name ``second``, changed in its folder or its tasks."""

    def put(folder: Path) -> None:
        study = Path(shutil.copytree(folder / "studies/moods", folder / "studies/second"))
        text = (study / "study.json").read_text(encoding="utf8").replace('"moods"', '"second"')
        (study / "study.json").write_text(text, encoding="utf8")
        document = json.loads((study / "data/prepared.json").read_text(encoding="utf8"))
        change(study, document)
        (study / "data/prepared.json").write_text(json.dumps(document), encoding="utf8")

    return put


def no_second(folder: Path) -> None:
    """Removes the study of ``other_study``."""
    shutil.rmtree(folder / "studies/second")


def another_split(study: Path, prepared: dict[str, Any]) -> None:
    """Gives a study's only trial other validation rows."""
    _change_votes(study, lambda predictions: replaced(predictions, ids=np.char.add("s", predictions.ids)))


def not_a_number(folder: Path) -> None:
    """Writes NaN into the validation predictions of the finished study's only trial, bypassing every check."""

    def spoilt(predictions: Predictions) -> Predictions:
        assert predictions.outputs is not None
        predictions.outputs[0] = np.nan
        return predictions

    _change_votes(folder / "studies/moods", spoilt)


def another_split_of_all(folder: Path) -> None:
    """Gives the finished study's only trial rows outside the study's validation split."""
    _change_votes(
        folder / "studies/moods", lambda predictions: replaced(predictions, ids=np.char.add("s", predictions.ids))
    )


def another_label(folder: Path) -> None:
    """Writes an invalid label into the validation rows of the finished study's only trial, bypassing every check."""

    def spoilt(predictions: Predictions) -> Predictions:
        assert predictions.labels is not None
        object.__setattr__(
            predictions, "labels", np.where(np.arange(len(predictions.labels)) == 0, 7, predictions.labels)
        )
        return predictions

    _change_votes(folder / "studies/moods", spoilt)


def empty_record(folder: Path) -> None:
    """Empties the bank's metadata of the finished study's only trial."""
    next(folder.glob("studies/moods/bank/*/*/record.json")).write_text("{}", encoding="utf8")


def _change_votes(study: Path, change: Callable[[Predictions], Predictions]) -> None:
    """Rewrites the validation predictions of a study's only trial in place, with consistent metadata."""
    file = next(study.glob("bank/*/*/predictions/mood/validation.parquet"))
    content = to_parquet(change(Bank(study / "bank").predictions("t0000", "mood", "validation")))
    file.write_bytes(content)
    record = file.parents[2] / "record.json"
    document = json.loads(record.read_text(encoding="utf8"))
    document["predictions"]["mood"]["validation"]["sha256"] = hashlib.sha256(content).hexdigest()
    record.write_text(json.dumps(document), encoding="utf8")


def numbers(folder: Path) -> None:
    """Turns the finished study's task into a regression."""
    path = folder / "studies/moods/data/prepared.json"
    document = json.loads(path.read_text(encoding="utf8"))
    document["tasks"][0] |= {"names": [], "metric": "pearson", "kind_name": "value"}
    path.write_text(json.dumps(document), encoding="utf8")
