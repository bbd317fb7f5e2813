"""``tutti submit`` runs a study, or a pretraining file, as a job on a Ray cluster; ``tutti jobs`` lists such jobs."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tutti.cli.options import Overrides, Resume, Trials
from tutti.config.pretraining import is_pretraining_file
from tutti.copies import address_of
from tutti.errors import Fault, StudyError, TrialError, check_left_out
from tutti.workflows.console import console, program
from tutti.workflows.study import Study
from tutti.workflows.submit import Job, submit_pretraining
from tutti.workflows.submit import jobs as list_jobs
from tutti.workflows.tune import parse_trials

if TYPE_CHECKING:
    from tutti.cluster.kubernetes import RayJob

Address = Annotated[str, typer.Option(help="The cluster's dashboard.")]


def submit(
    study_file: Annotated[Path | None, typer.Argument(metavar="STUDY.yaml", help="The study file.")] = None,
    address: Address = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the log until the job ends.")] = False,
    trials: Trials = None,
    overrides: Overrides = None,
    resume: Resume = False,
    status: Annotated[str | None, typer.Option("--status", metavar="ID", help="Show the status of a job.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="ID", help="Stop a job.")] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Print the study as a RayJob of KubeRay, on a cluster of its own.")
    ] = False,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Of its pods, with Tutti; by default tutti:latest.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Create the RayJob with kubectl instead.")] = False,
) -> None:
    """Runs a study as a job on a Ray cluster: `tutti tune`, there.

    `storage.path` of the study file must name a folder that every node sees, or object storage. A pretraining file may
    take its place, with `out` in such a folder: it is pretrained there, or tuned if it has a search space.

    Example: `tutti submit study.yaml --set storage.path=/mnt/tutti/studies --wait`
    """
    arguments = [argument for argument in (study_file, status, stop) if argument is not None]
    if len(arguments) != 1 or not arguments[0]:  # an unset shell variable gives an empty ID
        got = "several of them" if len(arguments) > 1 else "an empty ID" if arguments else "none of them"
        rule = "be given one of STUDY.yaml, --status ID and --stop ID"
        raise StudyError(Fault("tutti submit", rule, got, "see `tutti submit --help`"))
    if status or stop:
        of_new_jobs = {"--wait": wait, "--trials": trials, "--set": overrides, "--resume": resume}
        of_new_jobs |= {"--kubernetes": kubernetes, "--image": image, "--apply": apply}
        check_left_out(of_new_jobs, beside="--status" if status else "--stop")
    if status:
        console.print(Job(status, address).status())
        return
    if stop:
        console.print("stopped" if Job(stop, address).stop() else "it had ended already")
        return
    assert study_file is not None
    check_left_out(
        {"--wait": wait} if kubernetes else {"--image": image, "--apply": apply},
        beside="--kubernetes" if kubernetes else "a job on a cluster that is there (without --kubernetes)",
    )
    command = f"{program()} submit {shlex.join([str(study_file), '--address', address])}"
    total, more = (None, trials) if trials and parse_trials(trials)[1] else (trials, None)
    settings = [*(overrides or ()), *([f"search.trials={int(total)}"] if total else ())]
    if kubernetes:
        if is_pretraining_file(study_file):
            rule = "be a study file with --kubernetes"
            raise StudyError(Fault(str(study_file), rule, "a pretraining file", "submit it to a RayCluster"))
        again = f"{program()} submit {shlex.quote(str(study_file))} --kubernetes{' --apply' * apply}"
        again += f" --image {shlex.quote(image)}" if image else ""
        of_kubernetes = Study(study_file, overrides=settings, shared=True).ray_job(
            image=image or "tutti:latest", trials=more, resume=resume, command=again
        )
        _on_kubernetes(of_kubernetes, apply=apply)
        return
    if is_pretraining_file(study_file):
        job = submit_pretraining(
            study_file, address=address, overrides=settings, trials=more, resume=resume, command=command
        )
        _follow(job, "the job writes what `out` names", wait=wait)
        return
    study = Study(study_file, overrides=settings, shared=True)
    job = study.submit(address=address, trials=more, resume=resume, command=command)
    _follow(job, f"study folder {address_of(study.folder.path) or study.folder.path}", wait=wait)


def _on_kubernetes(job: RayJob, *, apply: bool) -> None:
    """Prints the manifest, to pipe into ``kubectl create -f -``, or creates it and says what to type next."""
    if not apply:
        typer.echo(job.manifest, nl=False)
        return
    console.print(job.apply().rstrip())
    console.print(f"Show its log with `kubectl logs -f job/{job.name}`, once its cluster is there.")
    console.print(f"Stop it with `kubectl delete rayjob,configmap {job.name}`.")


def _follow(job: Job, place: str, *, wait: bool) -> None:
    """Names the job and, to ``wait``, shows its log until it ends."""
    at = shlex.quote(job.address)
    console.print(f"Job {job.id}, {place}")
    if not wait:
        console.print(f"Show its status with `{program()} submit --status {job.id} --address {at}`.")
        return
    try:
        outcome = job.follow(lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        stop = f"{program()} submit --stop {job.id} --address {at}"
        console.print(f"The job continues; stop it with `{stop}`.")
        raise
    console.print(f"Job {job.id}: {job.status()}")
    if outcome != "SUCCEEDED":
        remedy = "correct what the log names" if outcome == "FAILED" else "go on with --resume"
        raise TrialError(Fault(f"the job {job.id}", "succeed", f"{outcome} (its log is above)", remedy))


def jobs(
    address: Address = "http://127.0.0.1:8265",
    as_json: Annotated[bool, typer.Option("--json", help="One object for each job.")] = False,
) -> None:
    """Lists the studies that were submitted to a Ray cluster: state, hours, who did it, and how far they are.

    Example: `tutti jobs --address http://127.0.0.1:8265`
    """
    found = list_jobs(address=address)
    if as_json:
        typer.echo(json.dumps([asdict(job) | {"hours": job.hours} for job in found], indent=2, default=str))
        return
    table = Table("study", "state", "hours", "by", "progress", "job", box=None)
    for job in found:
        hours = "" if job.hours is None else f"{job.hours:.1f}"
        table.add_row(*map(escape, (job.study, job.state.lower(), hours, job.by, job.progress, job.id)))
    console.print(table if found else "Nobody has submitted a study to this cluster.")
