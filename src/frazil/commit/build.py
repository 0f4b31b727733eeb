"""The third stage: steps built one upon the other into what an attempt proposes for a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frazil.catalog.base import Catalog
from frazil.catalog.records import COMMIT_DIGEST, COMMIT_ID
from frazil.commit import origins
from frazil.commit.checking import checked_and_rebased
from frazil.commit.conflicts import head_conflicts
from frazil.commit.intents import IntentConflict
from frazil.commit.manifests import FilesMissing, missing_files
from frazil.commit.metadata_changes import metadata_change, removing
from frazil.commit.operations import Identity, MetadataChange, Write
from frazil.commit.retention import expired_with_commit
from frazil.commit.snapshot_layout import (
    Effect,
    SnapshotPosition,
    add_snapshot,
    change_of,
    may_be_cleaned_up,
    snapshot_json,
    write_requirements,
)
from frazil.commit.stages import Built, RebasedStep, Refused, Undecided
from frazil.commit.unit import TableUnit, WriteStep
from frazil.errors import CommitFailed, CorruptMetadata, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.format.properties import ORPHAN_GRACE
from frazil.format.storage import Storage
from frazil.format.updates import next_time_ms
from frazil.model import Ident, SharedCommit, Snapshot
from frazil.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Owners:
    """The commits that a snapshot holds, and the part of its summary that says so."""

    summary: Mapping[str, str]
    commits: tuple[SharedCommit, ...]

    @staticmethod
    def of(identity: Identity, write: Write) -> Owners:
        """One commit alone."""
        if not identity.commit_id:
            return Owners({}, ())
        return Owners(summary_identity(identity), (commit_in(write, identity),))


def summary_identity(identity: Identity) -> dict[str, str]:
    """The part of a snapshot's summary that says which commit it belongs to, and where that comes from."""
    summary = {COMMIT_ID: identity.commit_id, **origins.in_summary(identity.origin)}
    if identity.given:
        summary[COMMIT_DIGEST] = identity.digest
    return summary


def commit_in(write: Write, identity: Identity) -> SharedCommit:
    """A commit, as it is recorded with the snapshot that holds its write."""
    origin = origins.of_write(identity, write.kind)
    return SharedCommit(identity.commit_id, write.new_rows, write.new_files, origin)


@dataclass(slots=True)
class AttemptFiles:
    """The files that one attempt wrote and no other attempt can use."""

    storage: Storage
    written: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    """Those of ``written`` that are needed no more once the attempt has landed."""

    def wrote(self, path: str) -> None:
        self.written.append(path)

    def take_over(self, step: WriteStep) -> None:
        """The manifests of a step that only this attempt has."""
        self.written.extend(step.manifests.written)

    def take_over_unused(self, step: WriteStep) -> None:
        self.unused.extend(step.manifests.unused)

    def delete(self) -> None:
        """After a definite failure."""
        self.storage.delete(tuple(self.written))

    def delete_unused(self) -> None:
        """After a success."""
        self.storage.delete(tuple(self.unused))


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """What all steps of one attempt share."""

    catalog: Catalog
    storage: Storage
    runtime: Runtime
    identity: Identity
    """Of the own commit. Without an id nothing is committed."""
    attempt: int
    files: AttemptFiles
    leads: bool = False
    """Other writers wait for this attempt."""


def check_staged_files(unit: TableUnit, metadata: TableMetadata, scope: Scope) -> None:
    """An orphan clean-up may have removed files of an old operation (rule P35), and an expiry those that are put back
    (rule P42). Raises CommitFailed.
    """
    expired = [each for step in unit.writes for each in step.write.named_by if metadata.snapshot(each) is None]
    if expired:
        raise CommitFailed(
            f"Delete files are not put back into {unit.ident}: they may be deleted at any moment",
            evidence=f"The snapshot {expired[0]}, which named them, has expired",
            advice="Nothing was committed. Delete the rows that came back again",
        )
    now = scope.runtime.now_ms()
    old = [
        step.manifests
        for step in unit.writes
        if not step.write.owns_files
        or (
            step.write.staged_since_ms is not None
            and may_be_cleaned_up(step.write.staged_since_ms, now, metadata.properties)
        )
    ]
    paths = [path for each in old for path in each.paths]
    log = scope.catalog.deletions
    # Noted files may be deleted at any moment (rule P42). The notes were made before this head.
    noted = log.among(metadata.uuid, paths) if paths and log is not None else []
    missing = noted or missing_files(scope.storage, paths)
    if missing:
        raise CommitFailed(
            f"{len(missing)} of the files that were written for this commit to {unit.ident} were removed before "
            "it could land, and nothing was committed",
            evidence=f"One of them is {missing[0]}",
            advice=f"Repeat the write. Orphan clean-up must spare files younger than the table property {ORPHAN_GRACE} "
            "says, and a write must take less time than that",
        )


def add_change(change: MetadataChange, onto: Built) -> Built | Refused:
    """A change without rows, replayed on what is built."""
    if conflicts := head_conflicts(change, onto.metadata):
        return Refused(conflicts)
    try:
        found = metadata_change(change, onto.metadata, onto.head.now_ms)
    except IntentConflict as conflict:
        return Refused(conflict.conflicts)
    return onto if found is None else onto.adding(*found).counting(changed=1)


def add_changes(changes: Sequence[MetadataChange], onto: Built) -> Built | Refused | Undecided:
    """The changes of another writer's commit, all or none. Undecided if one of them changes nothing."""
    built = onto
    for change in changes:
        if conflicts := head_conflicts(change, built.metadata):
            return Refused(conflicts)
        try:
            found = metadata_change(change, built.metadata, onto.head.now_ms)
        except IntentConflict as conflict:
            return Refused(conflict.conflicts)
        if found is None:
            return Undecided()
        built = built.adding(*found)
    return built


def add_write(
    unit: TableUnit, step: WriteStep, onto: Built, scope: Scope, *, member: Identity | None = None
) -> Built | Refused | Undecided:
    """A write on top of what is built, with a snapshot of its own, or nothing where nothing is left to do.

    ``member``: it belongs to this commit of another writer.
    """
    write = step.write
    if write.is_empty and len(unit.steps) == 1 and not unit.has_others:
        # The write found nothing to do, as if it had landed before all changes since its base.
        return onto
    found = checked_and_rebased(unit, step, onto, scope.catalog)
    if not isinstance(found, RebasedStep):
        return found
    if write.reads:
        onto = onto.requiring(write_requirements(write, onto.head.metadata))
    if found.rebased.is_empty:
        return onto
    parent = parent_of(unit.ident, onto.metadata, write.branch)
    position = _position(unit, found, parent, onto, scope)
    others = None if member is None else Owners.of(member, write)
    try:
        built, effect = put_snapshot(found, onto, parent, position, scope, others)
    except FilesMissing as missing:
        return Refused((missing.conflict,))
    return built if member is not None else built.counting_effect(write, found.rebased, effect)


def put_snapshot(
    step: RebasedStep,
    onto: Built,
    parent: Snapshot | None,
    position: SnapshotPosition,
    scope: Scope,
    others: Owners | None = None,
) -> tuple[Built, Effect]:
    """Write a snapshot's manifests, and put it on top of its branch. Raises FilesMissing.

    ``others``: it is not, or not only, the own commit's.
    """
    write, manifests = step.step.write, step.step.manifests
    owners = others or Owners.of(scope.identity, write)
    timestamp_ms = next_time_ms(onto.metadata, onto.head.now_ms)
    manifest_list, effect = manifests.write_list(onto.metadata, parent, step.rebased, position)
    scope.files.wrote(manifest_list)
    snapshot = snapshot_json(
        write,
        effect,
        onto.metadata,
        parent,
        position,
        timestamp_ms=timestamp_ms,
        manifest_list=manifest_list,
        identity=owners.summary,
    )
    built = onto.adding(
        add_snapshot(onto.metadata, write.branch, snapshot), write_requirements(write, onto.head.metadata)
    )
    built = replace(
        built,
        changes=(*built.changes, change_of(write, effect, position, owners.commits, timestamp_ms)),
        merge_due=write.branch if manifests.is_merge_due else built.merge_due,
    )
    return (built if others is not None else owning(built, position)), effect


def owning(built: Built, position: SnapshotPosition) -> Built:
    """The newest snapshot is the commit's own."""
    return replace(built, snapshot_id=position.snapshot_id, own_sequence_number=position.sequence_number)


def expire_old(onto: Built, pinned: Callable[[], frozenset[int]]) -> Built:
    """Expire snapshots past their age with the commit (rule P18)."""
    expired = expired_with_commit(onto.metadata, onto.head.now_ms, pinned)
    return onto.adding(removing(expired, onto.metadata), ()) if expired.snapshot_ids else onto


def parent_of(ident: Ident, metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The snapshot to build on. An unresolvable one is refused: "no parent" would drop every earlier row."""
    parent = metadata.head_snapshot(branch)
    if parent is None and metadata.ref_snapshot_id(branch) is not None:
        raise CorruptMetadata(f"The branch {branch!r} of {ident} names a snapshot that is not kept")
    if parent is not None and parent.manifest_list is None:
        raise Unsupported(
            f"The newest snapshot of {ident} lists its manifests in the metadata file, as format version 1 allowed",
            advice="Commit once with another engine, which writes a manifest list",
        )
    return parent


def _position(
    unit: TableUnit, found: RebasedStep, parent: Snapshot | None, onto: Built, scope: Scope
) -> SnapshotPosition:
    # The snapshot that was read is the parent, unless concurrent commits are in between. The first effective write
    # read the base, however many steps before it only read.
    is_first = found.step is unit.effective_writes[0]
    read = found.step.write.base.sequence_number if found.history.changes and is_first else None
    if read is None:
        read = parent.sequence_number if parent is not None else 0
    return SnapshotPosition(
        snapshot_id=found.step.snapshot_id,
        sequence_number=onto.metadata.last_sequence_number + 1,
        copies_number=read,
        attempt=scope.attempt,
        merges_later=scope.leads,
    )
