"""Every bad input that users are told about, as one table. Run as a script it writes docs/bad-input.md anew."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bad_input_changes import Case
from bad_input_commands import COMMANDS
from bad_input_files import FILES
from bad_input_kinds import KINDS
from bad_input_machines import MACHINES
from bad_input_predict import PREDICT
from bad_input_rounds import ROUNDS
from bad_input_run import Result, Templates, make_templates, run
from bad_input_search import SEARCH
from bad_input_settings import SETTINGS
from bad_input_texts import TEXTS
from bad_input_tokens import TOKENS
from bad_input_training import TRAINING
from bad_input_votes import VOTES

PAGE = Path(__file__).parents[2] / "docs" / "bad-input.md"
SECTIONS = (
    FILES | KINDS | TEXTS | TOKENS | SETTINGS | COMMANDS | MACHINES | SEARCH | TRAINING | VOTES | ROUNDS | PREDICT
)
HEAD = """\
# What Tutti says to bad input

Every message says what is wrong and where, the rule, what was got, and what to do; all faults of a file come at once.
A study that could not start leaves nothing behind that binds the next one: correct the input and run the command again.
The exit code is 2 for a mistake in the input, and 1 for what is wrong with the machine or the cluster.

`DIR` is the folder of the study file, a file of one task with three classes.
"""


def row_of(case: Case, message: str) -> str:
    """The case as a row of the page."""
    shown = message.replace("|", "\\|").replace("<", "&lt;").replace("\n", "<br>")
    return f"| {case.what} | `{case.command}` | {case.code} | {shown} |"


def page_of(rows: Mapping[str, str]) -> str:
    """The page docs/bad-input.md, from the row of each case."""
    lines = [HEAD]
    for section, members in SECTIONS.items():
        lines += [f"## {section}", "", "| what is wrong | command | exit | message |", "|---|---|---|---|"]
        lines += [rows[case.what] for case in members if case.what in rows]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def rows_on(page: str) -> dict[str, str]:
    """The rows of a page, by mistake."""
    rows = [line for line in page.splitlines() if re.match(r"\| (?!what)", line)]
    return {line.split(" | ")[0].removeprefix("| "): line for line in rows}


def cases() -> Iterator[tuple[str, Case]]:
    """Every case with its section."""
    for section, members in SECTIONS.items():
        yield from ((section, case) for case in members)


def run_case(case: Case, folder: Path, templates: Templates) -> Result:
    """Breaks a copy of the valid study as the case says, in ``folder``, and runs the command on it."""
    shutil.copytree(case.template(templates), folder, symlinks=True)
    case.change(folder)
    try:
        return run(folder, case.command, env={name: str(folder / place) for name, place in case.env.items()})
    finally:
        case.after(folder)


def main() -> None:
    """Rewrites the page; keeps the rows of cases that cannot be reproduced on this machine."""
    rows = rows_on(PAGE.read_text(encoding="utf8")) if PAGE.is_file() else {}
    with tempfile.TemporaryDirectory() as place:
        templates = make_templates(Path(place) / "templates")
        for number, (_, case) in enumerate(cases()):
            if reason := case.missing():
                print(f"kept as it is: {case.what}: {reason}")
            else:
                rows[case.what] = row_of(case, run_case(case, Path(place) / str(number), templates).message)
    PAGE.write_text(page_of(rows), encoding="utf8")


if __name__ == "__main__":
    main()
