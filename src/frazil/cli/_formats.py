"""The formats of files with rows. Without Arrow, as every command loads this for its options."""

from __future__ import annotations

import enum
from pathlib import Path

from frazil.errors import InvalidInput


class RowFormat(enum.StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_SUFFIXES = {
    ".parquet": RowFormat.PARQUET,
    ".pq": RowFormat.PARQUET,
    ".csv": RowFormat.CSV,
    ".json": RowFormat.JSON,
    ".jsonl": RowFormat.JSON,
    ".ndjson": RowFormat.JSON,
    ".arrow": RowFormat.ARROW,
    ".arrows": RowFormat.ARROW,
    ".feather": RowFormat.ARROW,
    ".ipc": RowFormat.ARROW,
}


def format_of(path: Path, given: RowFormat | None) -> RowFormat:
    """The given format, or the one of the file's suffix (before a compression suffix)."""
    if given is not None:
        return given
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in (".gz", ".bz2", ".zst", ".lz4"):
        suffixes.pop()
    found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InvalidInput(
            f"The format of {path.name!r} cannot be determined from its name",
            advice=f"Pass --format {'|'.join(RowFormat)}",
        )
    return found
