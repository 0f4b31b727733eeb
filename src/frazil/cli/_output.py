"""Output as JSON for programs and as tables for people. Nothing else in the command line writes to stdout."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    import pyarrow as pa

# Wide enough that a pipe never cuts a value: only a terminal has a width.
_PIPE_WIDTH = 100_000


def print_json(value: Any) -> None:
    """One JSON document and a newline."""
    # rich would colour and wrap it.
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    sys.stdout.write(orjson.dumps(plain(value), default=str, option=options).decode() + "\n")


def plain(value: Any) -> Any:
    """A value as JSON has it: decimals, uuids and times as text, bytes in hexadecimal, times in ISO 8601."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case str() | bool() | int() | float() | None:
            return value
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID():
            return str(value)
        case Iterable():
            return [plain(each) for each in value]
        case _:
            return str(value)


def console() -> Console:
    """A console for people, on stdout."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else _PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_grid(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: frozenset[str] = frozenset()) -> None:
    """Rows under headings; ``right`` names the columns of numbers."""
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(Text(printable(column)), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(cell(value) for value in row))
    console().print(grid)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one line each."""
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), cell(value))
    console().print(grid)


def print_heading(text: str) -> None:
    console().print(Text(f"\n{text}", style="bold"))


def print_text(text: str) -> None:
    """Text without markup and without wrapping, so that it can be copied."""
    console().print(Text(text), soft_wrap=True)


def cell(value: Any) -> Text:
    return Text("") if value is None else Text(printable(_text(value)))


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return orjson.dumps(plain(value), default=str).decode()
    found = plain(value)
    return found if isinstance(found, str) else str(found)


def printable(text: str) -> str:
    """Text without control characters: a table's values must not steer a terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def iso_time(milliseconds: int) -> str:
    """An Iceberg timestamp as ISO 8601 in UTC; beyond Python's calendar, the milliseconds."""
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, tz=dt.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values; times beyond Python's calendar (years 1 to 9999) as text."""
    try:
        return rows.to_pylist()
    except (ValueError, OverflowError):
        columns = [[_python_value(each) for each in column] for column in rows.columns]
        return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_value(scalar: Any) -> Any:
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {name: _python_value(scalar[name]) for name in scalar}
    if pa.types.is_map(kind):
        return [(_python_value(pair["key"]), _python_value(pair["value"])) for pair in scalar.values]
    if pa.types.is_nested(kind):
        return [_python_value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.cast(pa.string()).as_py()


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr while it is a terminal; otherwise nothing, so that logs stay short."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
