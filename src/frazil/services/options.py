"""The options of a rewrite of data files: Iceberg's names, its defaults where they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.errors import InvalidInput, Unsupported
from frazil.format.schemas import suggestion

MIB = 1024 * 1024
_TARGET = "target-file-size-bytes"
_FOR_FILES = (_TARGET, "compression-codec", "compression-level")
MEANINGLESS = (
    "max-concurrent-file-group-rewrites",
    "partial-progress.max-failed-commits",
    "compression-factor",
    "shuffle-partitions-per-file",
    "var-length-contribution",
    "max-output-size",
    "remove-dangling-deletes",
)
"""Accepted, and without effect: tuning of Iceberg's Spark jobs, and what is always done here."""
JOB_ORDERS = ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Checked options."""

    target: int = 512 * MIB
    smallest: int = 384 * MIB
    """A smaller file is rewritten."""
    largest: int = 921 * MIB
    """A larger file is rewritten."""
    min_input_files: int = 2
    max_group_bytes: int = 100 * 1024 * MIB
    max_group_files: int | None = None
    delete_files: int | None = 1
    """With so many delete files a file is rewritten; None: their number does not matter."""
    delete_ratio: float | None = None
    """With such a share of its rows deleted by position a file is rewritten; None: that does not matter."""
    rewrite_all: bool = False
    max_files: int | None = None
    output_spec_id: int | None = None
    job_order: str = "none"
    is_partial: bool = True
    """Groups are committed one after the other."""
    max_commits: int = 10
    for_files: Mapping[str, str] = field(default_factory=dict)
    """Of the Parquet writer."""


def rewrite_options(
    given: Mapping[str, Any], properties: Mapping[str, str], specs: Mapping[int, object], *, is_ordered: bool
) -> RewriteOptions:
    """The options that a caller gave. ``properties``: the table's, for the target size. Raises InvalidInput."""
    read = _Reader({name: str(value) for name, value in given.items()})
    target = read.whole(_TARGET) or _from_table(properties)
    smallest = read.whole("min-file-size-bytes", least=0)
    largest = read.whole("max-file-size-bytes")
    by_files = read.whole("delete-file-threshold")
    by_ratio = read.share("delete-ratio-threshold")
    found = RewriteOptions(
        target=target,
        smallest=target * 3 // 4 if smallest is None else smallest,
        largest=target * 9 // 5 if largest is None else largest,
        min_input_files=read.whole("min-input-files") or 2,
        max_group_bytes=read.whole("max-file-group-size-bytes") or 100 * 1024 * MIB,
        max_group_files=read.whole("max-file-group-input-files"),
        # Without a threshold every file with deleted rows is rewritten, so that every engine can read the table.
        delete_files=1 if by_files is None and by_ratio is None else by_files,
        delete_ratio=0.3 if by_ratio is None and by_files is not None else by_ratio,
        rewrite_all=read.flag("rewrite-all", default=is_ordered),
        max_files=read.whole("max-files-to-rewrite"),
        output_spec_id=read.whole("output-spec-id", least=0),
        job_order=read.one_of("rewrite-job-order", JOB_ORDERS, "none"),
        is_partial=read.flag("partial-progress.enabled", default=True),
        max_commits=read.whole("partial-progress.max-commits") or 10,
        for_files={name: read.given[name] for name in _FOR_FILES if name in read.given},
    )
    if not read.flag("use-starting-sequence-number", default=True):
        raise Unsupported(
            "use-starting-sequence-number=false is not supported",
            advice="Copies always have the age of the snapshot that was read; otherwise deletes would be lost",
        )
    read.refuse_unknown()
    if not found.smallest <= found.target <= found.largest:
        raise InvalidInput(
            f"min-file-size-bytes ({found.smallest}), {_TARGET} ({found.target}) and max-file-size-bytes "
            f"({found.largest}) must be in this order"
        )
    if found.output_spec_id is not None and found.output_spec_id not in specs:
        raise InvalidInput(
            f"The table has no partition spec {found.output_spec_id}", evidence=f"It has {sorted(specs)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Checked options of a rewrite of position deletes."""

    min_input_files: int = 2
    rewrite_all: bool = False


_OF_DATA_FILES = (
    "target-file-size-bytes",
    "min-file-size-bytes",
    "max-file-size-bytes",
    "max-file-group-size-bytes",
    "partial-progress.enabled",
    "partial-progress.max-commits",
    "rewrite-job-order",
)


def delete_options(given: Mapping[str, Any]) -> DeleteOptions:
    """The options that a caller gave. A delete file is small, so those about sizes have no effect."""
    read = _Reader({name: str(value) for name, value in given.items()}, also=_OF_DATA_FILES)
    found = DeleteOptions(read.whole("min-input-files") or 2, read.flag("rewrite-all", default=False))
    read.refuse_unknown()
    return found


def _from_table(properties: Mapping[str, str]) -> int:
    text = properties.get(f"write.{_TARGET}")
    return 512 * MIB if text is None else _whole(text, f"write.{_TARGET}", 1)


class _Reader:
    """Reads options by name, and knows which were asked for."""

    def __init__(self, given: Mapping[str, str], also: tuple[str, ...] = ()) -> None:
        self.given = given
        self._known: set[str] = {*_FOR_FILES, *MEANINGLESS, *also}

    def whole(self, name: str, least: int = 1) -> int | None:
        text = self._read(name)
        return None if text is None else _whole(text, name, least)

    def share(self, name: str) -> float | None:
        text = self._read(name)
        return None if text is None else _share(text, name)

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._lower(name)
        if found not in (None, "true", "false"):
            raise InvalidInput(f"The option {name} is {found!r}", advice="Give true or false")
        return default if found is None else found == "true"

    def one_of(self, name: str, known: tuple[str, ...], default: str) -> str:
        found = self._lower(name)
        if found is not None and found not in known:
            raise InvalidInput(f"The option {name} is {found!r}", advice=f"Give one of {', '.join(known)}")
        return default if found is None else found

    def refuse_unknown(self) -> None:
        for name in self.given:
            if name not in self._known:
                raise InvalidInput(f"The rewrite has no option {name!r}", advice=suggestion(name, sorted(self._known)))

    def _lower(self, name: str) -> str | None:
        text = self._read(name)
        return None if text is None else text.lower()

    def _read(self, name: str) -> str | None:
        self._known.add(name)
        return self.given.get(name)


def _whole(text: str, name: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidInput(f"The option {name} is {text!r}", advice=f"Give a whole number of at least {least}")
    return number


def _share(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise InvalidInput(f"The option {name} is {text!r}", advice="Give a share above 0 and up to 1, such as 0.3")
    return number
