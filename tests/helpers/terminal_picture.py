"""What a terminal shows of a study now: ``python tests/helpers/terminal_picture.py STUDY run|trials out.svg``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

import tutti
from tutti.records import best_trial
from tutti.search.objectives import pareto_front
from tutti.workflows.progress import best_so_far, summary
from tutti.workflows.trials_table import outcome_table, ranked, trials_table

_WIDTH = 100


def picture(study: str, what: str, out: Path) -> None:
    """Writes what ``tutti tune`` (``run``) or ``tutti trials`` shows."""
    opened = tutti.open(study)
    records, config = opened.records(), opened.config
    console = Console(file=io.StringIO(), record=True, width=_WIDTH, soft_wrap=True, highlight=False, markup=False)
    tasks, running = [*config.tasks], what == "run"
    best = best_so_far(records) if running else best_trial(records)
    said = summary(records, total=config.search.trials, best=best)
    console.print("$ tutti tune study.yaml" if running else f"$ tutti trials {config.study}")
    if running:
        front = pareto_front(records, config.search.objectives)
        options = {"width": _WIDTH, "title": said, "front": front, "details": False}
        console.print(trials_table(records, tasks=tasks, best=best, **options))
    else:
        console.print(outcome_table(config, ranked(records, tasks=tasks), best=best, width=_WIDTH))
        console.print(said)
    out.write_text(console.export_svg(title=f"tutti {'tune' if running else 'trials'}"), encoding="utf-8")


if __name__ == "__main__":
    picture(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
