"""Small valid studies to break, and the command ``tutti`` run on them in this process, its messages made comparable."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STUDY = """\
study: moods
backbone: backbone
tasks:
  mood:
    layout: competition
    train: mood_train.tsv
    test: mood_test.tsv
    unlabeled: mood_pool.tsv
    metric: macro_f1
training:
  num_train_epochs: 1
  per_device_train_batch_size: 8
  max_length: 16
search_space:
  learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-3}
search:
  trials: 1
storage:
  path: studies
"""
MOODS = {"calm": "the sea lies still", "glad": "what a bright day", "sad": "rain and nobody here"}
# The hub is away: what it says differs with the day. The library reads this once, so it is set before it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# What the machine of whoever runs the tests may have set must not reach them.
FOREIGN = (
    *("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
    *("MLFLOW_TRACKING_URI", "TUTTI_STUDIES", "TUTTI_DATABASE"),
)


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code, output, and its errors, one per line, with paths normalized."""

    code: int
    out: str
    err: str
    message: str


@dataclass(frozen=True)
class Templates:
    """Folders to copy: a new study, and the same study with a finished trial."""

    new: Path
    finished: Path


def make_templates(folder: Path) -> Templates:
    """Makes both folders, which share a backbone. The trial is real, trained in this process without Ray."""
    new, finished = folder / "new", folder / "finished"
    new.mkdir(parents=True)
    (new / "study.yaml").write_text(STUDY, encoding="utf8")
    for part, rows in {"train": 30, "test": 6, "pool": 9}.items():
        lines = []
        for row in range(rows):
            mood = list(MOODS)[row % 3]
            lines.append(f"{part[0]}{row}\t{MOODS[mood]} {row}" + (f"\t{mood}\n" if part == "train" else "\n"))
        (new / f"mood_{part}.tsv").write_text("".join(lines), encoding="utf8")
    run(new, "backbone new --texts mood_train.tsv --out ../backbone", code=0)
    (new / "backbone").symlink_to(folder / "backbone")
    shutil.copytree(new, finished, symlinks=True)
    with inside(finished):
        _finish()
    return Templates(new, finished)


def run(folder: Path, command: str, *, code: int | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Runs ``tutti COMMAND`` in the folder, through the command's entry point."""
    from tutti.cli.main import run as entry_point

    out, err = io.StringIO(), io.StringIO()
    given, sys.argv = sys.argv, ["tutti", *command.split()]
    try:
        with inside(folder, **(env or {})), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                entry_point()
                ended = 0
            except SystemExit as exit_:
                ended = exit_.code if isinstance(exit_.code, int) else 1
    finally:
        sys.argv = given
    assert code in (None, ended), out.getvalue() + err.getvalue()
    return Result(ended, out.getvalue(), err.getvalue(), _comparable(err.getvalue(), folder))


@contextlib.contextmanager
def inside(folder: Path, **env: str) -> Iterator[None]:
    """Runs the block in the folder, without the machine's settings and without access to the hub."""
    before, environment = Path.cwd(), dict(os.environ)
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(COLUMNS="300", TERMINAL_WIDTH="300", NO_COLOR="1", **env)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _comparable(text: str, folder: Path) -> str:
    """The errors of a command, one per line, with its folder replaced by DIR and the machine's size by N."""
    boxed = re.findall(r"^│ (.*?) *│$", text, re.MULTILINE)  # how typer shows a wrong option
    lines = boxed or [line.removeprefix("error: ") for line in text.splitlines() if line.startswith("error: ")]
    joined = "\n".join(line.strip() for line in lines)
    joined = joined.replace(str(folder.resolve()), "DIR").replace(str(folder), "DIR")
    joined = re.sub(r"/\d{4}-[0-9a-f]{8}/", "/VERSION/", joined)  # of an entry of the bank
    return re.sub(r"has \d+ CPUs and \d+ GPUs", "has N CPUs and N GPUs", joined)


def _finish() -> None:
    """Runs the study in the current folder with one trial, as ``tutti tune`` does, but without Ray."""
    from tutti.orchestration.worker.build import fine_tune_once
    from tutti.orchestration.worker.trial_listener import TrialListener
    from tutti.records import TrialState
    from tutti.workflows import stores
    from tutti.workflows.base import StudyBase
    from tutti.workflows.preparation import prepare_study

    study, folder = stores.read_study_file(Path("study.yaml"), overrides=[])
    with contextlib.redirect_stdout(io.StringIO()):
        prepare_study(StudyBase(study, folder), resume=False)
    store = stores.open_store(study, folder)
    trial = store.ask()
    record = fine_tune_once(
        study,
        folder,
        key=trial.key,
        number=trial.number,
        parameters=trial.parameters,
        listener=TrialListener(),
        main=True,
        smaller_batches=False,
    )
    store.report(trial.key, epoch=record.epoch, score=record.score, task_scores=record.task_scores)
    store.finish(trial.key, state=TrialState.FINISHED)
    store.close()
