"""Building what an attempt proposes, from an operation and the head it found. Pure: the files are written elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.commit.operations import Bundle, Kind, Write
from frazil.errors import InvalidInput
from frazil.format.manifests import DATA_MANIFEST, DELETE_MANIFEST
from frazil.format.metadata import TableMetadata
from frazil.format.properties import ORPHAN_GRACE
from frazil.model import Change, Content, DataFile, Entry, Manifest, Snapshot, Status

Json = dict[str, Any]
Updates = tuple[Json, ...]

VERB, LINEAGE = "frazil.verb", "frazil.lineage"
"""Keys of a snapshot's summary: which write it was, and the record of where rows of replaced files went."""
SOURCE = "source-snapshot-id"
"""Iceberg's key for the snapshot that this one does again."""

_MERGE_ENABLED = ("commit.manifest-merge.enabled", "true")
_MERGE_MIN_COUNT = ("commit.manifest.min-count-to-merge", "100")
_MERGE_TARGET_SIZE = ("commit.manifest.target-size-bytes", str(8 * 1024 * 1024))
_ORPHAN_GRACE = (ORPHAN_GRACE, str(3 * 24 * 60 * 60 * 1000))
"""Three days, as Iceberg's own remove_orphan_files waits."""


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """Where in the table's history an attempt puts its snapshot."""

    snapshot_id: int
    sequence_number: int
    copies_number: int
    """The data sequence number of copied rows: that of the snapshot they were read from (rule P20)."""
    attempt: int
    merges_later: bool = False
    """Others wait for this commit: old manifests are merged beside it, not by it (``merging.py``)."""


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """How the next manifest list is laid out: my new manifests first, then each bin, merged where it has several."""

    bins: tuple[tuple[Manifest, ...], ...]
    is_due: bool = False
    """This is the commit with which there are enough manifests for a merge that was put off."""


def lay_out(
    existing: Sequence[Manifest],
    mine: Sequence[Manifest],
    properties: Mapping[str, str],
    attempt: int,
    *,
    later: bool = False,
) -> ManifestLayout:
    """Decide which manifests are merged, by Iceberg's own properties and its packing (MergeAppend).

    A repeated attempt waits for twice the count before it merges: while many writers race, the one that merges is the
    slowest and loses, and then all of them would merge the same manifests again and again. The same holds ``later``,
    for commits that others wait for: at the count somebody is told to merge beside them, and at twice the count they
    do it themselves.
    """
    alone = tuple((manifest,) for manifest in (*mine, *existing))
    if _text(properties, _MERGE_ENABLED).lower() != "true":
        return ManifestLayout(alone)
    count = _number(properties, _MERGE_MIN_COUNT)
    minimum = count * (2 if later or attempt > 1 else 1)
    target = _number(properties, _MERGE_TARGET_SIZE)
    bins: list[tuple[Manifest, ...]] = []
    is_due = False
    for content in (DATA_MANIFEST, DELETE_MANIFEST):
        new = [manifest for manifest in mine if manifest.content == content]
        old = [manifest for manifest in existing if manifest.content == content]
        is_due |= later and _crosses(len(old), len(old) + len(new), count)
        if len(new) + len(old) < minimum:
            bins.extend((manifest,) for manifest in (*new, *old))
        else:
            bins.extend(_merged((*new, *old), minimum, target))
    return ManifestLayout(tuple(bins), is_due)


def _crosses(before: int, after: int, count: int) -> bool:
    """At the count, and now and then beyond it: whoever was told the first time may have died."""
    step = max(1, count // 4)
    return after >= count and before // step != after // step


def _merged(manifests: Sequence[Manifest], minimum: int, target: int) -> Iterator[tuple[Manifest, ...]]:
    by_spec: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        by_spec[manifest.partition_spec_id].append(manifest)
    newest = manifests[0]
    for spec_id in sorted(by_spec, reverse=True):
        for group in _pack_from_end(by_spec[spec_id], target):
            # The bin that holds the new manifest is still filling up; older ones are merged as soon as they are full.
            if newest not in group:
                yield tuple(group)
                continue
            worth = _worth_merging(group) if len(group) >= minimum else 1
            yield tuple(group[:worth])
            yield from ((manifest,) for manifest in group[worth:])


def _worth_merging(group: Sequence[Manifest]) -> int:
    """How many of the newest: not an old one that is much larger than all newer ones together.

    To copy it again each time would make merges the dearer the longer a table has been written to; so each entry is
    copied as often as sizes double, as in a log-structured merge tree.
    """
    worth, size = 1, 0
    for place, manifest in enumerate(group):
        if manifest.manifest_length <= 2 * size:
            worth = place + 1
        size += manifest.manifest_length
    return worth


def _pack_from_end(manifests: Sequence[Manifest], target: int) -> list[list[Manifest]]:
    """Fill bins from the oldest manifest on, so that only the first bin, with the newest, is left part full."""
    bins: list[list[Manifest]] = []
    size = 0
    for manifest in reversed(manifests):
        if bins and size + manifest.manifest_length <= target:
            bins[-1].insert(0, manifest)
            size += manifest.manifest_length
        else:
            bins.append([manifest])
            size = manifest.manifest_length
    return list(reversed(bins))


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What a snapshot does to its parent."""

    kind: Kind
    added: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    removed_deletes: tuple[DataFile, ...] = ()
    lineage_path: str | None = None
    bundles: tuple[Bundle, ...] = ()
    """More files that come."""

    @property
    def operation(self) -> str:
        """Iceberg's word for it."""
        if self.kind is Kind.REWRITE:
            return "replace"
        came = [each.holds_data for each in self.bundles]
        if self.removed or self.deletes or self.removed_deletes or not all(came):
            return "overwrite" if self.added or any(came) else "delete"
        # A delete whose rows were gone when it landed is one all the same: rows on their way mind it (rule P23).
        return "delete" if self.kind is Kind.DELETE else "append"

    @property
    def bytes_written(self) -> int:
        return sum(file.file_size_in_bytes for file in (*self.added, *self.deletes))


def change_of(write: Write, effect: Effect, place: SnapshotPosition) -> Change:
    """The same effect as those see it who have to check against it."""

    def entry(file: DataFile) -> Entry:
        number = place.copies_number if file.file_path in write.copies else place.sequence_number
        return Entry(Status.ADDED, file, place.snapshot_id, number, place.sequence_number)

    return Change(
        snapshot_id=place.snapshot_id,
        sequence_number=place.sequence_number,
        operation=effect.operation,
        added=tuple(map(entry, effect.added)),
        removed=effect.removed,
        deletes=tuple(map(entry, effect.deletes)),
        removed_deletes=effect.removed_deletes,
        is_delete=effect.operation == "delete" or write.kind is Kind.DELETE,
        lineage_path=effect.lineage_path,
        predicate=write.predicate,
        is_partial=bool(effect.bundles),
    )


def snapshot_json(
    write: Write,
    effect: Effect,
    head: TableMetadata,
    parent: Snapshot | None,
    place: SnapshotPosition,
    *,
    timestamp_ms: int,
    manifest_list: str,
    identity: Mapping[str, str],
) -> Json:
    """The new snapshot as metadata.json holds it."""
    summary = {
        "operation": effect.operation,
        **write.snapshot_properties,
        **identity,
        **({} if write.kind is Kind.APPEND else {VERB: write.kind.value}),
        **({} if effect.lineage_path is None else {LINEAGE: effect.lineage_path}),
        **summary_counts(effect, parent),
    }
    snapshot: Json = {
        "snapshot-id": place.snapshot_id,
        "sequence-number": place.sequence_number,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": head.current_schema_id,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent.snapshot_id
    return snapshot


def summary_counts(effect: Effect, parent: Snapshot | None) -> dict[str, str]:
    """Counts in the specification's words ("Optional Snapshot Summary Fields"). A total nobody knows stays unknown."""
    came, went = _counted(effect.added, effect.deletes), _counted(effect.removed, effect.removed_deletes)
    bundled = _counted_in(effect.bundles)
    came = {key: came[key] + bundled[key] for key in _TOTALS}
    summary: dict[str, str] = {}
    for key in _TOTALS:
        if came[key] or (key in ("data-files", "records", "files-size") and effect.kind is Kind.APPEND):
            summary[f"added-{key}"] = str(came[key])
        if went[key]:
            gone = "deleted" if key in ("data-files", "records") else "removed"
            summary[f"{gone}-{key}"] = str(went[key])
    summary |= {key: str(count) for key, count in _delete_files(effect, bundled["delete-files"]) if count}
    everything = (*effect.added, *effect.deletes, *effect.removed, *effect.removed_deletes)
    partitions = {(file.spec_id, file.partition) for file in everything if file.partition}
    if partitions and not effect.bundles:
        summary["changed-partition-count"] = str(len(partitions))
    before = parent.summary if parent is not None else {f"total-{key}": "0" for key in _TOTALS}
    for key in _TOTALS:
        total = before.get(f"total-{key}", "")
        if total.isdigit():
            summary[f"total-{key}"] = str(max(0, int(total) + came[key] - went[key]))
    return summary


_TOTALS = ("data-files", "records", "files-size", "delete-files", "position-deletes", "equality-deletes")
_DELETE_FILES = {Content.POSITION_DELETES: "position", Content.EQUALITY_DELETES: "equality"}


def _delete_files(effect: Effect, bundled: int) -> Iterator[tuple[str, int]]:
    for content, word in _DELETE_FILES.items():
        came = sum(1 for file in effect.deletes if file.content == content)
        yield f"added-{word}-delete-files", came + (bundled if content == Content.EQUALITY_DELETES else 0)
        yield f"removed-{word}-delete-files", sum(1 for file in effect.removed_deletes if file.content == content)


def _counted(data: Sequence[DataFile], deletes: Sequence[DataFile]) -> dict[str, int]:
    rows = {content: sum(f.record_count for f in deletes if f.content == content) for content in _DELETE_FILES}
    return {
        "data-files": len(data),
        "records": sum(file.record_count for file in data),
        "files-size": sum(file.file_size_in_bytes for file in (*data, *deletes)),
        "delete-files": len(deletes),
        "position-deletes": rows[Content.POSITION_DELETES],
        "equality-deletes": rows[Content.EQUALITY_DELETES],
    }


def _counted_in(bundles: Sequence[Bundle]) -> dict[str, int]:
    data = [each.manifest for each in bundles if each.holds_data]
    # Whoever names rows by position has read them, and such writes do not travel.
    by_key = [each.manifest for each in bundles if not each.holds_data]
    return {
        "data-files": sum(each.added_files_count for each in data),
        "records": sum(each.added_rows_count for each in data),
        "files-size": sum(each.size_in_bytes for each in bundles),
        "delete-files": sum(each.added_files_count for each in by_key),
        "position-deletes": 0,
        "equality-deletes": sum(each.added_rows_count for each in by_key),
    }


def add_snapshot(head: TableMetadata, branch: str, snapshot: Json) -> Updates:
    """Updates that put a snapshot on top of a branch."""
    kept = {key: value for key, value in head.refs.get(branch, {}).items() if key not in ("snapshot-id", "type")}
    ref = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    return ({"action": "add-snapshot", "snapshot": snapshot}, {**ref, **kept})


def write_requirements(write: Write, head: TableMetadata) -> Updates:
    """What must still be true of the head when a write lands on it (rule P29)."""
    found: list[Json] = [
        {"type": "assert-table-uuid", "uuid": head.uuid},
        {"type": "assert-ref-snapshot-id", "ref": write.branch, "snapshot-id": head.ref_snapshot_id(write.branch)},
        {"type": "assert-current-schema-id", "current-schema-id": head.current_schema_id},
    ]
    if write.kind is Kind.REPLACE_PARTITIONS or write.key_spec_id is not None:
        found.append({"type": "assert-default-spec-id", "default-spec-id": head.default_spec_id})
    return tuple(found)


def distinct(requirements: Iterable[Json]) -> Updates:
    """The first of each kind, and of each branch: what a chain of changes asks of the head it starts on."""
    found: dict[tuple[str, str], Json] = {}
    for each in requirements:
        found.setdefault((each["type"], each.get("ref", "")), each)
    return tuple(found.values())


def may_be_cleaned_up(since_ms: int, now_ms: int, properties: Mapping[str, str]) -> bool:
    """Whether files written since then are near the age at which others take them for orphans (rule P35).

    Half of it: the clocks of two machines differ, and the swap comes a while after the look.
    """
    return 2 * (now_ms - since_ms) > _number(properties, _ORPHAN_GRACE)


def _text(properties: Mapping[str, str], setting: tuple[str, str]) -> str:
    return str(properties.get(*setting))


def _number(properties: Mapping[str, str], setting: tuple[str, str]) -> int:
    text = _text(properties, setting)
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"The table property {setting[0]} must be a positive whole number, not {text!r}")
    return int(text)
