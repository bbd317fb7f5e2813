"""What the cluster, the databases or the machine cannot give a study."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bad_input_changes import (
    Case,
    no_root_mount,
    small_disk,
    unmounted,
    write,
    yaml,
)

MACHINES: dict[str, Sequence[Case]] = {
    "The cluster": (
        Case(
            "nothing listens at the address",
            ["the Ray cluster at http://127.0.0.1:9", "--address"],
            command="submit study.yaml --address http://127.0.0.1:9",
            code=1,
        ),
        Case(
            "the files are too large to travel",
            ["at most 100 MiB", "mood_pool.tsv (120 MiB)", "storage.path"],
            lambda folder: os.truncate(folder / "mood_pool.tsv", 120 * 2**20),
            "submit study.yaml",
        ),
        Case(
            "a study for the cluster names no shared folder",
            ["study.yaml: storage.path must name the folder", "set `storage.path` to a folder that every node sees"],
            yaml("storage:\n  path: studies\n", ""),
            "submit study.yaml",
        ),
        Case(
            "MLflow's store of a study for the cluster is a file of this machine",
            ["tracking.uri must name an MLflow server", "got sqlite:///DIR/mlflow.db", "or leave it out"],
            yaml("search:\n", "tracking: {uri: 'sqlite:///mlflow.db'}\nsearch:\n"),
            "submit study.yaml",
        ),
        Case(
            "the address of Optuna's database is that of no server",
            ["storage.database must be the address of a PostgreSQL server's database", "got the scheme 'mysql'"],
            yaml("  path: studies\n", "  path: studies\n  database: mysql://me:secret@db/optuna\n"),
        ),
        Case(
            "the port of Optuna's database is no number",
            ["storage.database must name a host, and a port in digits", "postgresql://USER@HOST:5432/DATABASE"],
            yaml("  path: studies\n", "  path: studies\n  database: postgresql://me@host:abc/optuna\n"),
        ),
        Case(
            "Optuna's database is away",
            ["database postgresql://me:***@127.0.0.1:9/optuna must be read and written", "Connection refused"],
            yaml("  path: studies\n", "  path: studies\n  database: postgresql://me:secret@127.0.0.1:9/optuna\n"),
            code=1,
        ),
        Case(
            "Optuna and MLflow are to share a database",
            ["tracking.uri must be another database than storage.database", "make a second database"],
            yaml(
                "  path: studies\n",
                "  path: studies\n  database: postgresql://me@127.0.0.1:9/all\n"
                "tracking: {uri: 'postgresql://you:secret@127.0.0.1:9/all'}\n",
            ),
        ),
        Case(
            "the address of MLflow has half a host",
            ["tracking.uri must name a host, and a port in digits", "write it like http://HOST:5000"],
            yaml("  path: studies\n", "  path: studies\ntracking: {uri: 'http://['}\n"),
        ),
        Case(
            "the address of MLflow has an unknown scheme",
            ["tracking.uri must be the address of an MLflow store", "the scheme 'htpp'", "did you mean 'http'"],
            yaml("search:\n", "tracking: {uri: 'htpp://mlflow:5000'}\nsearch:\n"),
        ),
        Case(
            "a study file and `--status` together",
            ["one of STUDY.yaml, --status ID and --stop ID", "several of them"],
            command="submit study.yaml --status raysubmit_1",
        ),
        Case(
            "options of a new job beside `--status`",
            [
                "--wait must be left out with --status; got --wait",
                "--trials must be left out with --status; got 9",
                "--set must be left out with --status; got search.seed=1",
                "--resume must be left out with --status",
            ],
            command="submit --status raysubmit_1 --wait --resume --trials 9 --set search.seed=1",
        ),
        Case(
            "an option of a new job beside `--stop`",
            ["--wait must be left out with --stop"],
            command="submit --stop raysubmit_1 --wait",
        ),
        Case(
            "a trial asks for more than the cluster has",
            ["resources must fit the Ray cluster", "4096 CPUs", "lower them"],
            yaml("search:\n", "resources: {cpus_per_worker: 4096}\nsearch:\n"),
            ray=True,
        ),
        Case(
            "neither a study file nor a job",
            ["one of STUDY.yaml, --status ID and --stop ID", "none of them"],
            command="submit",
        ),
    ),
    "The machine": (
        Case(
            "no space is left",
            ["No space left on device", "free some space"],
            small_disk("20k"),
            code=1,
            after=unmounted,
            missing=no_root_mount,
        ),
        Case(
            "a file stands where the studies' folder should be",
            ["DIR/studies must be a folder", "got a file", "`storage.path:`"],
            write("studies", ""),
        ),
        Case(
            "the studies' folder is the address of a bucket",
            ["storage.path must be a path", "got the address s3://bucket/studies;", "mount that storage"],
            yaml("  path: studies\n", "  path: s3://bucket/studies\n"),
        ),
        Case(
            "an ensemble is to be written to a bucket",
            ["--out must be a path", "got the address s3://bucket/vote;"],
            command="ensemble studies/moods --out s3://bucket/vote",
        ),
        Case(
            "a limit of no room at all for checkpoints",
            ["storage.max_gigabytes must be above 0"],
            yaml("  path: studies\n", "  path: studies\n  max_gigabytes: 0\n"),
        ),
        Case(
            "the studies' folder lies on a read-only disk",
            ["Read-only file system", "make it writable or name another folder"],
            small_disk("16k,ro"),
            code=1,
            after=unmounted,
            missing=no_root_mount,
        ),
    ),
}
