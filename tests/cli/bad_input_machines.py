"""What the cluster, the databases or the machine cannot give a study."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bad_input_changes import Case, no_root_mount, small_disk, unmounted, write, yaml

KUBERNETES = "submit study.yaml --kubernetes --set storage.path=/studies"

MACHINES: dict[str, Sequence[Case]] = {
    "The cluster": (
        Case("nothing listens at the address", command="submit study.yaml --address http://127.0.0.1:9", code=1),
        Case(
            "the files are too large to travel",
            lambda folder: os.truncate(folder / "mood_pool.tsv", 120 * 2**20),
            "submit study.yaml",
        ),
        Case(
            "a study for the cluster names no shared folder",
            yaml("storage:\n  path: studies\n", ""),
            "submit study.yaml",
        ),
        Case(
            "MLflow's store of a study for the cluster is a file of this machine",
            yaml("search:\n", "tracking: {uri: 'sqlite:///mlflow.db'}\nsearch:\n"),
            "submit study.yaml",
        ),
        Case(
            "the address of Optuna's database is that of no server",
            yaml("  path: studies\n", "  path: studies\n  database: mysql://me:secret@db/optuna\n"),
        ),
        Case(
            "Optuna's database is away",
            yaml("  path: studies\n", "  path: studies\n  database: postgresql://me:secret@127.0.0.1:9/optuna\n"),
            code=1,
        ),
        Case(
            "Optuna and MLflow are to share a database",
            yaml(
                "  path: studies\n",
                "  path: studies\n  database: postgresql://me@127.0.0.1:9/all\n"
                "tracking: {uri: 'postgresql://you:secret@127.0.0.1:9/all'}\n",
            ),
        ),
        Case(
            "the address of MLflow has an unknown scheme",
            yaml("search:\n", "tracking: {uri: 'htpp://mlflow:5000'}\nsearch:\n"),
        ),
        Case("a study file and `--status` together", command="submit study.yaml --status raysubmit_1"),
        Case(
            "options of a new job beside `--status`",
            command="submit --status raysubmit_1 --wait --resume --trials 9 --set search.seed=1",
        ),
        Case("`--apply` without `--kubernetes`", command="submit study.yaml --apply"),
        Case("a study for Kubernetes does not say how many trials run at a time", command=KUBERNETES),
        Case(
            "a trial asks for more than the cluster has",
            yaml("search:\n", "resources: {cpus_per_worker: 4096}\nsearch:\n"),
            ray=True,
        ),
    ),
    "The machine": (
        Case("no space is left", small_disk("20k"), code=1, after=unmounted, missing=no_root_mount),
        Case("a file stands where the studies' folder should be", write("studies", "")),
        Case(
            "the studies' folder is the address of a server", yaml("  path: studies\n", "  path: ftp://host/studies\n")
        ),
        Case(
            "the address of a bucket has a password in it",
            yaml("  path: studies\n", "  path: s3://key:secret@bucket/studies\n"),
        ),
        Case("an ensemble is to be written to a bucket", command="ensemble studies/moods --out s3://bucket/vote"),
        Case(
            "the studies' folder lies on a read-only disk",
            small_disk("16k,ro"),
            code=1,
            after=unmounted,
            missing=no_root_mount,
        ),
    ),
}
