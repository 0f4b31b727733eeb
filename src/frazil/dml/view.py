"""The version of a table that a verb reads, and the settings of its write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pyiceberg.schema import Schema

from frazil.commit.operations import Base, OnDeleted, Write
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Filter
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import DataFile, Isolation, Snapshot
from frazil.read.arrow import ReadContext
from frazil.read.plan import FileTask, plan
from frazil.runtime import Runtime

Mode = Literal["merge-on-read", "copy-on-write"]
MERGE_ON_READ: Mode = "merge-on-read"
COPY_ON_WRITE: Mode = "copy-on-write"
GIB = 1 << 30
MAX_BYTES = "frazil.arrow.max-bytes"
"""The table property that says how much a verb may read in this process."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The part of a statement's earlier write that also holds on a newer version of the table (``redo.py``)."""

    write: Write
    left: frozenset[str]
    """The data files of the newer version that the statement has to be evaluated on."""
    stale: frozenset[str]
    """The data files of the earlier version whose part of the write was dropped."""

    @property
    def rows_of_the_caller(self) -> tuple[DataFile, ...]:
        return tuple(file for file in self.write.added if file.file_path not in self.write.copies)


@dataclass(frozen=True, slots=True)
class View:
    """One version of a table, seen through one of its branches."""

    storage: Storage
    runtime: Runtime
    metadata: TableMetadata
    branch: str
    table: str
    """Its name, for messages."""
    kept: Kept | None = None
    """None: the statement is evaluated on the whole table."""

    @property
    def snapshot(self) -> Snapshot | None:
        """None: the branch has no rows yet."""
        return self.metadata.head_snapshot(self.branch)

    @property
    def base(self) -> Base:
        return Base.of(self.snapshot)

    @property
    def schema(self) -> Schema:
        return self.metadata.schema()

    def bound(self, where: Filter) -> Filter:
        """The filter bound to this version's schema, which may have changed since it was parsed (rule P16)."""
        return where.rebound(self.schema)

    def tasks(self, where: Filter) -> tuple[FileTask, ...]:
        """The files to evaluate that may hold rows the filter selects, with all their statistics."""
        found = plan(self.metadata, self.snapshot, where, self.storage, all_statistics=True).tasks
        return found if self.kept is None else tuple(task for task in found if task.file.file_path in self.kept.left)

    def tasks_kept(self, where: Filter) -> tuple[FileTask, ...]:
        """The files whose rows an earlier evaluation has replaced: they are the same as then, and stay replaced."""
        if self.kept is None or not self.kept.write.moved:
            return ()
        moved = self.kept.write.moved
        return tuple(task for task in replace(self, kept=None).tasks(where) if task.file.file_path in moved)

    def check_size(self, tasks: Iterable[FileTask], verb: str) -> None:
        """Raises Unsupported when these are more bytes than one process should read for a verb."""
        total = sum(task.file.file_size_in_bytes for task in tasks)
        limit = _limit(self.metadata)
        if total > limit:
            raise Unsupported(
                f"{verb}() would read {total / GIB:.1f} GiB of {self.table} in this process",
                evidence=f"The limit is {limit / GIB:.1f} GiB",
                advice="Run it on Spark: connect(…, spark=frazil.spark()) or engine='spark'. Or narrow where, or set "
                f"the table property {MAX_BYTES}",
            )

    def check_source_size(self, size: int, verb: str) -> None:
        """Raises Unsupported when rows to be kept in memory have more bytes than one process should hold."""
        limit = _limit(self.metadata)
        if size > limit:
            raise Unsupported(
                f"{verb}() would hold more than {limit / GIB:.1f} GiB of source rows in this process",
                advice="Run it on Spark: pass a DataFrame. Or pass fewer rows at a time, or set the table property "
                f"{MAX_BYTES}",
            )

    def read_context(self, schema: Schema | None = None) -> ReadContext:
        """For rows in the current schema, or in a part of it."""
        return ReadContext.of(self.storage, self.metadata, self.schema if schema is None else schema)


def _limit(metadata: TableMetadata) -> int:
    text = metadata.properties.get(MAX_BYTES)
    if text is None:
        return 32 * GIB
    if not text.isdigit():
        raise InvalidInput(f"The table property {MAX_BYTES} must be a whole number, not {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Settings:
    """The caller's options for a write, the same for every verb."""

    isolation: Isolation = Isolation.SERIALIZABLE
    on_deleted: OnDeleted = "keep"
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """For the files: target-file-size-bytes and the like."""
