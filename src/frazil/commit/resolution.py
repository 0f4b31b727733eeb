"""What became of a swap whose response was lost, or proves nothing (rules P9 and P30)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frazil.catalog.base import Catalog, CommitRecord, Committed, Guard, Head, Outcome, Prepared, Stale, Unknown
from frazil.catalog.foreign_outcomes import Trace, is_fenced, is_gapless, trace_of
from frazil.catalog.requirements import is_fenced_off
from frazil.commit.operations import Identity
from frazil.commit.retry import Retry
from frazil.commit.stages import Built
from frazil.commit.unit import TableUnit
from frazil.errors import FrazilError, NoSuchTable
from frazil.format.metadata import TableMetadata
from frazil.model import Ident
from frazil.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Resolution:
    """An outcome, and the later head in which the commit was found, if it had to be looked for."""

    outcome: Outcome
    seen_in: TableMetadata | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Resolver:
    """Finds out the outcome of one swap."""

    catalog: Catalog
    runtime: Runtime
    table: TableUnit
    identity: Identity
    retry: Retry
    prepared: Prepared
    built: Built

    def resolve(self, answer: Outcome) -> Resolution:
        """Turn an answer that proves nothing into one that does, where that is possible."""
        if isinstance(answer, Stale) and not self.catalog.capabilities.stale_is_certain:
            return self._search()
        found = Resolution(answer)
        repeats = 0
        while isinstance(found.outcome, Unknown) and repeats <= max(self.retry.fault_tries, 1):
            if repeats:
                self.runtime.sleep(self.retry.wait_s(repeats - 1, self.runtime.random()))
            repeats += 1
            found = self._send_again()
        return found

    def _send_again(self) -> Resolution:
        # The identical swap: harmless if the first one landed, and if it is still under way this one fences it off.
        try:
            if self.prepared.location is None and self.built.snapshot_id is None:
                # A change that replaces nothing by name would be applied again, over what has landed since.
                head, is_there = self._looked_for()
                if is_there:
                    return Resolution(Committed(head.location), head.metadata)
            outcome = self.catalog.swap(self.prepared)
        except FrazilError as error:
            # Why the second swap was not sent says nothing about the first.
            return Resolution(Unknown(error.problem))
        return self._search(is_under_way=True) if isinstance(outcome, Stale) else Resolution(outcome)

    def _search(self, *, is_under_way: bool = False) -> Resolution:
        """Look for the commit in a fresh head. Absence is believed only where the history is complete.

        ``is_under_way``: a copy of the swap may still arrive, whatever the last answer was.
        """
        try:
            head, is_there = self._looked_for()
        except NoSuchTable:
            return Resolution(Unknown("The table was dropped, and with it every trace of the commit"))
        except FrazilError as error:
            return Resolution(Unknown(error.problem))
        if head.metadata.uuid != self.table.table_uuid:
            return Resolution(Unknown("The name belongs to another table now, and this table was not found"))
        if is_there:
            return Resolution(Committed(head.location), head.metadata)
        return Resolution(self._absent_from(head, is_under_way=is_under_way))

    def _absent_from(self, head: Head, *, is_under_way: bool) -> Outcome:
        if head.location == self.prepared.head.location:
            return Unknown("The head has not moved since the swap was sent, so the swap may still land")
        # Where the pointer itself is compared, a head that has moved keeps every late copy out.
        is_compared = self.prepared.location is not None
        if is_under_way and not is_compared and not is_fenced_off(self.prepared.proposal.requirements, head.metadata):
            return Unknown("The table has moved on, but nothing in it keeps the swap from landing later")
        if not self._history_is_complete(head.metadata):
            return Unknown("The history between the base and the head is broken, so absence proves nothing")
        return Stale(head.location)

    def _looked_for(self) -> tuple[Head, bool]:
        """A fresh head, and whether the commit is in it."""
        head = self.catalog.load(self.table.ident)
        record = self.catalog.find_commit(head.metadata, self.identity.commit_id)
        is_recorded = record is not None and self._is_own(record)
        is_there = head.metadata.uuid == self.table.table_uuid and (
            self.table.has_landed_in(head.metadata) or self._names(head) or is_recorded
        )
        return head, is_there

    def _is_own(self, record: CommitRecord) -> bool:
        return record.digest == self.identity.digest and record.snapshot_id in (self.table.snapshot_ids or (None,))

    def _names(self, head: Head) -> bool:
        """Whether the prepared metadata file is the head, or was."""
        location = self.prepared.location
        if location is None:
            return False
        log = {entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log") or ()}
        return location == head.location or location in log

    def _history_is_complete(self, head: TableMetadata) -> bool:
        before = self.prepared.head
        if self.built.snapshot_id is None:
            # A change without a snapshot leaves its trace only in the log of metadata files.
            return any(entry["metadata-file"] == before.location for entry in head.raw.get("metadata-log") or ())
        if self.prepared.location is None and not is_gapless(before.metadata, head):
            # It may have landed, been rolled back and expired; no log of metadata files would tell.
            return False
        base = before.metadata.ref_snapshot_id(self.table.branch)
        chain = list(head.ancestors(head.ref_snapshot_id(self.table.branch)))
        if base is None:
            # Expiry may clear the parent of the oldest kept snapshot, so "no parent" alone proves nothing.
            first = before.metadata.last_sequence_number + 1
            if not chain:
                return not any(head.snapshots())
            return chain[-1].parent_snapshot_id is None and chain[-1].sequence_number == first
        return any(each.snapshot_id == base for each in chain)


@dataclass(frozen=True, slots=True)
class MultiResolution:
    """An outcome of all tables, and the later heads that were read if it had to be looked for."""

    outcome: Outcome
    seen_in: Mapping[Ident, TableMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class MultiResolver:
    """Finds out the outcome of a swap of several tables: all of them have it, or none.

    The swap's own transaction recorded the commit id with every table that was written to, so the records decide.
    """

    catalog: Catalog
    runtime: Runtime
    retry: Retry
    prepared: tuple[Prepared, ...]
    guards: tuple[Guard, ...]

    def resolve(self, answer: Outcome) -> MultiResolution:
        found, repeats = MultiResolution(answer), 0
        # Half of it is there: to send it again would only add to that.
        while (
            isinstance(found.outcome, Unknown)
            and not found.outcome.landed
            and repeats <= max(self.retry.fault_tries, 1)
        ):
            if repeats:
                self.runtime.sleep(self.retry.wait_s(repeats - 1, self.runtime.random()))
            repeats += 1
            found = self._send_again()
        return found

    def _send_again(self) -> MultiResolution:
        # The identical swap: harmless if the first one landed, and if it is still under way this one fences it off.
        try:
            if not self.catalog.capabilities.stale_is_certain:
                return self._compare_again()
            outcome = self.catalog.swap(*self.prepared, guards=self.guards)
            return self._looked_for(outcome) if isinstance(outcome, Stale) else MultiResolution(outcome)
        except FrazilError as error:
            return MultiResolution(Unknown(error.problem))

    def _looked_for(self, stale: Stale) -> MultiResolution:
        # The heads first: once a pointer has moved, no copy can land any more, and the records are final.
        expected = {each.ident: each.head.location for each in self.prepared}
        expected |= {each.ident: each.location for each in self.guards}
        heads = self._heads((*self.prepared, *self.guards))
        if self._is_recorded(heads):
            return MultiResolution(Committed(""), _metadata_of(heads))
        if all((head.location if head else "") == expected[ident] for ident, head in heads.items()):
            return MultiResolution(Unknown("No table has moved since the swap was sent, so it may still land"))
        return MultiResolution(stale)

    def _compare_again(self) -> MultiResolution:
        """The same where requirements are compared and not locations. Stale was found in fresh heads there."""
        # A change that replaces nothing by name would be applied again, over what has landed since.
        heads = self._heads(self.prepared)
        if self.prepared and all(trace_of(each, heads[each.ident]) is Trace.LANDED for each in self.prepared):
            return MultiResolution(Committed(""), _metadata_of(heads))
        outcome = self.catalog.swap(*self.prepared, guards=self.guards)
        if not isinstance(outcome, Stale):
            return MultiResolution(outcome)
        if not is_fenced(self.prepared, self.guards, self._heads((*self.prepared, *self.guards))):
            return MultiResolution(
                Unknown("A table has moved on, but nothing keeps an earlier copy of the request from landing later")
            )
        return MultiResolution(outcome)

    def _heads(self, tables: Iterable[Prepared | Guard]) -> dict[Ident, Head | None]:
        return {each.ident: self._head(each.ident) for each in tables}

    def _head(self, ident: Ident) -> Head | None:
        try:
            return self.catalog.load(ident)
        except NoSuchTable:
            return None

    def _is_recorded(self, heads: Mapping[Ident, Head | None]) -> bool:
        """Whether this very swap is recorded, and not an earlier call with the same commit id."""
        known = [(each.head.metadata, each.proposal.record) for each in self.prepared]
        known += [(head.metadata, each.record) for each in self.guards if (head := heads[each.ident]) is not None]
        # A guarded table that is gone, or whose name another one took, tells nothing.
        found = [self._is_as_recorded(head, own) for head, own in known if own is not None]
        answers = [each for each in found if each is not None]
        return bool(answers) and all(answers)

    def _is_as_recorded(self, head: TableMetadata, own: CommitRecord) -> bool | None:
        found = self.catalog.find_commit(head, own.commit_id)
        if found is None or found.table_uuid != own.table_uuid or found.digest != own.digest:
            return None
        return found.snapshot_id == own.snapshot_id


def _metadata_of(heads: Mapping[Ident, Head | None]) -> dict[Ident, TableMetadata]:
    return {ident: head.metadata for ident, head in heads.items() if head is not None}
