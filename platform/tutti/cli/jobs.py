"""``tutti submit``: runs a study as a job on a Ray cluster."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tutti.cli import stores
from tutti.cli.console import console, program
from tutti.cli.tune import Overrides, Resume, Trials, overrides_without_passwords, parse_trials
from tutti.errors import Fault, StudyError, TrialError


def submit(
    study_file: Annotated[Path | None, typer.Argument(metavar="STUDY.yaml", help="The study file.")] = None,
    address: Annotated[str, typer.Option(help="The cluster's dashboard.")] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the log until the job ends.")] = False,
    trials: Trials = None,
    overrides: Overrides = None,
    resume: Resume = False,
    status: Annotated[str | None, typer.Option("--status", metavar="ID", help="Show the status of a job.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="ID", help="Stop a job.")] = None,
) -> None:
    """Runs a study as a job on a Ray cluster: `tutti tune`, there.

    `storage.path` of the study file must name a folder that every node sees.

    Example: `tutti submit study.yaml --set storage.path=/mnt/tutti/studies --wait`
    """
    from tutti.cluster import submit as jobs

    arguments = [argument for argument in (study_file, status, stop) if argument is not None]
    if len(arguments) != 1 or not arguments[0]:  # an unset shell variable gives an empty ID
        got = "several of them" if len(arguments) > 1 else "an empty ID" if arguments else "none of them"
        rule = "be given one of STUDY.yaml, --status ID and --stop ID"
        raise StudyError(Fault("tutti submit", rule, got, "see `tutti submit --help`"))
    if status or stop:
        of_new_jobs = {"--wait": wait, "--trials": trials, "--set": overrides, "--resume": resume}
        stores.check_left_out(of_new_jobs, beside="--status" if status else "--stop")
    if status:
        console.print(jobs.job_status(status, address=address))
        return
    if stop:
        console.print("stopped" if jobs.stop_job(stop, address=address) else "it had ended already")
        return
    assert study_file is not None
    settings, options = overrides or [], ["--resume"] if resume else []
    if trials is not None:
        count, is_more = parse_trials(trials)
        if is_more:  # than there are, which only the cluster knows
            options = [*options, "--trials", trials]
        else:
            settings = [*settings, f"search.trials={count}"]
    study, folder = stores.read_study_file(study_file, overrides=settings, shared=True)
    command = f"{program()} submit {shlex.join([str(study_file), '--address', address])}"
    submitted = json.dumps((command, overrides_without_passwords(settings)))
    job = jobs.submit_study(study, address=address, options=options, submitted=submitted)
    console.print(f"Job {job}, study folder {folder.path}")
    if not wait:
        console.print(f"Show its status with `{program()} submit --status {job} --address {shlex.quote(address)}`.")
        return
    try:
        outcome = jobs.follow_job(job, address=address, show=lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        stop = f"{program()} submit --stop {job} --address {shlex.quote(address)}"
        console.print(f"The job continues; stop it with `{stop}`.")
        raise
    console.print(f"Job {job}: {jobs.job_status(job, address=address)}")
    if outcome != "SUCCEEDED":
        remedy = "correct what the log names" if outcome == "FAILED" else "go on with --resume"
        raise TrialError(Fault(f"the job {job}", "succeed", f"{outcome} (its log is above)", remedy))
