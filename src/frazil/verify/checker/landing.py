"""Which transactions are in the tables, and where: the tables' own histories decide, not what clients were told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from frazil.verify.checker.model import Key, Outcome, Transaction, Value, Version, VersionId, Write


@dataclass(slots=True)
class Line:
    """The history of one table, with the transactions in it by their numbers."""

    table: str
    number: int
    versions: list[Version] = field(default_factory=list)
    """Those that no rollback took out."""
    index: dict[VersionId, int] = field(default_factory=dict)
    slots: list[list[int | None]] = field(default_factory=list)
    """By version, who committed it, in order. None: somebody who was not recorded."""
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Transaction → its version's index and its place in it."""
    repeated: list[tuple[int, int]] = field(default_factory=list)
    """A transaction, and the index of a further version that names it."""
    rolled_back: set[str] = field(default_factory=set)
    withdrawn: set[VersionId] = field(default_factory=set)
    """Versions that a rollback took out."""
    is_truncated: bool = False
    """Its first versions have expired."""
    is_given: bool = False
    """Somebody has said what its versions are."""
    is_closed: bool = True
    """Nobody but recorded transactions changed it, and they said what they changed."""
    first_answer: float | None = None
    """When the first client of those in it was answered."""
    writer_of: dict[tuple[Key, Value], int | None] = field(default_factory=dict)
    """Who wrote a value to a key. None: several did, so that it cannot be traced."""


@dataclass(slots=True)
class Landing:
    """All transactions with the lines of their tables."""

    transactions: list[Transaction]
    lines: dict[str, Line]
    written: list[frozenset[str]]
    """By transaction, the tables it wrote rows to."""
    landed: list[bool] = field(default_factory=list)
    """By transaction: it counts as committed. Those that only read count when they were answered."""
    missing: list[tuple[int, str]] = field(default_factory=list)
    """Acknowledged, and not in the history of this table."""
    beyond: int = 0
    """Acknowledged, and not found because the history's beginning has expired."""
    unnamed: int = 0
    """Acknowledged without a commit id and without values that can be found in versions."""
    withdrawn: int = 0
    """Acknowledged, and taken out by a rollback."""


def land(transactions: Iterable[Transaction], versions: Iterable[Version]) -> Landing:
    """Find each transaction in the histories of the tables that it wrote to."""
    known = _merged(transactions)
    lines: dict[str, Line] = {}
    for transaction in known:
        for op in transaction.ops:
            if op.table not in lines:
                lines[op.table] = Line(op.table, len(lines))
    for version in versions:
        line = lines.setdefault(version.table, Line(version.table, len(lines)))
        line.is_given = True
        if version.live:
            line.index[version.id] = len(line.versions)
            line.versions.append(version)
        else:
            line.rolled_back.update(version.commits)
            line.withdrawn.add(version.id)
    written = [frozenset(op.table for op in each.ops if isinstance(op, Write)) for each in known]
    found = Landing(known, lines, written)
    _trace_values(found)
    by_commit = {each.commit_id: number for number, each in enumerate(known) if each.commit_id is not None}
    for line in lines.values():
        _place(line, by_commit, known, written)
    for number in range(len(known)):
        found.landed.append(_landed(found, number))
    return found


def _merged(transactions: Iterable[Transaction]) -> list[Transaction]:
    """One commit id is one transaction: who sends it again, not knowing whether it landed, does not do it twice."""
    found: list[Transaction] = []
    seen: dict[str, int] = {}
    for each in transactions:
        if each.commit_id is None or each.commit_id not in seen:
            if each.commit_id is not None:
                seen[each.commit_id] = len(found)
            found.append(each)
            continue
        number = seen[each.commit_id]
        found[number] = _both(found[number], each)
    return found


_WORTH = {Outcome.OK: 2, Outcome.UNKNOWN: 1, Outcome.FAILED: 0}


def _both(one: Transaction, other: Transaction) -> Transaction:
    better = max(one, other, key=lambda each: _WORTH[each.outcome])
    ends = [each.ended for each in (one, other) if each.outcome is better.outcome and each.ended is not None]
    return replace(
        better,
        id=one.id,
        process=one.process,
        began=min(one.began, other.began),
        # Whoever was answered first may have been the one who was told.
        ended=min(ends) if better.outcome is Outcome.OK and ends else better.ended,
        ops=better.ops or one.ops or other.ops,
    )


def _trace_values(found: Landing) -> None:
    for number, transaction in enumerate(found.transactions):
        for op in transaction.ops:
            if isinstance(op, Write) and op.kind in ("put", "add"):
                writers = found.lines[op.table].writer_of
                name = (op.key, op.value)
                writers[name] = None if writers.get(name, number) != number else number


def _place(
    line: Line, by_commit: dict[str, int], known: Sequence[Transaction], written: Sequence[frozenset[str]]
) -> None:
    first = line.versions[0].parent if line.versions else None
    line.is_truncated = first is not None and first not in line.index
    line.is_closed = line.is_given and not line.is_truncated
    for index, version in enumerate(line.versions):
        who: list[int | None] = []
        # Histories of engines without commit ids: the values that a version brings name its writers.
        named = [by_commit.get(each) for each in version.commits] or _by_values(line, version, known, written)
        for number in named or [None]:
            if number is not None and number in line.place:
                line.repeated.append((number, index))
                continue
            if number is not None:
                line.place[number] = (index, len(who))
            who.append(number)
            if version.rows is None and (number is None or is_opaque(known[number], line.table)):
                line.is_closed = False
        line.slots.append(who)
    ends = (known[number].ended for number in line.place)
    line.first_answer = min((each for each in ends if each is not None), default=None)


def is_opaque(transaction: Transaction, table: str) -> bool:
    """Nobody knows what it changed in a table that names it: it did not say, or it wrote to another branch of it."""
    writes = [op for op in transaction.ops if isinstance(op, Write)]
    here = [op for op in writes if op.table == table]
    return bool(writes) and (not here or any(op.kind == "other" for op in here))


def _by_values(
    line: Line, version: Version, known: Sequence[Transaction], written: Sequence[frozenset[str]]
) -> list[int | None]:
    found: dict[int, None] = {}
    for key, values in (version.rows or {}).items():
        for value in values:
            number = line.writer_of.get((key, value))
            unnamed = number is not None and known[number].commit_id is None and line.table in written[number]
            if unnamed and number is not None and number not in line.place:
                found[number] = None
    return list(found)


def _landed(found: Landing, number: int) -> bool:
    transaction, written = found.transactions[number], found.written[number]
    if not written or not transaction.changed:
        return transaction.outcome is Outcome.OK
    lines = [found.lines[table] for table in sorted(written)]
    if any(number in line.place for line in lines):
        # Some of its tables may have it and others not, whatever its client was told.
        whole = (line for line in lines if line.is_given and not line.is_truncated)
        found.missing.extend((number, line.table) for line in whole if number not in line.place)
        return True
    if transaction.outcome is not Outcome.OK:
        return False
    given = [line for line in lines if line.is_given]
    if not given:
        # Nobody said what the versions are: what the client was told is all there is.
        return True
    _account(found, number, given)
    return False


def _account(found: Landing, number: int, lines: list[Line]) -> None:
    """Say why an acknowledged transaction is in none of its tables' histories."""
    transaction = found.transactions[number]
    if any(transaction.commit_id in line.rolled_back for line in lines):
        found.withdrawn += 1
    elif transaction.commit_id is None and not _has_rows_to_compare(transaction, lines):
        found.unnamed += 1
    elif all(line.is_truncated and not _is_after_the_gap(transaction, line) for line in lines):
        found.beyond += 1
    else:
        found.missing.extend((number, line.table) for line in lines)


def _has_rows_to_compare(transaction: Transaction, lines: list[Line]) -> bool:
    brings = any(isinstance(op, Write) and op.kind in ("put", "add") for op in transaction.ops)
    return brings and all(version.rows is not None for line in lines for version in line.versions)


def _is_after_the_gap(transaction: Transaction, line: Line) -> bool:
    """It began when something that is still kept was already answered, so that it would still be kept, too."""
    return line.first_answer is not None and transaction.began > line.first_answer


def by_version(landing: Landing) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """Table → version's index → the reads that were pinned to it, as (transaction, number of the operation).

    The index -1 is the table before its first version. Reads that are pinned to nothing that is known are left out.
    """
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for number, transaction in enumerate(landing.transactions):
        if not landing.landed[number]:
            continue
        for place, op in enumerate(transaction.ops):
            if isinstance(op, Write):
                continue
            index = (
                -1 if op.empty else landing.lines[op.table].index.get(op.version) if op.version is not None else None
            )
            if index is not None:
                found[op.table][index].append((number, place))
    return found
