"""Summaries of changes, which a SQL catalog keeps beside its pointer so that checks need not read manifests.

They are a cache (rule P10): a summary that is missing, damaged, or of a later version is ``None``, and the manifests
are read. Two things are stored nowhere else: the predicate of a delete, because it may be personal (rule P23), and the
commits that share a snapshot, because there are many (rule P17).
"""

from __future__ import annotations

import binascii
import itertools
import math
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson

from frazil.catalog.base import ChangeRecord
from frazil.model import Change, Content, DataFile, Entry, Origin, Predicate, SharedCommit, Status

Source = Callable[[int, int], Mapping[int, Change | Predicate]]
"""(after, up to) → snapshot id → the summary of each snapshot with these sequence numbers. Any may be missing; where
there is only a predicate, the files are in the manifests."""

MOST_FILES = 500
MOST_BYTES = 64 << 10
_VERSION = 1
_PLAIN, _DEFLATED = 0, 1
# Version, encoding, checksum of what follows.
_HEADER = struct.Struct(">BBI")
_WORTH_DEFLATING = 1 << 10
_MOST_INFLATED = 16 << 20
_LONGEST_INT = 1 << 63


class CannotWrite(Exception):
    """A value that a summary cannot represent."""


def to_record(table_uuid: str, change: Change) -> ChangeRecord | None:
    """The record that a catalog keeps of a change; None: it is too large, or a value cannot be represented."""
    body = encode(change)
    return None if body is None else ChangeRecord(table_uuid, change.snapshot_id, change.sequence_number, body)


def from_records(records: Iterable[ChangeRecord]) -> dict[int, Change | Predicate]:
    """Snapshot id → the summary, where it can be read. Only a predicate: the files are in the manifests."""
    found: dict[int, Change | Predicate] = {}
    for record in records:
        change, is_whole = _decode(record.body)
        if change is None or _identity(change) != _identity(record):
            continue
        if is_whole:
            found[record.snapshot_id] = change
        elif change.predicate is not None:
            found[record.snapshot_id] = change.predicate
    return found


def commits_of(records: Iterable[ChangeRecord]) -> dict[int, tuple[SharedCommit, ...]]:
    """Snapshot id → the commits that share the snapshot, where that is known."""
    found = ((record, _decode(record.body)[0]) for record in records)
    return {record.snapshot_id: change.commits for record, change in found if change is not None and change.commits}


def _identity(of: Change | ChangeRecord) -> tuple[int, int]:
    return of.snapshot_id, of.sequence_number


def encode(change: Change) -> bytes | None:
    """A change as bytes. If it has too many files, only its header is kept, or None if the header adds nothing.

    Column sizes, split offsets, key metadata and sort orders are left out: no check uses them.
    """
    files = len(change.added) + len(change.removed) + len(change.deletes) + len(change.removed_deletes)
    try:
        body = _pack(_change_to_json(change)) if files <= MOST_FILES and not change.is_partial else None
        if body is None and (change.predicate is not None or len(change.commits) > 1):
            body = _pack(_header_to_json(change))
    except (CannotWrite, TypeError):
        # orjson refuses values (invalid Unicode, …) with a TypeError.
        return None
    return body


def decode(body: bytes) -> Change | None:
    """The change that was encoded; None: it is damaged, of an unknown version, or only its header was kept."""
    change, is_whole = _decode(body)
    return change if is_whole else None


def _decode(body: bytes) -> tuple[Change | None, bool]:
    """The change, and whether it includes the files."""
    try:
        raw = _unpack(body)
        return _change_from_json(raw), "added" in raw
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError, struct.error, zlib.error):
        return None, False


# Bytes


def _pack(raw: Mapping[str, Any]) -> bytes | None:
    data, encoding = orjson.dumps(raw), _PLAIN
    if len(data) > _WORTH_DEFLATING:
        data, encoding = zlib.compress(data, 1), _DEFLATED
    if len(data) + _HEADER.size > MOST_BYTES:
        return None
    return _HEADER.pack(_VERSION, encoding, zlib.crc32(data)) + data


def _unpack(body: bytes) -> dict[str, Any]:
    version, encoding, checksum = _HEADER.unpack_from(body)
    data = body[_HEADER.size :]
    if version != _VERSION or encoding not in (_PLAIN, _DEFLATED) or zlib.crc32(data) != checksum:
        raise ValueError("not a summary of this version")
    if encoding == _DEFLATED:
        data = zlib.decompressobj().decompress(data, _MOST_INFLATED)
    raw = orjson.loads(data)
    if not isinstance(raw, dict):
        raise TypeError("not a summary")
    return raw


# Changes


def _header_to_json(change: Change) -> dict[str, Any]:
    where = change.predicate
    return {
        "id": change.snapshot_id,
        "seq": change.sequence_number,
        "op": change.operation,
        "only_deletes": change.is_delete,
        "lineage": change.lineage_path,
        "where": None if where is None else [where.text, where.schema_id, where.case_sensitive],
        "commits": [[each.commit_id, each.rows, each.files] for each in change.commits],
        # Beside the commits, not in them: earlier versions read exactly three values of each.
        "origins": [origin_to_json(each.origin) for each in change.commits],
        "at": change.committed_ms,
    }


def origin_to_json(origin: Origin | None) -> list[Any] | None:
    return None if origin is None else [origin.app, origin.host, origin.verb, origin.started_ms]


def origin_from_json(raw: Any) -> Origin | None:
    """None: it is missing, or not of this form."""
    match raw:
        case [str() as app, str() as host, str() as verb, int() as started_ms, *_]:
            return Origin(app, host, verb, started_ms)
    return None


def _change_to_json(change: Change) -> dict[str, Any]:
    own = change.sequence_number
    return {
        **_header_to_json(change),
        "added": [[_number(entry, own), *file_to_json(entry.file)] for entry in change.added],
        "removed": [file_to_json(file) for file in change.removed],
        "deletes": [[_number(entry, own), *file_to_json(entry.file)] for entry in change.deletes],
        "removed_deletes": [file_to_json(file) for file in change.removed_deletes],
    }


def _number(entry: Entry, own: int) -> int | None:
    """None for the snapshot's own sequence number, which saves bytes."""
    return None if entry.sequence_number == own else entry.sequence_number


def _change_from_json(raw: Mapping[str, Any]) -> Change:
    return Change(
        snapshot_id=raw["id"],
        sequence_number=raw["seq"],
        operation=raw["op"],
        added=tuple(_entries(raw, "added")),
        removed=tuple(file_from_json(*each) for each in raw.get("removed", ())),
        deletes=tuple(_entries(raw, "deletes")),
        removed_deletes=tuple(file_from_json(*each) for each in raw.get("removed_deletes", ())),
        is_delete=raw["only_deletes"],
        lineage_path=raw["lineage"],
        predicate=_predicate_from_json(raw["where"]),
        commits=tuple(_commits(raw.get("commits", ()), raw.get("origins", ()))),
        committed_ms=raw.get("at"),
    )


def _commits(commits: Sequence[list[Any]], origins: Sequence[Any]) -> Iterator[SharedCommit]:
    for each, origin in itertools.zip_longest(commits, origins[: len(commits)]):
        commit_id, rows, files = each
        yield SharedCommit(commit_id, rows, files, origin_from_json(origin))


def _entries(raw: Mapping[str, Any], key: str) -> Iterator[Entry]:
    snapshot_id, own = raw["id"], raw["seq"]
    for number, *file in raw.get(key, ()):
        yield Entry(Status.ADDED, file_from_json(*file), snapshot_id, own if number is None else number, own)


def _predicate_from_json(raw: Any) -> Predicate | None:
    return None if raw is None else Predicate(*raw)


def file_to_json(file: DataFile) -> list[Any]:
    return [
        file.file_path,
        file.record_count,
        file.file_size_in_bytes,
        file.spec_id,
        [_value_to_json(value) for value in file.partition],
        int(file.content),
        file.file_format,
        _flat(file.value_counts),
        _flat(file.null_value_counts),
        _flat(file.nan_value_counts),
        _flat({key: _text(value) for key, value in file.lower_bounds.items()}),
        _flat({key: _text(value) for key, value in file.upper_bounds.items()}),
        file.equality_ids,
        file.referenced_data_file,
    ]


def file_from_json(
    path: str,
    rows: int,
    size: int,
    spec_id: int,
    partition: list[Any],
    content: int,
    file_format: str,
    values: list[int],
    nulls: list[int],
    nans: list[int],
    lower: list[Any],
    upper: list[Any],
    equality_ids: list[int],
    referenced: str | None,
    **rest: Any,
) -> DataFile:
    return DataFile(
        file_path=path,
        record_count=rows,
        file_size_in_bytes=size,
        spec_id=spec_id,
        partition=tuple(map(_value_from_json, partition)),
        content=_CONTENTS[content],
        file_format=file_format,
        value_counts=_by_id(values),
        null_value_counts=_by_id(nulls),
        nan_value_counts=_by_id(nans),
        lower_bounds=dict(zip(lower[::2], map(binascii.a2b_base64, lower[1::2]), strict=True)),
        upper_bounds=dict(zip(upper[::2], map(binascii.a2b_base64, upper[1::2]), strict=True)),
        equality_ids=tuple(equality_ids),
        referenced_data_file=referenced,
        **rest,
    )


# Indexing a tuple is several times faster than calling an enum.
_CONTENTS = tuple(Content)


def _flat(by_id: Mapping[int, Any]) -> list[Any]:
    return [item for pair in by_id.items() for item in pair]


def _by_id(flat: list[int]) -> dict[int, int]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _value_to_json(value: Any) -> Any:
    """A partition value. JSON's own types are unchanged; other types become a pair of a letter and a string."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -_LONGEST_INT <= value < _LONGEST_INT else ["i", str(value)]
        case float():
            # JSON cannot represent these, and orjson would write null.
            return value if math.isfinite(value) else ["f", repr(value)]
        case Decimal():
            return ["d", str(value)]
        case uuid.UUID():
            return ["u", value.hex]
        case bytes():
            return ["b", _text(value)]
    raise CannotWrite


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "i": int,
    "f": float,
    "d": Decimal,
    "u": uuid.UUID,
    "b": binascii.a2b_base64,
}


def _value_from_json(raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw
    kind, text = raw
    return _KINDS[kind](text)
