"""Runs on the cluster before ``tutti tune``: keeps the files that came with a job where every node sees them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tutti.errors import StorageError
from tutti.files import whole_folder

FILES = Path("files")  # within the job's working directory
STUDY_FILE, ARCHIVE = "study.json", "files.tgz"  # of a Kubernetes ConfigMap; the archive has all else
SUBMITTED = "TUTTI_SUBMITTED"  # the job's variable that tells how it was submitted: [command, overrides] in JSON


def keep(files: Path, target: Path) -> None:
    """Copies the job's files to ``target``, whose name tells their content, unless an earlier job has.

    Raises:
        StorageError: if they cannot be copied; nothing is there then.
    """
    if files.is_dir() and not target.exists():
        with whole_folder(target) as temporary:
            shutil.copytree(files, temporary, dirs_exist_ok=True)


def enter(mounted: Path) -> None:
    """Makes what a ConfigMap holds, mounted as a folder, the current folder of a job, as Ray's own jobs have it."""
    os.chdir(tempfile.mkdtemp(prefix="tutti-job-"))
    shutil.copy(mounted / STUDY_FILE, STUDY_FILE)
    shutil.unpack_archive(mounted / ARCHIVE, format="gztar", filter="data")


def main(target: str, mounted: str = "", *command: str) -> None:
    """Keeps the job's files in ``target``; of a job of Kubernetes then becomes ``tutti COMMAND``."""
    if mounted:
        enter(Path(mounted))
    keep(FILES, Path(target))
    if command:
        os.execv(sys.executable, [sys.executable, "-m", "tutti", *command])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except StorageError as error:
        sys.exit("\n".join(f"error: {fault}" for fault in error.faults))
