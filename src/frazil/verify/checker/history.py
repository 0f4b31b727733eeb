"""Histories as JSON lines: a file, or a folder of files of many processes.

A transaction is a sequence of events (``begin``, ``read``, ``write``, ``commit``, then ``ok``, ``failed`` or
``unknown``) with one ``tx``, as the recorder writes them, or one event ``transaction``. An event ``version`` is a
version of a table's own history. Other events are skipped. The last line of a file may be cut: its process was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from frazil.errors import InvalidInput
from frazil.verify.checker.model import Key, Outcome, Read, Transaction, Value, Version, Write, WriteKind

SUFFIX = ".jsonl"
_OUTCOMES = {each.value: each for each in Outcome}
_KINDS: dict[str, WriteKind] = {"put": "put", "add": "add", "remove": "remove", "other": "other"}


@dataclass(frozen=True, slots=True)
class History:
    """The content of a recording."""

    transactions: tuple[Transaction, ...]
    versions: tuple[Version, ...]
    hosts: tuple[str, ...] = ()
    """The machines it was recorded on. With several of them, times are wall-clock times."""
    columns: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    """Table → the key columns and the value column whose values were recorded."""

    @property
    def tables(self) -> tuple[str, ...]:
        names = {op.table for each in self.transactions for op in each.ops}
        return tuple(sorted(names | {each.table for each in self.versions}))


def read_history(path: str | Path) -> History:
    """The history in a file, or in all files ``*.jsonl`` of a folder. Raises InvalidInput."""
    place = Path(path)
    if place.is_dir():
        files = sorted(place.rglob(f"*{SUFFIX}"))
    elif place.is_file():
        files = [place]
    else:
        raise InvalidInput(f"The file or folder {place} does not exist")
    if not files:
        raise InvalidInput(f"The folder {place} has no {SUFFIX} files")
    return parse_history(event for file in files for event in _events(file))


def _events(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not line.endswith(b"\n"):
                    # The process was killed while it wrote the line.
                    return
                raise InvalidInput(f"Line {number} of {file} is not JSON: {error}") from error
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise InvalidInput(f"Line {number} of {file} is not an event", advice='An event has a field "event"')
            yield event


@dataclass(slots=True)
class _Open:
    """A transaction whose events are being read."""

    id: str
    process: str = ""
    began: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] | None = None
    ops: list[Read | Write] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    commit_id: str | None = None
    changed: bool = True
    versions: Mapping[str, Any] | None = None
    """Of a commit to several tables: those that it changed, with their versions."""
    isolation: str | None = None


def parse_history(events: Iterable[dict[str, Any]]) -> History:
    """Assemble events into a history. Raises InvalidInput for an incomplete event."""
    found: dict[str, _Open] = {}
    whole: list[Transaction] = []
    versions: list[Version] = []
    hosts: dict[str, None] = {}
    columns: dict[str, tuple[tuple[str, ...], str]] = {}
    for event in events:
        try:
            match event["event"]:
                case "recorder":
                    hosts[str(event.get("host", ""))] = None
                    named = event.get("columns", {})
                    columns.update({table: (tuple(keys), value) for table, (keys, value) in named.items()})
                case "version":
                    versions.append(_version(event))
                case "transaction":
                    whole.append(_transaction(event))
                case _ if "tx" in event:
                    _take(found.setdefault(event["tx"], _Open(event["tx"])), event)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"The event {_shown(event)} is incomplete or malformed: {error!r}") from error
    clock = "mono" if len(hosts) <= 1 else "wall"
    whole.extend(_closed(each, clock) for each in found.values())
    return History(tuple(whole), tuple(versions), tuple(hosts), columns)


def _shown(event: dict[str, Any]) -> str:
    return str({name: event[name] for name in ("event", "tx", "id", "table") if name in event})


def _take(tx: _Open, event: dict[str, Any]) -> None:
    kind = event["event"]
    if not tx.began:
        tx.began, tx.process = event, str(event.get("process", ""))
    if kind == "begin":
        tx.isolation = event.get("isolation")
    elif kind == "read":
        tx.ops.append(_read(event))
    elif kind == "write":
        tx.ops.extend(_write(event["table"], each) for each in event["writes"])
    elif kind == "commit":
        tx.commit_id = event["commit_id"]
    elif kind in _OUTCOMES:
        tx.outcome, tx.ended = _OUTCOMES[kind], event
        tx.changed = bool(event.get("changed", True))
        tx.versions = event.get("versions")


def _closed(tx: _Open, clock: str) -> Transaction:
    ended = None if tx.ended is None else float(tx.ended[clock])
    began = float(tx.began.get(clock, 0.0))
    # In the other tables nothing was left to do, and no version names it.
    ops = tuple(op for op in tx.ops if isinstance(op, Read) or tx.versions is None or _name(op.table) in tx.versions)
    return Transaction(tx.id, tx.process, ops, tx.outcome, tx.commit_id, began, ended, tx.changed, tx.isolation)


def _name(table: str) -> str:
    """A branch counts as a table (``recording/recorder.py``)."""
    return table.partition("@")[0]


def _read(event: dict[str, Any]) -> Read:
    seen = event.get("seen")
    return Read(
        table=event["table"],
        seen=None if seen is None else {_key(key): tuple(_key(each) for each in values) for key, values in seen},
        keys=tuple(_key(each) for each in event.get("keys", ())),
        whole=bool(event.get("whole", False)),
        version=event.get("version"),
        empty=bool(event.get("empty", False)),
        historic=bool(event.get("historic", False)),
        ageless=bool(event.get("ageless", False)),
        filter=event.get("filter"),
    )


def _write(table: str, change: Sequence[Any]) -> Write:
    kind, key, value = change
    if kind == "clear":
        return Write(table, "remove", every_key=True)
    if kind == "take":
        return Write(table, "remove", _key(key), _key(value), one_value=True)
    return Write(table, _KINDS[kind], _key(key), _key(value))


def _key(value: Any) -> Key:
    return tuple(value) if isinstance(value, list) else value


def _version(event: dict[str, Any]) -> Version:
    rows = event.get("rows")
    return Version(
        table=event["table"],
        id=event["id"],
        commits=tuple(event.get("commits", ())),
        parent=event.get("parent"),
        rows=None if rows is None else {_key(key): tuple(_key(each) for each in values) for key, values in rows},
        live=bool(event.get("live", True)),
    )


def _transaction(event: dict[str, Any]) -> Transaction:
    ops: list[Read | Write] = []
    for each in event.get("ops", ()):
        ops.extend(
            [_read(each)] if each.get("op") == "read" else (_write(each["table"], one) for one in each["writes"])
        )
    ended = event.get("ended")
    return Transaction(
        id=str(event["id"]),
        process=str(event.get("process", "")),
        ops=tuple(ops),
        outcome=_OUTCOMES[event.get("outcome", "ok")],
        commit_id=event.get("commit_id"),
        began=float(event.get("began", 0.0)),
        ended=None if ended is None else float(ended),
        changed=bool(event.get("changed", True)),
        isolation=event.get("isolation"),
    )


# Writing


def write_history(path: str | Path, transactions: Iterable[Transaction], versions: Iterable[Version]) -> None:
    """Write a history into one file, for tools that make histories by other means."""
    with Path(path).open("wb") as file:
        for transaction in transactions:
            file.write(_line(transaction_event(transaction)))
        for version in versions:
            file.write(_line(version_event(version)))


def _line(event: dict[str, Any]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)


def transaction_event(transaction: Transaction) -> dict[str, Any]:
    """A transaction as one line."""
    return {
        "event": "transaction",
        "id": transaction.id,
        "process": transaction.process,
        "outcome": transaction.outcome.value,
        "commit_id": transaction.commit_id,
        "began": transaction.began,
        "ended": transaction.ended,
        "changed": transaction.changed,
        "isolation": transaction.isolation,
        "ops": [_op_event(op) for op in transaction.ops],
    }


def _op_event(op: Read | Write) -> dict[str, Any]:
    if isinstance(op, Write):
        kind = "clear" if op.every_key else "take" if op.one_value else op.kind
        return {"op": "write", "table": op.table, "writes": [[kind, op.key, op.value]]}
    return {
        "op": "read",
        "table": op.table,
        "seen": None if op.seen is None else _pairs(op.seen.items()),
        "keys": list(op.keys),
        "whole": op.whole,
        "version": op.version,
        "empty": op.empty,
        "historic": op.historic,
        "ageless": op.ageless,
        "filter": op.filter,
    }


def _pairs(items: Iterable[tuple[Key, tuple[Value, ...]]]) -> list[Any]:
    return [[key, list(values)] for key, values in items]


def version_event(version: Version) -> dict[str, Any]:
    """A version as one line."""
    return {
        "event": "version",
        "table": version.table,
        "id": version.id,
        "commits": list(version.commits),
        "parent": version.parent,
        "rows": None if version.rows is None else _pairs(version.rows.items()),
        "live": version.live,
    }


def with_versions(history: History, versions: Iterable[Version]) -> History:
    """The history with these versions in place of its own versions of the same tables."""
    new = tuple(versions)
    tables = {each.table for each in new}
    return replace(history, versions=(*(each for each in history.versions if each.table not in tables), *new))
