"""One call of a verb as values: its options, and how its write is evaluated on a version of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema

from frazil.commit.context import OnPhase
from frazil.commit.intents import Intent, IntentConflict
from frazil.commit.metadata_changes import metadata_change, pin
from frazil.commit.operations import Identity, Kind, MetadataChange, OnConflict, Write
from frazil.commit.retry import Retry
from frazil.dml.engine import ARROW, Engine
from frazil.dml.redo import continued, without_lost_groups
from frazil.dml.view import Settings, View
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply
from frazil.model import Commit
from frazil.table.guard import came_back

Build = Callable[[View, Settings], Write]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: the version of the table it works on, and how it is committed."""

    view: View
    settings: Settings
    identity: Identity
    retry: Retry
    on_phase: OnPhase | None
    merge_schema: bool
    dry_run: bool
    own_snapshot: bool = False
    on_conflict: OnConflict = "redo"
    before: tuple[MetadataChange, ...] = ()
    """Metadata changes that go into the same commit, ahead of the rows."""
    started: float = 0.0
    found: Commit | None = None
    """The earlier commit with the same id."""
    engine: Engine = ARROW

    def on(self, metadata: TableMetadata) -> Call:
        """The same call on a newer version of the table."""
        return replace(self, view=replace(self.view, metadata=metadata))

    def after(self, intent: Intent) -> Call:
        """The same call on the table as it is after a metadata change, which is then committed with it."""
        metadata = self.view.metadata
        change = MetadataChange(metadata.uuid, pin(intent, metadata))
        updates, _ = metadata_change(change, metadata) or ((), ())
        later = apply(metadata, updates, now_ms=metadata.last_updated_ms, previous_location=None)
        return replace(self.on(later), before=(*self.before, change))

    def preview(self, inserted: int, updated: int = 0, deleted: int = 0) -> Commit:
        """What the call would do. Nothing is committed."""
        metadata = self.view.metadata
        return Commit(
            snapshot_id=metadata.ref_snapshot_id(self.view.branch),
            sequence_number=metadata.last_sequence_number,
            commit_id=self.identity.commit_id,
            attempts=0,
            changed=False,
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            engine=self.engine.name,
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """A call with the function that stages its files and returns its write."""

    call: Call
    build: Build
    is_whole: bool = False
    """It decides by the table's rows alone, so that it can be evaluated on any version of the table."""
    takes_back: bool = False
    """Evaluated again, it takes out the new rows that depend on files that changed (``dml/redo.py``)."""
    is_by_name: bool = False
    """It finds columns by their names each time: on a version with other names it could take another column."""

    def write(self) -> Write:
        """Stage the files of the write, on the call's version of the table."""
        write = self.build(self.call.view, self.call.settings)
        return replace(write, own_snapshot=self.call.own_snapshot)

    def evaluated(self) -> Evaluated:
        return Evaluated(self, self.write())


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """A statement with its write on the call's version of the table."""

    statement: Statement
    write: Write

    @property
    def can_be_redone(self) -> bool:
        statement, write = self.statement, self.write
        return statement.is_whole and statement.call.on_conflict == "redo" and not write.is_empty

    def on(self, head: TableMetadata) -> Evaluated | None:
        """The same on a newer version (``dml/redo.py``); None: it does not fit there."""
        call = self.statement.call
        after = _changed(call.before, head)
        if after is None or (self.statement.is_by_name and not _has_names(call.view.schema, after.schema())):
            return None
        if came_back(call.view.storage, after, call.view.branch):
            # Copies of rows that are back would be too young for the delete that is to be put back (rule P43).
            return None
        view = replace(call.view, metadata=after, kept=None)
        if self.write.kind is Kind.REWRITE and not self.write.is_of_metadata and _has_base(self.write, after):
            return replace(self, write=without_lost_groups(self.write, view))
        view = continued(call.view, self.write, view, takes_back=self.statement.takes_back)
        return replace(self.statement, call=replace(call, view=view)).evaluated()


def _has_names(before: Schema, after: Schema) -> bool:
    """Whether no column was renamed, and no name was taken over. A column that is gone cannot be confused."""
    taken = set(map(after.find_column_name, after.field_ids))
    return all(
        after.find_column_name(each) == name or (after.find_column_name(each) is None and name not in taken)
        for each, name in ((each, before.find_column_name(each)) for each in before.field_ids)
    )


def _has_base(write: Write, head: TableMetadata) -> bool:
    base = write.base.snapshot_id
    return base is not None and head.is_ancestor(base, of=head.ref_snapshot_id(write.branch))


def _changed(changes: Sequence[MetadataChange], head: TableMetadata) -> TableMetadata | None:
    """The head with the metadata changes that a call makes ahead of its rows."""
    for change in changes:
        try:
            found = metadata_change(change, head, head.last_updated_ms)
        except IntentConflict:
            return None
        if found is not None:
            head = apply(head, found[0], now_ms=head.last_updated_ms, previous_location=None)
    return head
