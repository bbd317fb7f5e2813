"""Runs on the cluster before ``tutti tune``: keeps the files that came with a job where every node sees them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tutti.errors import StorageError
from tutti.files import whole_folder

FILES = Path("files")  # within the job's working directory
SUBMITTED = "TUTTI_SUBMITTED"  # the job's variable that tells how it was submitted: [command, overrides] in JSON


def keep(files: Path, target: Path) -> None:
    """Copies the job's files to ``target``, whose name tells their content, unless an earlier job has.

    Raises:
        StorageError: if they cannot be copied; nothing is there then.
    """
    if files.is_dir() and not target.exists():
        with whole_folder(target) as temporary:
            shutil.copytree(files, temporary, dirs_exist_ok=True)


if __name__ == "__main__":
    try:
        keep(FILES, Path(sys.argv[1]))
    except StorageError as error:
        sys.exit("\n".join(f"error: {fault}" for fault in error.faults))
