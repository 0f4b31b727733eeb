"""The values of the checker: clients' calls and answers, the versions of tables, and the report.

A table is a map of keys. A key holds one value that writes replace (``put``), or a set of values that writes add to
(``add``); ``remove`` empties it. No two writes of one table write the same value to the same key, so that a value that
was read can be traced to its writer. The order of writes is not guessed: the table's versions give it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scalar = str | int | float | bool | None
Key = Scalar | tuple[Scalar, ...]
"""Several key columns make a tuple."""
Value = Scalar | tuple[Scalar, ...]
VersionId = int | str


class Outcome(enum.StrEnum):
    """The answer to a client."""

    OK = "ok"
    FAILED = "failed"
    """The client got an error that says that nothing was committed."""
    UNKNOWN = "unknown"
    """The client got no answer because it was killed, or it got CommitUnknown."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one scan of one table saw."""

    table: str
    seen: Mapping[Key, tuple[Value, ...]] | None = None
    """Key → its values, with repetitions. None: the values were not recorded."""
    keys: tuple[Key, ...] = ()
    """The keys it asked for by name: one that is not in ``seen`` was not there."""
    whole: bool = False
    """It asked for every key of the table: a key that is not in ``seen`` was not there."""
    version: VersionId | None = None
    """The version it was pinned to, before the transaction's own writes. None: not known, or the table was empty."""
    empty: bool = False
    """With ``version=None``: it was pinned to the table before its first version."""
    historic: bool = False
    """The caller asked for an old version, so that old rows are not an anomaly."""
    ageless: bool = False
    """Pinned at an instant of all tables, which may have been long before the call: its age is not judged. That the
    transaction's other reads are of the same instant is.
    """
    filter: str | None = None
    """The condition, for people."""


WriteKind = Literal["put", "add", "remove", "other"]


@dataclass(frozen=True, slots=True)
class Write:
    """One change of one key."""

    table: str
    kind: WriteKind
    """``other``: a change of rows that are not recorded."""
    key: Key = None
    value: Value = None
    every_key: bool = False
    """A ``remove`` of all keys."""
    one_value: bool = False
    """A ``remove`` of this value alone; the key's other values stay. The value may be absent already."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction as its client saw it."""

    id: str
    process: str
    """The process that ran it; transactions of one process do not overlap."""
    ops: tuple[Read | Write, ...] = ()
    """In the order of execution."""
    outcome: Outcome = Outcome.OK
    commit_id: str | None = None
    """As the versions name it; the same on every table. None: it wrote nothing, or its id is not known."""
    began: float = 0.0
    """Seconds on one clock for all transactions: when it was called."""
    ended: float | None = None
    """When the client got the answer. None: never."""
    changed: bool = True
    """False: the answer was that nothing matched, so that no version names it."""
    isolation: str | None = None
    """The isolation level that the client asked for."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table, as the table's own history has it. Versions are given in the order of the history."""

    table: str
    id: VersionId
    commits: tuple[str, ...] = ()
    """The ids of its commits, in their order. Empty: its writer records none."""
    parent: VersionId | None = None
    """With a parent that is not among the versions, older versions are taken to be expired."""
    rows: Mapping[Key, tuple[Value, ...]] | None = None
    """The keys that it changed, with their values after it; no values: deleted. None: not read."""
    live: bool = True
    """False: the version was rolled back."""


class Level(enum.IntEnum):
    """Isolation levels; each one includes the guarantees of those before it."""

    READ_UNCOMMITTED = 1
    READ_COMMITTED = 2
    SNAPSHOT_ISOLATION = 3
    SERIALIZABLE = 4
    STRICT_SERIALIZABLE = 5

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


class Kind(enum.StrEnum):
    """The anomalies, by their usual names."""

    G0 = "G0"
    """The writes of transactions interleave: a cycle of write-write edges."""
    G1A = "G1a"
    """A read of a write that failed."""
    G1B = "G1b"
    """A read of a value that its own transaction replaced, or of a part of its writes to one key."""
    G1C = "G1c"
    """A cycle of write-write and write-read edges."""
    LOST_UPDATE = "lost update"
    """Two transactions read a key's value and both replaced it."""
    G_SINGLE = "G-single"
    """A cycle with exactly one anti-dependency: a transaction's effects were seen in part."""
    LONG_FORK = "long fork"
    """A cycle whose anti-dependencies never follow each other: two readers saw two writes in opposite orders."""
    WRITE_SKEW = "write skew"
    """Two transactions each overwrote what the other one had read."""
    G2 = "G2"
    """Any other cycle with anti-dependencies."""
    PHANTOM = "phantom"
    """A cycle through a read of many keys that missed a key which another transaction inserted."""
    STALE_READ = "stale read"
    """A read that did not see what was acknowledged before it began."""
    REAL_TIME = "order against real time"
    """The table's order of two transactions contradicts the order in which they were called and answered."""
    INTERNAL = "internal"
    """A transaction did not see its own writes."""
    DUPLICATE = "duplicate"
    """One write was applied twice."""
    LOST_WRITE = "lost write"
    """An acknowledged write is missing."""
    RESURRECTED = "resurrected row"
    """A row that was deleted or replaced came back."""
    UNWRITTEN = "unwritten row"
    """A value that no recorded transaction wrote, in a table without unrecorded changes."""
    FALSE_FAILURE = "false failure"
    """A transaction was reported as failed, and it landed."""
    MOVED_SNAPSHOT = "moved snapshot"
    """Reads of one version differ from its content by the history, and no other kind explains it."""


class Edge(enum.StrEnum):
    """Why one transaction comes before another."""

    WW = "write-write"
    WR = "write-read"
    RW = "anti-dependency"
    PROCESS = "process order"
    REAL_TIME = "real time"


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a witness, with its reason in words."""

    before: str
    after: str
    edge: Edge
    words: str
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly, with the smallest evidence that was found for it."""

    kind: Kind
    rules_out: Level
    """The weakest level that forbids it."""
    tables: tuple[str, ...]
    transactions: tuple[str, ...]
    words: str
    """A sentence that describes it."""
    cycle: tuple[Step, ...] = ()
    """Empty: the anomaly needs no cycle."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The size of the history."""

    transactions: int = 0
    committed: int = 0
    failed: int = 0
    unknown_landed: int = 0
    unknown_absent: int = 0
    reads: int = 0
    writes: int = 0
    versions: int = 0
    edges: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    anomalies: tuple[Anomaly, ...] = ()
    """A few witnesses of each kind, the worst first."""
    counts: Mapping[Kind, int] = field(default_factory=dict)
    """How many of each kind were found, also without a witness here; for cycles, a lower bound."""
    tables: tuple[str, ...] = ()
    figures: Figures = Figures()
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""

    @property
    def is_clean(self) -> bool:
        return not self.anomalies

    def holds(self, table: str | None = None) -> Level | None:
        """The strongest level that nothing here rules out: of one table alone, or across all. None: not even the
        weakest.
        """
        found = [each for each in self.anomalies if table is None or each.tables == (table,)]
        weakest = min((each.rules_out for each in found), default=None)
        if weakest is None:
            return Level.STRICT_SERIALIZABLE
        return None if weakest is Level.READ_UNCOMMITTED else Level(weakest - 1)

    def ruled_out(self, table: str | None = None) -> tuple[Level, ...]:
        """The levels that this history cannot have run at."""
        strongest = self.holds(table)
        return tuple(level for level in Level if strongest is None or level > strongest)
