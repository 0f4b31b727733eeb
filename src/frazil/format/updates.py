"""Updates applied to a table's metadata: pure functions from JSON to JSON.

An update is a JSON value of the Iceberg REST specification ("TableUpdate"), so the same value serves SQL catalogs,
third-party catalogs and the queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.schema import Schema

from frazil.errors import InvalidInput, Unsupported
from frazil.format.metadata import MAIN, TableMetadata

Json = dict[str, Any]
Update = Mapping[str, Any]

_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_DEFAULT_PREVIOUS_VERSIONS = 100
_FIRST_PARTITION_ID = 1000


def next_time_ms(metadata: TableMetadata, now_ms: int) -> int:
    """A timestamp for a new version, never older than those in the metadata (rule P7)."""
    logs: list[int] = [
        log[-1]["timestamp-ms"] for log in map(metadata.raw.get, ("snapshot-log", "metadata-log")) if log
    ]
    return max(now_ms, metadata.last_updated_ms, *logs)


def apply(
    metadata: TableMetadata, updates: Iterable[Update], *, now_ms: int, previous_location: str | None
) -> TableMetadata:
    """The metadata after ``updates``; ``previous_location`` is the file that ``metadata`` was read from."""
    now_ms = next_time_ms(metadata, now_ms)
    raw: Json = dict(metadata.raw)
    for update in updates:
        try:
            change = _ACTIONS[update["action"]]
        except KeyError:
            raise Unsupported(f"The metadata update {update.get('action')!r} is not known") from None
        change(raw, update, now_ms)
    raw["last-updated-ms"] = now_ms
    if previous_location is not None:
        text = str(metadata.properties.get(_PREVIOUS_VERSIONS_MAX, ""))
        # A bad value must not fail the commit that corrects it.
        keep = int(text) if text.isdigit() else _DEFAULT_PREVIOUS_VERSIONS
        entry = {"metadata-file": previous_location, "timestamp-ms": metadata.last_updated_ms}
        raw["metadata-log"] = [*(metadata.raw.get("metadata-log") or ()), entry][-max(keep, 1) :]
    _drop_passing_log_entries(raw, metadata)
    return TableMetadata(raw)


def _drop_passing_log_entries(raw: Json, before: TableMetadata) -> None:
    # A snapshot that main pointed to only inside this one commit was never current for a reader.
    log, old = raw.get("snapshot-log") or [], before.raw.get("snapshot-log") or []
    # Expiry truncates the start of the log, so the remaining old entries are a suffix of the old log.
    cut = next((number for number, entry in enumerate(old) if log and entry is log[0]), len(old))
    kept = len(old) - cut
    if len(log) - kept > 1:
        raw["snapshot-log"] = [*log[:kept], log[-1]]


def _add_snapshot(raw: Json, update: Update, _: int) -> None:
    snapshot = update["snapshot"]
    raw["snapshots"] = [*(raw.get("snapshots") or ()), snapshot]
    raw["last-sequence-number"] = max(raw.get("last-sequence-number", 0), snapshot.get("sequence-number", 0))


def _set_ref(raw: Json, update: Update, now_ms: int) -> None:
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name") and value is not None}
    name = update["ref-name"]
    raw["refs"] = {**(raw.get("refs") or {}), name: ref}
    if name == MAIN:
        raw["current-snapshot-id"] = ref["snapshot-id"]
        entry = {"snapshot-id": ref["snapshot-id"], "timestamp-ms": now_ms}
        raw["snapshot-log"] = [*(raw.get("snapshot-log") or ()), entry]


def _remove_ref(raw: Json, update: Update, _: int) -> None:
    raw["refs"] = {name: ref for name, ref in (raw.get("refs") or {}).items() if name != update["ref-name"]}
    if update["ref-name"] == MAIN:
        raw["current-snapshot-id"] = -1


def _remove_snapshots(raw: Json, update: Update, _: int) -> None:
    gone = set(update["snapshot-ids"])
    named = sorted(name for name, ref in TableMetadata(raw).refs.items() if ref["snapshot-id"] in gone)
    if named:
        raise InvalidInput(f"A snapshot that the branch or tag {named[0]!r} refers to cannot be removed")
    raw["snapshots"] = [each for each in raw.get("snapshots") or () if each["snapshot-id"] not in gone]
    log = raw.get("snapshot-log")
    if log:
        # The specification: before an entry whose snapshot is gone, history would have a gap.
        last = max((number for number, entry in enumerate(log) if entry["snapshot-id"] in gone), default=-1)
        raw["snapshot-log"] = log[last + 1 :]


def _remove_statistics(key: str) -> Callable[[Json, Update, int], None]:
    def remove(raw: Json, update: Update, _: int) -> None:
        raw[key] = [each for each in raw.get(key) or () if each["snapshot-id"] != update["snapshot-id"]]

    return remove


def _set_properties(raw: Json, update: Update, _: int) -> None:
    raw["properties"] = {**(raw.get("properties") or {}), **update["updates"]}


def _remove_properties(raw: Json, update: Update, _: int) -> None:
    gone = set(update["removals"])
    raw["properties"] = {key: value for key, value in (raw.get("properties") or {}).items() if key not in gone}


def _upgrade_format(raw: Json, update: Update, _: int) -> None:
    """From version 1 to 2: what version 1 may omit or hold in older fields is written as version 2 requires it."""
    before = TableMetadata(dict(raw))
    raw["format-version"] = update["format-version"]
    # As good as random, and the same in every attempt: no other table has this location.
    raw["table-uuid"] = before.uuid or str(uuid.uuid5(uuid.NAMESPACE_URL, before.location))
    raw["last-sequence-number"] = before.last_sequence_number
    schema = raw.pop("schema", None)
    if not raw.get("schemas"):
        raw["schemas"] = [{"schema-id": 0, **(schema or {})}]
    raw["current-schema-id"] = before.current_schema_id
    fields = raw.pop("partition-spec", None)
    specs = raw.get("partition-specs") or [{"spec-id": 0, "fields": fields or []}]
    raw["partition-specs"] = [{**spec, "fields": _numbered(spec["fields"])} for spec in specs]
    raw["default-spec-id"] = before.default_spec_id
    used = [field["field-id"] for spec in raw["partition-specs"] for field in spec["fields"]]
    raw["last-partition-id"] = max([_FIRST_PARTITION_ID - 1, raw.get("last-partition-id") or 0, *used])
    raw["sort-orders"] = raw.get("sort-orders") or [{"order-id": 0, "fields": []}]
    raw["default-sort-order-id"] = before.default_sort_order_id
    raw["refs"] = {name: dict(ref) for name, ref in before.refs.items()}


def _numbered(fields: list[Json]) -> list[Json]:
    """Writers of version 1 may leave the ids of partition fields out: they count from 1000, in order."""
    return [{"field-id": _FIRST_PARTITION_ID + number, **field} for number, field in enumerate(fields)]


def _add_schema(raw: Json, update: Update, _: int) -> None:
    raw["schemas"] = [*raw["schemas"], update["schema"]]
    # Some clients send it, others leave it to the server.
    named = update.get("last-column-id")
    highest = Schema.model_validate(update["schema"]).highest_field_id if named is None else named
    raw["last-column-id"] = max(raw["last-column-id"], highest)


def _set_current_schema(raw: Json, update: Update, _: int) -> None:
    raw["current-schema-id"] = _last_added(update["schema-id"], raw["schemas"], "schema-id")


def _add_spec(raw: Json, update: Update, _: int) -> None:
    raw["partition-specs"] = [*raw["partition-specs"], update["spec"]]
    ids = [field["field-id"] for field in update["spec"]["fields"]]
    raw["last-partition-id"] = max([raw.get("last-partition-id", 999), *ids])


def _set_default_spec(raw: Json, update: Update, _: int) -> None:
    raw["default-spec-id"] = _last_added(update["spec-id"], raw["partition-specs"], "spec-id")


def _add_sort_order(raw: Json, update: Update, _: int) -> None:
    raw["sort-orders"] = [*raw["sort-orders"], update["sort-order"]]


def _set_default_sort_order(raw: Json, update: Update, _: int) -> None:
    raw["default-sort-order-id"] = _last_added(update["sort-order-id"], raw["sort-orders"], "order-id")


def _set_location(raw: Json, update: Update, _: int) -> None:
    raw["location"] = update["location"]


def _last_added(wanted: int, values: list[Json], key: str) -> int:
    # The REST specification: -1 means the one added last in this request.
    return int(values[-1][key]) if wanted == -1 else wanted


_ACTIONS: dict[str, Callable[[Json, Update, int], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "remove-statistics": _remove_statistics("statistics"),
    "remove-partition-statistics": _remove_statistics("partition-statistics"),
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "set-location": _set_location,
    "upgrade-format-version": _upgrade_format,
}
