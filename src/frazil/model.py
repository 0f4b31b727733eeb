"""Frozen values that every part of the package shares. No I/O, and no behaviour beyond reading their own fields."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64

from frazil.errors import InvalidInput


class Isolation(enum.StrEnum):
    SERIALIZABLE = "serializable"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, order=True)
class Ident:
    """A table's full name: its namespace and its name."""

    namespace: tuple[str, ...]
    name: str

    @staticmethod
    def parse(name: str | tuple[str, ...] | Ident) -> Ident:
        """``"shop.events"``, ``("shop", "events")``, or with back-ticks if a name contains a dot: ``"shop.`a.b`"``."""
        if isinstance(name, Ident):
            return name
        parts = tuple(name) if isinstance(name, tuple | list) else _split_dotted(name)
        if len(parts) < 2 or not all(isinstance(p, str) and p for p in parts):
            raise InvalidInput(
                f"{name!r} is not a table name",
                advice="A table name has a namespace in front, as in 'shop.events'",
            )
        _check_levels(parts[:-1], name)
        _check_characters(parts, name)
        return Ident(parts[:-1], parts[-1])

    def __str__(self) -> str:
        return ".".join((*self.namespace, f"`{self.name}`" if "." in self.name else self.name))


def parse_namespace(name: str | tuple[str, ...]) -> tuple[str, ...]:
    """A namespace's levels, from ``"shop"``, ``"shop.eu"`` or ``("shop", "eu")``."""
    parts = tuple(name) if isinstance(name, tuple | list) else _split_dotted(name)
    if not parts or not all(isinstance(p, str) and p for p in parts):
        raise InvalidInput(f"{name!r} is not a namespace", advice="Name at least one level, as in 'shop' or 'shop.eu'")
    _check_levels(parts, name)
    _check_characters(parts, name)
    return parts


def _check_characters(parts: tuple[str, ...], name: object) -> None:
    if any(char == "`" or not char.isprintable() for part in parts for char in part):
        raise InvalidInput(f"The name {name!r} contains a back-tick or an unprintable character")


def _check_levels(levels: tuple[str, ...], name: object) -> None:
    # Iceberg's JDBC tables join the levels with dots, so a dot inside a level cannot be distinguished from a separator.
    bad = [level for level in levels if "." in level]
    if bad:
        raise InvalidInput(
            f"The namespace level {bad[0]!r} in {name!r} contains a dot, which catalogs take for a separator"
        )


def _split_dotted(text: str) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise InvalidInput(f"A name must be a string or a tuple of strings, not {type(text).__name__}")
    parts: list[str] = []
    current, quoted = "", False
    for char in text.strip():
        if char == "`":
            quoted = not quoted
        elif char == "." and not quoted:
            parts.append(current)
            current = ""
        else:
            current += char
    if quoted:
        raise InvalidInput(f"The name {text!r} opens a back-tick and does not close it")
    return (*parts, current)


PATH_FIELD, POSITION_FIELD = 2147483546, 2147483545
"""The specification's reserved ids of the columns of a position delete file."""


class Content(enum.IntEnum):
    """What a file contains; the numbers are the Iceberg specification's."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """One immutable file as a manifest describes it.

    Attribute names equal PyIceberg's ``DataFile``, so that its evaluators accept this value. Partition values are in
    Iceberg's internal form (days, micros, …: integers; decimals: Decimal; uuid and fixed: bytes or UUID as read).
    """

    file_path: str
    record_count: int
    file_size_in_bytes: int
    spec_id: int = 0
    partition: tuple[Any, ...] = ()
    content: Content = Content.DATA
    file_format: str = "PARQUET"
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] = ()
    equality_ids: tuple[int, ...] = ()
    sort_order_id: int | None = None
    referenced_data_file: str | None = None


class Status(enum.IntEnum):
    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A manifest's entry for one file. ``None``: inherited from the manifest list, as the specification says."""

    status: Status
    file: DataFile
    snapshot_id: int | None = None
    sequence_number: int | None = None
    file_sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """The range of one partition field over a manifest; names as PyIceberg's evaluators expect them."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest list's entry for one manifest."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int
    """0 = data, 1 = deletes."""
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files_count: int = 0
    existing_files_count: int = 0
    deleted_files_count: int = 0
    added_rows_count: int = 0
    existing_rows_count: int = 0
    deleted_rows_count: int = 0
    partitions: tuple[FieldSummary, ...] = ()
    key_metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table's rows."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str | None
    summary: Mapping[str, str] = field(default_factory=dict)
    schema_id: int | None = None

    @property
    def operation(self) -> str:
        return self.summary.get("operation", "unknown")


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that a rewrite copied as they were: ``length`` rows of the file ``source``, from its row ``first`` on."""

    source: str
    first: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """Where the rows of replaced files are now (rule P26). A row in neither of the two was deleted."""

    outputs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    """New file → the copied rows that make up the whole file, in its order."""
    changed: Mapping[str, BitMap64] = field(default_factory=dict)
    """Replaced file → its rows that are in another file with other values."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition as text, with the schema it was parsed with. Personal data: never in metadata or logs."""

    text: str
    schema_id: int
    case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a commit comes from. Short, and without personal data: it is recorded with the commit."""

    app: str
    """The application: ``connect(app=…)``, or its default."""
    host: str
    verb: str
    """The statement's kind: append, update, merge, compact, …"""
    started_ms: int
    """When the statement began, by its writer's clock."""


@dataclass(frozen=True, slots=True)
class SharedCommit:
    """One of the commits that a snapshot holds; several may share one (rule P17)."""

    commit_id: str
    rows: int
    files: int
    origin: Origin | None = None
    """None: it is not recorded."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The commit that caused a conflict. None: not known, as of many commits by other engines."""

    app: str | None = None
    host: str | None = None
    commit_id: str | None = None
    verb: str | None = None
    """The statement's kind (update, merge, compact, …); of another engine's commit Iceberg's operation."""
    committed_at: dt.datetime | None = None
    """In UTC."""

    def __str__(self) -> str:
        by = f" by {self.app}" if self.app else ""
        host = f" on {self.host}" if self.host else ""
        at = "" if self.committed_at is None else f" at {self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.verb or 'commit'}{by}{host}{at}"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What one snapshot did to the one before it."""

    snapshot_id: int
    sequence_number: int
    operation: str
    """Iceberg's word: append, overwrite, delete (rows are only deleted) or replace (the same rows in other files)."""
    added: tuple[Entry, ...] = ()
    """Data files, each with its data sequence number."""
    removed: tuple[DataFile, ...] = ()
    deletes: tuple[Entry, ...] = ()
    """Delete files added, each with its data sequence number."""
    removed_deletes: tuple[DataFile, ...] = ()
    is_delete: bool = False
    """Rows were only deleted: none of them was updated or replaced."""
    lineage_path: str | None = None
    """The sidecar that says where the rows of the removed files are now; None: it is not known."""
    predicate: Predicate | None = None
    """The condition of the deleted rows, if the writer recorded it."""
    commits: tuple[SharedCommit, ...] = ()
    """The commits that the snapshot holds, as far as they are recorded. Of those that share one, in the order of their
    files in ``added``."""
    committed_ms: int | None = None
    """The snapshot's time."""
    is_partial: bool = False
    """Some of its files are not included: they are in manifests that were not read."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Evidence that an operation cannot be rebased over another writer's commit."""

    check: str
    detail: str
    snapshot_id: int | None = None
    operation: str | None = None
    files: tuple[str, ...] = ()
    advice: str = ""
    winner: Winner | None = None
    """Whose commit it is; None: the conflict is not with one snapshot."""
    table: str = ""
    """The table, where the commit has several."""

    @property
    def evidence(self) -> str:
        """The table if there are several, the check, what it found, and in which files. The winner is not in it."""
        where = f"{self.table}: " if self.table else ""
        return f"{where}{self.check}: {self.detail}{_in_files(self.detail, self.files)}"

    @property
    def caused_by(self) -> str:
        """The winner and its snapshot; empty: the conflict is not with one snapshot."""
        if self.snapshot_id is None:
            return ""
        known = self.winner if self.winner is not None and self.winner.verb else self.operation or "commit"
        return f"{known}, snapshot {self.snapshot_id}"

    def __str__(self) -> str:
        return f"{self.evidence} ({self.caused_by})" if self.caused_by else self.evidence


def _in_files(detail: str, paths: tuple[str, ...]) -> str:
    """Names without folders, which may contain partition values. Not those that the detail has already."""
    names = [path.rpartition("/")[2] for path in paths]
    if not names or names[0] in detail:
        return ""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f": {names[0]}{more}"


@dataclass(frozen=True, slots=True)
class Expiry:
    """What an expiry removed: snapshots and refs from the metadata, and then the files that only they had."""

    snapshots: int = 0
    refs: int = 0
    data_files: int = 0
    position_delete_files: int = 0
    equality_delete_files: int = 0
    manifests: int = 0
    manifest_lists: int = 0
    statistics_files: int = 0
    metadata_files: int = 0
    """Earlier metadata files that the table no longer names, and files that followed rows through rewrites."""
    kept: int = 0
    """Files that are needed after all, or belong to another table."""
    deferred: int = 0
    """Expired snapshots that an open transaction reads: the next expiry deletes their files."""
    unfinished: str = ""
    """Why files remain that the next expiry deletes; empty: none does."""

    @property
    def files_deleted(self) -> int:
        rows = self.data_files + self.position_delete_files + self.equality_delete_files
        return rows + self.manifests + self.manifest_lists + self.statistics_files + self.metadata_files


@dataclass(frozen=True, slots=True)
class Commit:
    """What a write did. ``changed=False``: nothing matched, no snapshot was made, ``snapshot_id`` is the head's."""

    snapshot_id: int | None
    sequence_number: int
    commit_id: str
    attempts: int = 1
    rebased_over: int = 0
    """How many commits by other writers landed between this write's first read of the head and its own commit."""
    group_size: int = 1
    group_index: int = 0
    shared: bool = False
    elapsed: float = 0.0
    already_committed: bool = False
    changed: bool = True
    engine: str = "arrow"
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes_written: int = 0
    rolled_back: bool = False
    """The write landed, and a later rollback removed it from the branch's history; it is not committed again."""
    redone: int = 0
    """How often the statement was evaluated again, because rows that it would have read arrived or went."""
    expired: Expiry | None = None
    """What expire_snapshots() removed; None for every other call."""


class ProcedureRows(list[dict[str, Any]]):
    """The rows that a procedure of Iceberg returns, under its column names, with the Commit that they describe."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], commit: Commit | None = None) -> None:
        super().__init__(map(dict, rows))
        self.commit = commit
        """None: the procedure has committed nothing to the table."""


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    """What a transaction did that wrote to several tables: all of them changed at one moment."""

    commit_id: str
    attempts: int = 1
    elapsed: float = 0.0
    already_committed: bool = False
    tables: Mapping[str, Commit] = field(default_factory=dict)
    """What was done to each table that the transaction wrote to, by name."""

    @property
    def changed(self) -> bool:
        """False: nothing was left to do in any table."""
        return any(each.changed for each in self.tables.values())


@dataclass(frozen=True, slots=True)
class TableMove:
    """What one commit did to one table of the lake."""

    table: str
    action: str
    """commit, create, drop or rename."""
    metadata_location: str | None
    """The table's metadata file from then on; None: it was dropped."""
    snapshot_ids: tuple[int, ...] = ()
    """The snapshots that it added, on any branch."""
    commits: tuple[SharedCommit, ...] = ()
    """The commits in these snapshots: several where writers share one. Empty: no longer known."""
    renamed_from: str | None = None


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """One commit in the order of all commits of a lake, with every table that it changed."""

    committed_at: dt.datetime
    """In UTC, by the catalog's clock. Never before that of an earlier entry."""
    tables: tuple[TableMove, ...]
    """In the order of their names."""
    commit_id: str | None = None
    """None: not known, or those of ``tables`` are several."""
    verb: str | None = None
    """The kind of the statement; of several tables "transaction"."""
    app: str | None = None
    host: str | None = None


class ActionState(enum.StrEnum):
    """The state of a service action. COMPLETED and FAILED are final (rule P44)."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One action of a table service, as the catalog's timeline has it. Times are by the catalog's clock, in ms."""

    action_id: str
    table_uuid: str
    service: str
    """The verb: compact, cluster, resolve deletes, expire snapshots, …"""
    state: ActionState = ActionState.REQUESTED
    owner: str = ""
    """A random token of the process that runs it: only its owner changes an action."""
    app: str = ""
    host: str = ""
    pid: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What it is going to do, without values of the table's rows."""
    done: int = 0
    total: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What its last sign of progress said."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """What it did, or why it failed, and what it left behind."""
    requested_ms: int = 0
    started_ms: int | None = None
    heartbeat_ms: int = 0
    """The owner's last sign of life."""
    completed_ms: int | None = None

    @property
    def is_over(self) -> bool:
        return self.state in (ActionState.COMPLETED, ActionState.FAILED)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "action_id": self.action_id,
            "service": self.service,
            "state": str(self.state),
            "app": self.app,
            "host": self.host,
            "pid": self.pid,
            "done": self.done,
            "total": self.total,
            "plan": dict(self.plan),
            "detail": dict(self.detail),
            "outcome": dict(self.outcome),
            "requested_ms": self.requested_ms,
            "started_ms": self.started_ms,
            "heartbeat_ms": self.heartbeat_ms,
            "completed_ms": self.completed_ms,
        }


@dataclass(frozen=True, slots=True)
class Lease:
    """A part of a table that one service has taken for a time. A hint: no commit depends on it (rule P44)."""

    scope: str
    owner: str
    left_ms: int
    """How long it still lasts, by the catalog's clock."""
