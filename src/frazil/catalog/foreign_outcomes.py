"""What a fresh head proves about a commit to a catalog that compares requirements (rules P9, P29, P30 and P40)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frazil.catalog import records
from frazil.catalog.base import Guard, Head, Prepared, Proposal
from frazil.catalog.requirements import is_fenced_off
from frazil.format.metadata import TableMetadata
from frazil.model import Ident


class Trace(enum.Enum):
    """What a head says about one table of a commit."""

    LANDED = "the table has it"
    ABSENT = "the table does not have it, and never had"
    GONE = "the table was dropped or replaced, and every trace with it"
    UNCLEAR = "what would show it may have expired"


def is_new(prepared: Prepared) -> bool:
    """The commit makes the table."""
    return not prepared.head.location


def trace_of(prepared: Prepared, head: Head | None) -> Trace:
    """``head``: the table as it is now; None: there is none."""
    is_same = head is not None and head.metadata.uuid == prepared.head.metadata.uuid
    if head is None or not is_same:
        # That it was made and dropped again is for the commit's other tables to show.
        return Trace.ABSENT if is_new(prepared) else Trace.GONE
    if is_new(prepared) or has_landed(prepared.proposal, head.metadata):
        return Trace.LANDED
    if head.location == prepared.head.location:
        return Trace.ABSENT
    if not is_gapless(prepared.head.metadata, head.metadata):
        return Trace.UNCLEAR
    if added_snapshots(prepared.proposal.updates):
        return Trace.ABSENT
    is_kept = records.keeps_records_since(head.metadata, prepared.head.location)
    return Trace.ABSENT if prepared.proposal.record is not None and is_kept else Trace.UNCLEAR


def is_fenced(prepared: Sequence[Prepared], guards: Sequence[Guard], heads: Mapping[Ident, Head | None]) -> bool:
    """Whether a requirement of one table is unmet for good, so that no copy of the whole will ever be committed.

    A table that is to be made fences nothing: the one that has its name may be dropped again.
    """
    required = [(each.ident, each.proposal.requirements) for each in prepared if not is_new(each)]
    required += [(each.ident, each.requirements) for each in guards]
    found = ((heads[ident], requirements) for ident, requirements in required)
    return any(head is not None and is_fenced_off(needed, head.metadata) for head, needed in found)


def has_landed(proposal: Proposal, metadata: TableMetadata) -> bool:
    """Whether this very proposal is in the table: by the snapshots it adds, ancestors or not; else by its commit id."""
    if added := added_snapshots(proposal.updates):
        return all(metadata.has_snapshot(snapshot_id) for snapshot_id in added)
    return proposal.record is not None and records.find_record(metadata, proposal.record.commit_id) is not None


def cannot_land(prepared: Prepared, metadata: TableMetadata) -> bool:
    """Whether a head without the commit proves that it was not committed and never will be (rules P9, P30).

    A requirement unmet for good fences off every copy still on its way. And the commit was not made and rolled back:
    each branch it moves leads from the head back to its base without a gap.
    """
    if metadata.uuid != prepared.head.metadata.uuid or not is_fenced_off(prepared.proposal.requirements, metadata):
        return False
    branches = [update["ref-name"] for update in prepared.proposal.updates if update["action"] == "set-snapshot-ref"]
    if added_snapshots(prepared.proposal.updates):
        return all(_unbroken(prepared.head.metadata, metadata, branch) for branch in branches)
    return prepared.proposal.record is not None and not records.records_are_full(metadata)


def is_gapless(base: TableMetadata, head: TableMetadata) -> bool:
    """Whether every snapshot made since is kept: each has taken the next sequence number."""
    kept = {snapshot.sequence_number for snapshot in head.snapshots()}
    return kept.issuperset(range(base.last_sequence_number + 1, head.last_sequence_number + 1))


def added_snapshots(updates: Iterable[Mapping[str, Any]]) -> list[int]:
    return [update["snapshot"]["snapshot-id"] for update in updates if update["action"] == "add-snapshot"]


def _unbroken(base: TableMetadata, head: TableMetadata, branch: str) -> bool:
    wanted = base.ref_snapshot_id(branch)
    if head.ref_snapshot_id(branch) is None:
        return wanted is None and not head.raw.get("snapshots")
    last = None
    for last in head.ancestors(head.ref_snapshot_id(branch)):
        if last.snapshot_id == wanted:
            return True
    # PyIceberg's expiry clears the parents of what it keeps, so "no parent" alone does not prove a first one.
    first = base.last_sequence_number + 1
    return wanted is None and last is not None and (last.parent_snapshot_id, last.sequence_number) == (None, first)
