"""One call of a verb as values: its options, and how its write is evaluated on a version of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from frazil.commit.context import OnPhase
from frazil.commit.intents import Intent
from frazil.commit.metadata_changes import metadata_change, pin
from frazil.commit.operations import Identity, MetadataChange, Write
from frazil.commit.retry import Retry
from frazil.dml.engine import ARROW, Engine
from frazil.dml.view import Settings, View
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply
from frazil.model import Commit

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
    reevaluates: bool = False
    """After a conflict the write is built again on the new head, instead of failing."""

    def write(self) -> Write:
        """Stage the files of the write, on the call's version of the table."""
        return self.build(self.call.view, self.call.settings)

    def on(self, metadata: TableMetadata) -> Statement:
        """The same statement on a newer version of the table."""
        return replace(self, call=self.call.on(metadata))
