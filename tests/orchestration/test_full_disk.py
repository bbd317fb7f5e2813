"""The disk below a study fills up, or refuses every write, and the study goes on once that is mended."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"only root may mount a file system: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(study) -> None:
    filler = os.open(study.folder.path.parent / "filler", os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(filler, bytes(4096))
    os.close(filler)


def empty(study) -> None:
    (study.folder.path.parent / "filler").unlink()


def make_bank_read_only(study) -> None:
    bank = study.folder.bank
    bank.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", bank, bank], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", bank], check=True)


def make_bank_writable(study) -> None:
    subprocess.run(["umount", study.folder.bank], check=True)


@pytest.mark.parametrize(
    ("isolation", "spoil", "mend"),
    [
        ("warm", fill, empty),
        pytest.param("isolated", make_bank_read_only, make_bank_writable, marks=pytest.mark.strain),
    ],
)
def test_a_study_whose_disk_fails_halts_and_goes_on_once_it_is_mended(
    make_study, tutti_command, small_disk, isolation, spoil, mend
):
    study = make_study(
        small_disk,
        training__num_train_epochs=15,
        search={"trials": 1, "scheduler": "none"},
        resources={"concurrent_trials": 1, "isolation": isolation},
    )
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: max(study.resume_epochs("t0000"), default=0) >= 3, what="a trial under way")
    spoil(study)
    assert running.wait() == 1, running.output
    mend(study)
    assert running.left_behind() == []
    assert "Traceback" not in running.output
    [error] = [line for line in running.output.splitlines() if line.startswith("error: ")]
    assert str(small_disk) in error
    assert "--resume" in error
    assert {record.state for record in study.records()} == {TrialState.RUNNING}

    again = tutti_command("tune", study.file, "--resume")
    assert again.wait() == 0, again.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED]
    epochs = study.reported_epochs("t0000")
    assert epochs == sorted(set(epochs)), "an epoch was trained twice"
    assert {run.info.status for run in study.runs().values()} == {"FINISHED"}
