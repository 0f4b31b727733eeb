"""What is committed at once: operations on one table or on several, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from frazil.commit.inspection import FullInspector
from frazil.commit.intents import ExpireSnapshots, MoveRef, NewRef, UpgradeFormat
from frazil.commit.manifests import OperationManifests
from frazil.commit.operations import Bundle, Identity, Kind, MetadataChange, Operation, Write
from frazil.commit.retry import Retry
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.runtime import Runtime
from frazil.wording import listed


@dataclass(frozen=True, slots=True, eq=False)
class WriteStep:
    """A write, with what its attempts share."""

    write: Write
    snapshot_id: int
    """The same in all attempts, so that an earlier attempt whose response was lost is recognized by it."""
    manifests: OperationManifests
    inspector: FullInspector


Step = WriteStep | MetadataChange


@dataclass(frozen=True, slots=True, eq=False)
class TableUnit:
    """The operations of a commit on one table, in order, with what their attempts share."""

    ident: Ident
    table_uuid: str
    operations: tuple[Operation, ...]
    steps: tuple[Step, ...]
    storage: Storage
    made: TableMetadata | None = None
    """The commit creates the table, in this first version."""
    is_dropped: bool = False
    """The commit drops the table."""
    is_only_read: bool = False
    """The transaction wrote nothing here: the operations are its read set."""
    has_others: bool = False
    """The commit has other tables: what found nothing to do here is checked as well, as its order matters to them."""

    @staticmethod
    def of(
        ident: Ident,
        operations: Sequence[Operation],
        storage: Storage,
        runtime: Runtime,
        inspector: type[FullInspector] = FullInspector,
    ) -> TableUnit:
        steps = tuple(
            WriteStep(
                operation,
                operation.snapshot_id or runtime.new_snapshot_id(),
                OperationManifests(operation, storage, runtime),
                inspector(storage, operation, _added_by(operations[:number])),
            )
            if isinstance(operation, Write)
            else operation
            for number, operation in enumerate(operations)
        )
        return TableUnit(ident, operations[0].table_uuid if operations else "", tuple(operations), steps, storage)

    @property
    def writes(self) -> list[WriteStep]:
        return [step for step in self.steps if isinstance(step, WriteStep)]

    @property
    def effective_writes(self) -> list[WriteStep]:
        """The writes without those that only read; these, if all of them only read."""
        return [step for step in self.writes if not step.write.is_empty] or self.writes

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return tuple(step.snapshot_id for step in self.writes)

    @property
    def base_id(self) -> int | None:
        """The snapshot that the writes were made on, if there are writes."""
        return self.effective_writes[-1].write.base.snapshot_id if self.writes else None

    @property
    def branch(self) -> str:
        return self.effective_writes[-1].write.branch if self.writes else MAIN

    @property
    def moves_ref_to(self) -> int | None:
        """The snapshot that a branch or tag has after the commit, if all the commit does is to set it."""
        refs = [each.intent for each in self.operations if isinstance(each, MetadataChange)]
        targets = [each.snapshot_id for each in refs if isinstance(each, MoveRef | NewRef)]
        return targets[-1] if targets and not self.writes else None

    @property
    def upgrades_format(self) -> bool:
        """Everything that follows is written to a table of the newer format version."""
        first = self.operations[0] if self.operations else None
        return isinstance(first, MetadataChange) and isinstance(first.intent, UpgradeFormat)

    @property
    def is_of_service(self) -> bool:
        """It changes how rows are stored or which snapshots are kept, so it lets all writers go first (rule P44)."""
        return bool(self.operations) and all(_is_of_service(each) for each in self.operations)

    def has_landed_in(self, head: TableMetadata) -> bool:
        return any(head.has_snapshot(each) for each in self.snapshot_ids)

    def bundle(self, head: TableMetadata) -> tuple[Bundle, ...]:
        """The files of the only write, in manifests that another writer can add."""
        (step,) = self.writes
        return step.manifests.bundle(head)

    def redone(self, write: Write, runtime: Runtime) -> TableUnit:
        """The same unit with its last write evaluated again. What was staged for the earlier one alone is deleted."""
        *others, earlier = self.steps
        assert isinstance(earlier, WriteStep)
        earlier.manifests.remove_all()
        staged = set(write.staged_paths)
        self.storage.delete([path for path in earlier.write.staged_paths if path not in staged])
        manifests = OperationManifests(write, self.storage, runtime)
        inspector = type(earlier.inspector)(self.storage, write, _added_by(self.operations[:-1]))
        step = WriteStep(write, earlier.snapshot_id, manifests, inspector)
        return replace(self, operations=(*self.operations[:-1], write), steps=(*others, step))

    # Clean-up

    def keep_rows(self) -> None:
        for step in self.writes:
            step.manifests.keep_rows()

    def remove_unused(self) -> None:
        for step in self.writes:
            step.manifests.remove_unused()

    def remove_scratch(self) -> None:
        """Remove everything except the staged rows."""
        for step in self.writes:
            step.manifests.remove_all()

    def remove_everything(self) -> None:
        """Remove staged rows and manifests: no snapshot references them, and none ever will."""
        for step in self.writes:
            step.manifests.remove_all()
            self.storage.delete(step.write.staged_paths)


class EvaluatedStatement(Protocol):
    """A statement that was given whole, so that it can be evaluated on any version of the table."""

    @property
    def write(self) -> Write: ...

    def on(self, head: TableMetadata) -> EvaluatedStatement | None:
        """The statement on a newer version: what has not changed since is kept. None: it cannot be evaluated there."""


@dataclass(frozen=True, slots=True, eq=False)
class CommitUnit:
    """The tables of one commit, its identity over all attempts, and how long it tries."""

    tables: tuple[TableUnit, ...]
    identity: Identity
    retry: Retry
    name: str
    """The verb, for messages and metrics."""
    statement: EvaluatedStatement | None = None
    """What the last write of the only written table was evaluated from; None: a conflict ends the commit."""

    @property
    def written(self) -> tuple[TableUnit, ...]:
        return tuple(each for each in self.tables if not each.is_only_read)

    @property
    def subject(self) -> str:
        """The tables, for messages."""
        return listed([str(each.ident) for each in self.written or self.tables])

    def remove_everything(self) -> None:
        for table in self.tables:
            table.remove_everything()


def name_of(operations: Sequence[Operation]) -> str:
    """What a commit of these operations is called in messages and metrics."""
    writes = [each.name for each in operations if isinstance(each, Write) and not each.is_empty]
    changes = [each.name for each in operations if isinstance(each, MetadataChange)]
    named = writes or changes
    return operations[0].name if len(operations) == 1 else named[0] if len(named) == 1 else "transaction"


def _is_of_service(operation: Operation) -> bool:
    if isinstance(operation, Write):
        # A leader commits its merge of manifests with what waits, and a statement waits for deletes to be put back.
        return operation.kind is Kind.REWRITE and not (operation.may_share_a_snapshot or operation.numbers)
    return isinstance(operation.intent, ExpireSnapshots)


def _added_by(operations: Sequence[Operation]) -> frozenset[str]:
    """Files added by earlier steps: no concurrent delete applies to them."""
    return frozenset(file.file_path for each in operations if isinstance(each, Write) for file in each.added)
