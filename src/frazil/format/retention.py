"""Which snapshots and refs have expired, by the rules of Iceberg Java (RemoveSnapshots). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.metadata import MAIN, TableMetadata

MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"
GC_ENABLED = "gc.enabled"
FIVE_DAYS_MS = 5 * 24 * 60 * 60 * 1000

Ref = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expired:
    """What to expire. No remaining ref refers to one of these snapshots."""

    snapshot_ids: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()


def expired(
    metadata: TableMetadata, now_ms: int, *, older_than_ms: int | None = None, retain_last: int | None = None
) -> Expired:
    """What has expired by ``now_ms``. Table properties are the defaults; a ref's own settings take precedence.

    A branch keeps its newest snapshots, and older ones up to the first that is too old. A tag keeps the one it names.
    Snapshots outside every branch go by age alone.
    """
    if str(metadata.properties.get(GC_ENABLED, "true")).lower() == "false":
        raise InvalidInput(
            f"The table property {GC_ENABLED} is 'false': its files may belong to other tables, so nothing expires",
            advice=f"Set {GC_ENABLED} to 'true' if they do not",
        )
    limit = now_ms - _number(metadata, MAX_SNAPSHOT_AGE, FIVE_DAYS_MS) if older_than_ms is None else older_than_ms
    count = _number(metadata, MIN_SNAPSHOTS, 1) if retain_last is None else retain_last
    refs = {name: ref for name, ref in metadata.refs.items() if not _is_too_old(name, ref, metadata, now_ms)}
    kept: set[int] = set()
    in_history: set[int] = set()
    for name, ref in refs.items():
        if not metadata.has_snapshot(ref["snapshot-id"]):
            # The ref's history is unknown, and all of it would be expired.
            raise CorruptMetadata(f"The {ref['type']} {name!r} refers to a snapshot that no longer exists")
        kept.add(ref["snapshot-id"])
        if ref["type"] == "branch":
            age, own_count = ref.get("max-snapshot-age-ms"), ref.get("min-snapshots-to-keep")
            kept.update(
                _kept_of(
                    metadata, ref, limit if age is None else now_ms - age, count if own_count is None else own_count
                )
            )
            in_history.update(each.snapshot_id for each in metadata.ancestors(ref["snapshot-id"]))
    gone = (
        each.snapshot_id
        for each in metadata.snapshots()
        if each.snapshot_id not in kept and (each.snapshot_id in in_history or each.timestamp_ms < limit)
    )
    return Expired(tuple(gone), tuple(name for name in metadata.refs if name not in refs))


def _is_too_old(name: str, ref: Ref, metadata: TableMetadata, now_ms: int) -> bool:
    snapshot = metadata.snapshot(ref["snapshot-id"])
    if name == MAIN or snapshot is None:
        return False
    own, default = ref.get("max-ref-age-ms"), metadata.properties.get(MAX_REF_AGE)
    if own is None and default is None:
        return False
    age = own if own is not None else _number(metadata, MAX_REF_AGE, 0)
    return now_ms - snapshot.timestamp_ms > age


def _kept_of(metadata: TableMetadata, branch: Ref, limit: int, count: int) -> Iterator[int]:
    for number, snapshot in enumerate(metadata.ancestors(branch["snapshot-id"])):
        if number >= count and snapshot.timestamp_ms < limit:
            return
        yield snapshot.snapshot_id


def _number(metadata: TableMetadata, key: str, default: int) -> int:
    text = str(metadata.properties.get(key, default))
    if not text.isdigit():
        # A guess might expire snapshots that the user wants to keep.
        raise InvalidInput(
            f"The table property {key} must be a whole number, not {text!r}",
            advice="Set it right with set_properties()",
        )
    return int(text)
