"""The stages that an operation passes on its way into a snapshot, as values.

    operation ──check──▶ Checked ──rebase──▶ RebasedStep ──build──▶ Built ──prepare──▶ Prepared ──swap──▶ Outcome
                            └─ Refused: the evidence      └─ Refused

``Prepared`` and ``Outcome`` belong to the catalog's seam (``catalog/base.py``). Nothing here changes once it is made: a
retry starts again from the operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from frazil.catalog.base import ChangeRecord, CommitRecord, Head, Proposal, QueueUpdate
from frazil.commit import summaries
from frazil.commit.dropped import dropped_by
from frazil.commit.history import History
from frazil.commit.operations import Write
from frazil.commit.rebase import Rebased
from frazil.commit.snapshot_layout import Effect, Json, distinct
from frazil.commit.trace import RowTrace
from frazil.commit.unit import WriteStep
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply
from frazil.model import Change, Conflict


@dataclass(frozen=True, slots=True)
class Refused:
    """The operations can land neither on this head nor on a later one."""

    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Undecided:
    """Statistics do not decide, and only the operation's own writer opens files for it (rule P4)."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """A write that conflicts with nothing that landed since its base."""

    step: WriteStep
    history: History
    trace: RowTrace | None
    """None: nothing landed since the base."""


@dataclass(frozen=True, slots=True, eq=False)
class RebasedStep:
    """A checked write, as it has to be written to land on the head."""

    step: WriteStep
    history: History
    rebased: Rebased

    @property
    def is_unchanged(self) -> bool:
        return self.rebased.is_unchanged(self.step.write)


@dataclass(frozen=True, slots=True)
class TicketOutcome:
    """The outcome that the writer of a queued commit receives from the leader that committed it."""

    snapshot_id: int | None
    """None: the table has no snapshot, and this commit added none."""
    sequence_number: int
    group_index: int = 0
    shared: bool = False
    rebased_over: int = 0
    group_size: int = 1

    def encode(self) -> bytes:
        about = (self.snapshot_id, self.sequence_number, self.group_index, self.shared, self.rebased_over)
        return orjson.dumps((*about, self.group_size))

    @staticmethod
    def decode(body: bytes) -> TicketOutcome:
        return TicketOutcome(*orjson.loads(body))


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What becomes of the queued commits of a group when the leader's swap lands."""

    outcomes: Mapping[str, TicketOutcome] = field(default_factory=dict)
    """By ticket."""
    returned: tuple[str, ...] = ()
    """Tickets that go back to their writers."""
    records: tuple[CommitRecord, ...] = ()
    to_notify: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """What an attempt proposes for one table so far: each step gives a new value with its snapshot on top."""

    head: Head
    metadata: TableMetadata
    """The head with everything applied that is built."""
    updates: tuple[Json, ...] = ()
    requirements: tuple[Json, ...] = ()
    changes: tuple[Change, ...] = ()
    """What the new snapshots do."""
    concurrent: tuple[Change, ...] = ()
    """What members of the group do, which members added later are checked against."""
    steps: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows, files and bytes of the own operations."""
    snapshot_id: int | None = None
    """The newest snapshot of the own operations; None: they have none."""
    own_sequence_number: int | None = None
    """Of that snapshot, when other writers' snapshots follow it."""
    is_shared: bool = False
    """The own snapshot also holds rows of other writers."""
    merge_due: str | None = None
    """The branch whose manifests are to be merged once this has landed."""
    group: GroupResult | None = None

    @staticmethod
    def on(head: Head) -> Built:
        """Nothing, on this head."""
        return Built(head, head.metadata)

    @property
    def sequence_number(self) -> int:
        return self.own_sequence_number or self.metadata.last_sequence_number

    def adding(self, updates: Sequence[Json], requirements: Sequence[Json]) -> Built:
        return replace(
            self,
            metadata=apply(self.metadata, updates, now_ms=self.head.now_ms, previous_location=None),
            updates=(*self.updates, *updates),
            requirements=(*self.requirements, *requirements),
            steps=self.steps + 1,
        )

    def requiring(self, requirements: Sequence[Json]) -> Built:
        return replace(self, requirements=(*self.requirements, *requirements))

    def counting(self, **numbers: int) -> Built:
        counts = dict(self.counts)
        for key, number in numbers.items():
            counts[key] = counts.get(key, 0) + number
        return replace(self, counts=counts)

    def counting_rows(self, write: Write) -> Built:
        """A write that only adds, in full."""
        return self.counting(
            rows_inserted=write.rows.inserted,
            files_added=len(write.added),
            bytes_written=sum(file.file_size_in_bytes for file in write.added),
        )

    def counting_effect(self, write: Write, rebased: Rebased, effect: Effect) -> Built:
        return self.counting(
            rows_inserted=write.rows.inserted - rebased.dropped,
            rows_updated=write.rows.updated,
            rows_deleted=max(0, write.rows.deleted - rebased.gone_already),
            files_added=len(effect.added) + len(effect.deletes),
            files_removed=len(effect.removed) + len(effect.removed_deletes),
            bytes_written=effect.bytes_written,
        )

    def proposal(
        self, record: CommitRecord | None, queue_update: QueueUpdate | None, *, keeps_changes: bool
    ) -> Proposal:
        return Proposal(
            self.updates,
            distinct(self.requirements),
            record,
            self._change_records() if keeps_changes else (),
            queue_update,
            dropped_by(self.updates, self.head.metadata),
        )

    def _change_records(self) -> tuple[ChangeRecord, ...]:
        records = (summaries.to_record(self.head.metadata.uuid, each) for each in self.changes)
        return tuple(each for each in records if each is not None)
