"""The layout of a new snapshot: its manifests, its summary and its JSON. Pure: the files are written elsewhere."""

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
from frazil.model import Change, Content, DataFile, Entry, Manifest, SharedCommit, Snapshot, Status

Json = dict[str, Any]
Updates = tuple[Json, ...]

VERB, LINEAGE = "frazil.verb", "frazil.lineage"
"""Keys of a snapshot's summary: the kind of write, and the path of the lineage of rows of replaced files."""
APP, HOST, STARTED = "frazil.app", "frazil.host", "frazil.started-ms"
"""Keys of a snapshot's summary: the application, its host, and when its statement began (``origins.py``)."""
SOURCE = "source-snapshot-id"
"""Iceberg's key for the snapshot that was cherry-picked."""

_MERGE_ENABLED = ("commit.manifest-merge.enabled", "true")
_MERGE_MIN_COUNT = ("commit.manifest.min-count-to-merge", "100")
_MERGE_TARGET_SIZE = ("commit.manifest.target-size-bytes", str(8 * 1024 * 1024))
_ORPHAN_GRACE = (ORPHAN_GRACE, str(3 * 24 * 60 * 60 * 1000))
"""Three days, the default of Iceberg's remove_orphan_files."""


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """The position of an attempt's snapshot in the table's history."""

    snapshot_id: int
    sequence_number: int
    copies_number: int
    """The data sequence number of copied rows: that of the snapshot they were read from (rule P20)."""
    attempt: int
    merges_later: bool = False
    """Other writers wait for this commit: manifests are merged after it, not by it (``manifest_merge.py``)."""


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    """The layout of the next manifest list: bins in order, new manifests first. A bin of several is merged into one."""

    bins: tuple[tuple[Manifest, ...], ...]
    is_due: bool = False
    """With this commit there are enough manifests for a deferred merge."""


def lay_out(
    existing: Sequence[Manifest],
    added: Sequence[Manifest],
    properties: Mapping[str, str],
    attempt: int,
    *,
    later: bool = False,
) -> ManifestLayout:
    """Decide which manifests are merged, by Iceberg's own properties and its packing (MergeAppend).

    A retried attempt merges only at twice the count: while many writers race, the one that merges is the slowest and
    loses, and then all of them would merge the same manifests again and again. ``later`` does the same for commits that
    other writers wait for: at the count a merge after the commit is due, and at twice the count the commit merges.
    """
    alone = tuple((manifest,) for manifest in (*added, *existing))
    if _text(properties, _MERGE_ENABLED).lower() != "true":
        return ManifestLayout(alone)
    count = _number(properties, _MERGE_MIN_COUNT)
    minimum = count * (2 if later or attempt > 1 else 1)
    target = manifest_target(properties)
    bins: list[tuple[Manifest, ...]] = []
    is_due = False
    for content in (DATA_MANIFEST, DELETE_MANIFEST):
        new = [manifest for manifest in added if manifest.content == content]
        old = [manifest for manifest in existing if manifest.content == content]
        is_due |= later and _crosses(len(old), len(old) + len(new), count)
        if len(new) + len(old) < minimum:
            bins.extend((manifest,) for manifest in (*new, *old))
        else:
            bins.extend(_merged((*new, *old), minimum, target))
    return ManifestLayout(tuple(bins), is_due)


def manifest_target(properties: Mapping[str, str]) -> int:
    """The size of a manifest, in bytes."""
    return _number(properties, _MERGE_TARGET_SIZE)


def _crosses(before: int, after: int, count: int) -> bool:
    """At the count, and at intervals beyond it: the writer that was to merge at the count may have died."""
    step = max(1, count // 4)
    return after >= count and before // step != after // step


def _merged(manifests: Sequence[Manifest], minimum: int, target: int) -> Iterator[tuple[Manifest, ...]]:
    by_spec: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        by_spec[manifest.partition_spec_id].append(manifest)
    newest = manifests[0]
    for spec_id in sorted(by_spec, reverse=True):
        for group in _pack_from_end(by_spec[spec_id], target):
            # The bin with the newest manifest is still filling; older bins are merged as soon as they are full.
            if newest not in group:
                yield tuple(group)
                continue
            worth = _worth_merging(group) if len(group) >= minimum else 1
            yield tuple(group[:worth])
            yield from ((manifest,) for manifest in group[worth:])


def _worth_merging(group: Sequence[Manifest]) -> int:
    """How many of the newest manifests to merge: not an old one that is much larger than all newer ones together.

    Copying it each time would make merges more expensive the longer a table is written to. Instead, each entry is
    copied once per doubling of the size, as in a log-structured merge tree.
    """
    worth, size = 1, 0
    for index, manifest in enumerate(group):
        if manifest.manifest_length <= 2 * size:
            worth = index + 1
        size += manifest.manifest_length
    return worth


def _pack_from_end(manifests: Sequence[Manifest], target: int) -> list[list[Manifest]]:
    """Fill bins from the oldest manifest on, so that only the first bin, with the newest, is partly full."""
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
    """The difference between a snapshot and its parent."""

    kind: Kind
    added: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    removed_deletes: tuple[DataFile, ...] = ()
    lineage_path: str | None = None
    bundles: tuple[Bundle, ...] = ()
    """More added files, by manifests."""

    @property
    def operation(self) -> str:
        """The operation in Iceberg's snapshot summary."""
        if self.kind is Kind.REWRITE:
            return "replace"
        bundled_data = [each.holds_data for each in self.bundles]
        if self.removed or self.deletes or self.removed_deletes or not all(bundled_data):
            return "overwrite" if self.added or any(bundled_data) else "delete"
        # A delete of rows that were already deleted is still a delete: concurrent appends are checked against it (P23).
        return "delete" if self.kind is Kind.DELETE else "append"

    @property
    def only_marks(self) -> bool:
        """A service marked rows as deleted that were deleted before: nothing was written again."""
        return self.operation == "replace" and only_marks(self.added, self.deletes)

    @property
    def bytes_written(self) -> int:
        return sum(file.file_size_in_bytes for file in (*self.added, *self.deletes))


def only_marks(added: Sequence[object], deletes: Sequence[DataFile]) -> bool:
    """Whether a snapshot that changes no rows adds position deletes at most."""
    return not added and all(file.content == Content.POSITION_DELETES for file in deletes)


def change_of(
    write: Write,
    effect: Effect,
    position: SnapshotPosition,
    commits: tuple[SharedCommit, ...] = (),
    committed_ms: int | None = None,
) -> Change:
    """The effect as the change that other operations are checked against."""

    def entry(file: DataFile) -> Entry:
        own = write.numbers.get(file.file_path, position.sequence_number)
        number = position.copies_number if file.file_path in write.copies else own
        return Entry(Status.ADDED, file, position.snapshot_id, number, position.sequence_number)

    return Change(
        snapshot_id=position.snapshot_id,
        sequence_number=position.sequence_number,
        operation=effect.operation,
        added=tuple(map(entry, effect.added)),
        removed=effect.removed,
        deletes=tuple(map(entry, effect.deletes)),
        removed_deletes=effect.removed_deletes,
        is_delete=effect.operation == "delete" or write.kind is Kind.DELETE or effect.only_marks,
        lineage_path=effect.lineage_path,
        predicate=write.predicate,
        commits=commits,
        committed_ms=committed_ms,
        is_partial=bool(effect.bundles),
    )


def snapshot_json(
    write: Write,
    effect: Effect,
    head: TableMetadata,
    parent: Snapshot | None,
    position: SnapshotPosition,
    *,
    timestamp_ms: int,
    manifest_list: str,
    identity: Mapping[str, str],
) -> Json:
    """The new snapshot as it is written to metadata.json."""
    summary = {
        "operation": effect.operation,
        **write.snapshot_properties,
        **identity,
        VERB: write.kind.value,
        **({} if effect.lineage_path is None else {LINEAGE: effect.lineage_path}),
        **summary_counts(effect, parent),
    }
    snapshot: Json = {
        "snapshot-id": position.snapshot_id,
        "sequence-number": position.sequence_number,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": head.current_schema_id,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent.snapshot_id
    return snapshot


def summary_counts(effect: Effect, parent: Snapshot | None) -> dict[str, str]:
    """The specification's "Optional Snapshot Summary Fields". A total that the parent lacks is left out."""
    added, removed = _counted(effect.added, effect.deletes), _counted(effect.removed, effect.removed_deletes)
    bundled = _counted_in(effect.bundles)
    added = {key: added[key] + bundled[key] for key in _TOTALS}
    summary: dict[str, str] = {}
    for key in _TOTALS:
        if added[key] or (key in ("data-files", "records", "files-size") and effect.kind is Kind.APPEND):
            summary[f"added-{key}"] = str(added[key])
        if removed[key]:
            verb = "deleted" if key in ("data-files", "records") else "removed"
            summary[f"{verb}-{key}"] = str(removed[key])
    summary |= {key: str(count) for key, count in _delete_files(effect, bundled["delete-files"]) if count}
    everything = (*effect.added, *effect.deletes, *effect.removed, *effect.removed_deletes)
    partitions = {(file.spec_id, file.partition) for file in everything if file.partition}
    if partitions and not effect.bundles:
        summary["changed-partition-count"] = str(len(partitions))
    before = parent.summary if parent is not None else {f"total-{key}": "0" for key in _TOTALS}
    for key in _TOTALS:
        total = before.get(f"total-{key}", "")
        if total.isdigit():
            summary[f"total-{key}"] = str(max(0, int(total) + added[key] - removed[key]))
    return summary


_TOTALS = ("data-files", "records", "files-size", "delete-files", "position-deletes", "equality-deletes")
_DELETE_FILES = {Content.POSITION_DELETES: "position", Content.EQUALITY_DELETES: "equality"}


def _delete_files(effect: Effect, bundled: int) -> Iterator[tuple[str, int]]:
    for content, word in _DELETE_FILES.items():
        added = sum(1 for file in effect.deletes if file.content == content)
        yield f"added-{word}-delete-files", added + (bundled if content == Content.EQUALITY_DELETES else 0)
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
    # A write with position deletes has read rows, and such writes are not delegable.
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
    """Updates that add a snapshot and make it the head of a branch."""
    kept = {key: value for key, value in head.refs.get(branch, {}).items() if key not in ("snapshot-id", "type")}
    ref = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    return ({"action": "add-snapshot", "snapshot": snapshot}, {**ref, **kept})


def write_requirements(write: Write, head: TableMetadata) -> Updates:
    """The conditions on the head under which a write may land on it (rule P29)."""
    found: list[Json] = [
        {"type": "assert-table-uuid", "uuid": head.uuid},
        {"type": "assert-ref-snapshot-id", "ref": write.branch, "snapshot-id": head.ref_snapshot_id(write.branch)},
        {"type": "assert-current-schema-id", "current-schema-id": head.current_schema_id},
    ]
    if write.kind is Kind.REPLACE_PARTITIONS or write.key_spec_id is not None:
        found.append({"type": "assert-default-spec-id", "default-spec-id": head.default_spec_id})
    return tuple(found)


def distinct(requirements: Iterable[Json]) -> Updates:
    """The first requirement of each type, and of each branch: what a chain of changes requires of its first head."""
    found: dict[tuple[str, str], Json] = {}
    for each in requirements:
        found.setdefault((each["type"], each.get("ref", "")), each)
    return tuple(found.values())


def may_be_cleaned_up(since_ms: int, now_ms: int, properties: Mapping[str, str]) -> bool:
    """Whether files written since then are near the age at which a cleanup may remove them as orphans (rule P35).

    The limit is half of that age: clocks of machines differ, and the swap happens some time after this check.
    """
    return 2 * (now_ms - since_ms) > _number(properties, _ORPHAN_GRACE)


def _text(properties: Mapping[str, str], setting: tuple[str, str]) -> str:
    return str(properties.get(*setting))


def _number(properties: Mapping[str, str], setting: tuple[str, str]) -> int:
    text = _text(properties, setting)
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"The table property {setting[0]} must be a positive whole number, not {text!r}")
    return int(text)
