"""What a trial loses by saving its states and checkpoints to object storage, compared with a local disk.

    python benchmarks/storage.py [--quick] [--json FILE]

A trial fine-tunes MiniLM on SST-2, as one of a study on a path and as one of a study on an S3-compatible server (moto,
in a process of its own on this machine, which takes processor time from the trial where no core is to spare). Both save
after each epoch: weights, optimizer state and, if it is better, the checkpoint. Contenders alternate in reversing
order.

* loss: the trial's seconds on object storage, by the median, over those on the disk, minus 1.
* wait_share: the part of its seconds in which it waits for an upload: for its last one, and if two are pending.
* stored_mb: what a trial sends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from unittest.mock import patch

import requests
import shared
from shared import BACKBONE, Target
from studies import sst2

from tutti import mirror
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.copies import working_copies
from tutti.objects import Objects
from tutti.orchestration.before.rows import prepare_rows
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.trial_listener import TrialListener

TARGETS = {"loss": Target(0.05, most=True)}


@contextmanager
def server() -> Iterator[str]:
    """Starts an S3-compatible server and yields the address of a bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": endpoint}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(600):
            with suppress(requests.exceptions.ConnectionError):
                requests.put(f"{endpoint}/bucket", timeout=60).raise_for_status()
                break
            time.sleep(0.1)
        try:
            yield "s3://bucket/studies"
        finally:
            process.kill()


def trial_seconds(study: StudyConfig, folder: StudyFolder) -> tuple[float, float]:
    """Trains a trial; its seconds, and those in which it waited for its files to be stored."""
    waited = 0.0
    push = mirror.push

    def timed(path: Path, *, wait: bool = True) -> None:
        nonlocal waited
        began = time.perf_counter()
        push(path, wait=wait)
        waited += time.perf_counter() - began

    prepare_rows(study, folder)
    mirror.push(folder.path)
    began = time.perf_counter()
    with patch.object(mirror, "push", timed), mirror.held(folder.trial("t0000").path, release=True):
        fine_tune_once(
            study,
            folder,
            key="t0000",
            number=0,
            parameters={"learning_rate": 5e-5},
            listener=TrialListener(),
            main=True,
            smaller_batches=False,
        )
    return time.perf_counter() - began, waited


def main() -> None:
    parser = shared.arguments(__doc__, quick="few rows, two epochs, one repetition")
    options = parser.parse_args()
    shared.quiet()
    rows, epochs, repeats = (400, 2, 1) if options.quick else (6000, 2, 2)
    seconds: dict[str, list[float]] = {"disk": [], "objects": []}
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as temporary, server() as address:
        folder = Path(temporary)
        os.environ["TUTTI_CACHE"] = str(folder / "cache")
        study = StudyConfig.model_validate(
            {
                "study": "storage",
                "backbone": BACKBONE,
                "tasks": {"SST-2": sst2(options.data, folder, rows=rows)},
                "training": {"num_train_epochs": epochs, "max_length": 64, "head_dropout": 0.0},
            }
        )
        places = {"disk": folder / "studies", "objects": working_copies(address)}
        trial_seconds(study.model_copy(update={"study": "first"}), StudyFolder(places["disk"] / "first"))  # encodes
        for repeat in range(repeats):
            for name in [*places][:: 1 if repeat % 2 else -1]:
                took, waited = trial_seconds(study, StudyFolder(places[name] / f"storage-{repeat}"))
                seconds[name].append(took)
                if name == "objects":
                    shares.append(waited / took)
        sizes = mirror.sizes(StudyFolder(places["objects"] / "storage-0").trial("t0000").path)
        assert Objects(address).folders()
    values = {
        "disk_seconds": median(seconds["disk"]),
        "object_seconds": median(seconds["objects"]),
        "loss": median(seconds["objects"]) / median(seconds["disk"]) - 1,
        "wait_share": median(shares),
        "stored_mb": sum(sizes.values()) / 1e6,
    }
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
