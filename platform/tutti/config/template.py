"""Templates of texts, such as ``{title} [SEP] {body}``: columns of a table in braces, between words of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter


def parsed(template: str) -> list[tuple[str, str | None]]:
    """Each piece of literal text with the column that follows it, or None at the end.

    ``{{`` and ``}}`` are literal braces, as in ``str.format``. All else in braces is a column's name, as it is written.

    Raises:
        ValueError: with what a template must be, if this is none.
    """
    pieces: list[tuple[str, str | None]] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(template):
            if name is not None:  # a colon or an exclamation mark is part of the name
                name += (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            pieces.append((literal, name))
    except ValueError as error:
        raise ValueError(f"have columns in braces, and literal braces twice: {{{{ and }}}}; got {error}") from error
    if not all(name is None or name.strip() for _, name in pieces):
        raise ValueError("name a column in each pair of braces, such as {title}")
    if not any(name for _, name in pieces):
        raise ValueError("name at least one column in braces, such as {title}")
    return pieces


def columns_of(template: str) -> list[str]:
    """The columns that a template names, each once, in order."""
    return list(dict.fromkeys(name for _, name in parsed(template) if name is not None))


def exchanged(template: str, first: str, second: str) -> str:
    """The template with two columns in each other's places; as it is where it does not name both."""
    others = {first: second, second: first}
    if not others.keys() <= {*columns_of(template)}:
        return template
    pieces = ((literal.replace("{", "{{").replace("}", "}}"), name) for literal, name in parsed(template))
    return "".join(literal + ("" if name is None else f"{{{others.get(name, name)}}}") for literal, name in pieces)


def filled(template: str, cells: Mapping[str, Sequence[str]]) -> list[str]:
    """The text of each row. That of a row whose cells are all blank is empty, whatever the template adds to them.

    Args:
        cells: the cells of each column that the template names.
    """
    pieces, columns = parsed(template), [cells[name] for name in columns_of(template)]
    places = {name: place for place, name in enumerate(columns_of(template))}
    return [
        "".join(literal + ("" if name is None else row[places[name]]) for literal, name in pieces)
        if any(cell.strip() for cell in row)
        else ""
        for row in zip(*columns, strict=True)
    ]


def column_name(template: str) -> str:
    """The name of the column that holds a template's texts in files that Tutti writes: the template, on one line."""
    return " ".join(template.split())
