"""Which transactions are in the tables, and where. The tables' own histories decide, not the answers to clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from frazil.verify.checker.model import Key, Outcome, Transaction, Value, Version, VersionId, Write


@dataclass(slots=True)
class TableHistory:
    """The history of one table, with the transactions in it by their numbers."""

    table: str
    number: int
    versions: list[Version] = field(default_factory=list)
    """Without rolled back versions."""
    index: dict[VersionId, int] = field(default_factory=dict)
    slots: list[list[int | None]] = field(default_factory=list)
    """By version, the transactions that it committed, in order. None: an unrecorded one."""
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Transaction → its version's index and its place in it."""
    repeated: list[tuple[int, int]] = field(default_factory=list)
    """A transaction, and the index of a further version that names it."""
    rolled_back: set[str] = field(default_factory=set)
    withdrawn: set[VersionId] = field(default_factory=set)
    """The ids of rolled back versions."""
    is_truncated: bool = False
    """The first versions have expired."""
    is_given: bool = False
    """The versions were given."""
    is_closed: bool = True
    """Only recorded transactions changed the table, and their changes were recorded."""
    first_answer: float | None = None
    """When the first of its transactions was acknowledged."""
    writer_of: dict[tuple[Key, Value], int | None] = field(default_factory=dict)
    """The transaction that wrote a value to a key. None: several did, so that the value cannot be traced."""


@dataclass(slots=True)
class Landing:
    """All transactions with the histories of their tables."""

    transactions: list[Transaction]
    histories: dict[str, TableHistory]
    written: list[frozenset[str]]
    """By transaction, the tables it wrote rows to."""
    landed: list[bool] = field(default_factory=list)
    """By transaction: it counts as committed. A read-only transaction counts if it was answered."""
    missing: list[tuple[int, str]] = field(default_factory=list)
    """Acknowledged, and not in the history of this table."""
    beyond: int = 0
    """Acknowledged, and not found because the history's beginning has expired."""
    unnamed: int = 0
    """Acknowledged without a commit id and without values that can be found in versions."""
    withdrawn: int = 0
    """Acknowledged, and rolled back."""


def land(transactions: Iterable[Transaction], versions: Iterable[Version]) -> Landing:
    """Find each transaction in the histories of the tables that it wrote to."""
    known = _merged(transactions)
    histories: dict[str, TableHistory] = {}
    for transaction in known:
        for op in transaction.ops:
            if op.table not in histories:
                histories[op.table] = TableHistory(op.table, len(histories))
    for version in versions:
        history = histories.setdefault(version.table, TableHistory(version.table, len(histories)))
        history.is_given = True
        if version.live:
            history.index[version.id] = len(history.versions)
            history.versions.append(version)
        else:
            history.rolled_back.update(version.commits)
            history.withdrawn.add(version.id)
    written = [frozenset(op.table for op in each.ops if isinstance(op, Write)) for each in known]
    found = Landing(known, histories, written)
    _trace_values(found)
    by_commit = {each.commit_id: number for number, each in enumerate(known) if each.commit_id is not None}
    for history in histories.values():
        _place(history, by_commit, known, written)
    for number in range(len(known)):
        found.landed.append(_landed(found, number))
    return found


def _merged(transactions: Iterable[Transaction]) -> list[Transaction]:
    """One commit id is one transaction: a client that repeats a call under its id does not apply it twice."""
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
        # Either call may have been the one that was applied.
        ended=min(ends) if better.outcome is Outcome.OK and ends else better.ended,
        ops=better.ops or one.ops or other.ops,
    )


def _trace_values(found: Landing) -> None:
    for number, transaction in enumerate(found.transactions):
        for op in transaction.ops:
            if isinstance(op, Write) and op.kind in ("put", "add"):
                writers = found.histories[op.table].writer_of
                name = (op.key, op.value)
                writers[name] = None if writers.get(name, number) != number else number


def _place(
    history: TableHistory, by_commit: dict[str, int], known: Sequence[Transaction], written: Sequence[frozenset[str]]
) -> None:
    first = history.versions[0].parent if history.versions else None
    history.is_truncated = first is not None and first not in history.index
    history.is_closed = history.is_given and not history.is_truncated
    for index, version in enumerate(history.versions):
        who: list[int | None] = []
        # For engines without commit ids, the values that a version adds identify its transactions.
        named = [by_commit.get(each) for each in version.commits] or _by_values(history, version, known, written)
        for number in named or [None]:
            if number is not None and number in history.place:
                history.repeated.append((number, index))
                continue
            if number is not None:
                history.place[number] = (index, len(who))
            who.append(number)
            if version.rows is None and (number is None or is_opaque(known[number], history.table)):
                history.is_closed = False
        history.slots.append(who)
    ends = (known[number].ended for number in history.place)
    history.first_answer = min((each for each in ends if each is not None), default=None)


def is_opaque(transaction: Transaction, table: str) -> bool:
    """Its changes of the table are not recorded: their rows are unknown, or it wrote to another branch."""
    writes = [op for op in transaction.ops if isinstance(op, Write)]
    here = [op for op in writes if op.table == table]
    return bool(writes) and (not here or any(op.kind == "other" for op in here))


def _by_values(
    history: TableHistory, version: Version, known: Sequence[Transaction], written: Sequence[frozenset[str]]
) -> list[int | None]:
    found: dict[int, None] = {}
    for key, values in (version.rows or {}).items():
        for value in values:
            number = history.writer_of.get((key, value))
            unnamed = number is not None and known[number].commit_id is None and history.table in written[number]
            if unnamed and number is not None and number not in history.place:
                found[number] = None
    return list(found)


def _landed(found: Landing, number: int) -> bool:
    transaction, written = found.transactions[number], found.written[number]
    if not written or not transaction.changed:
        return transaction.outcome is Outcome.OK
    histories = [found.histories[table] for table in sorted(written)]
    if any(number in history.place for history in histories):
        # Some of its tables may have it and others not, whatever the client was answered.
        whole = (history for history in histories if history.is_given and not history.is_truncated)
        found.missing.extend((number, history.table) for history in whole if number not in history.place)
        return True
    if transaction.outcome is not Outcome.OK:
        return False
    given = [history for history in histories if history.is_given]
    if not given:
        # The versions were not given: only the client's answer is known.
        return True
    _account(found, number, given)
    return False


def _account(found: Landing, number: int, histories: list[TableHistory]) -> None:
    """Record why an acknowledged transaction is in none of its tables' histories."""
    transaction = found.transactions[number]
    if any(transaction.commit_id in history.rolled_back for history in histories):
        found.withdrawn += 1
    elif transaction.commit_id is None and not _has_rows_to_compare(transaction, histories):
        found.unnamed += 1
    elif all(history.is_truncated and not _is_after_the_gap(transaction, history) for history in histories):
        found.beyond += 1
    else:
        found.missing.extend((number, history.table) for history in histories)


def _has_rows_to_compare(transaction: Transaction, histories: list[TableHistory]) -> bool:
    brings = any(isinstance(op, Write) and op.kind in ("put", "add") for op in transaction.ops)
    return brings and all(version.rows is not None for history in histories for version in history.versions)


def _is_after_the_gap(transaction: Transaction, history: TableHistory) -> bool:
    """It began after a transaction was acknowledged that is still kept, so it would be kept as well."""
    return history.first_answer is not None and transaction.began > history.first_answer


def by_version(landing: Landing) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """Table → version's index → the reads that were pinned to it, as (transaction, number of the operation).

    The index -1 is the table before its first version. Reads whose version is not known are left out.
    """
    found: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for number, transaction in enumerate(landing.transactions):
        if not landing.landed[number]:
            continue
        for place, op in enumerate(transaction.ops):
            if isinstance(op, Write):
                continue
            index = (
                -1
                if op.empty
                else landing.histories[op.table].index.get(op.version)
                if op.version is not None
                else None
            )
            if index is not None:
                found[op.table][index].append((number, place))
    return found
