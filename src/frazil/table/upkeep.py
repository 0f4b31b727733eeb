"""Services of a table that delete files: what a call gives them, and what it returns."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from functools import partial

from frazil.commit.retry import Retry
from frazil.errors import Unsupported
from frazil.format.properties import ORPHAN_GRACE, ORPHANS_FENCE
from frazil.format.times import Moment, milliseconds
from frazil.model import Commit, Expiry
from frazil.services import expiry
from frazil.services.context import OnDeletion, ServiceContext, ignore_phase
from frazil.services.orphans import OrphanReport, OrphanRun
from frazil.services.policy import EXPIRE, ORPHANS
from frazil.table import changes
from frazil.table.destination import CommitNow, Destination, recorded_service


def service_context(destination: CommitNow, on_phase: OnDeletion | None = None) -> ServiceContext:
    lake = destination.lake
    return ServiceContext(lake.catalog, lake.storage, destination.ident, lake.runtime, on_phase or ignore_phase)


def expire_snapshots(
    destination: Destination,
    older_than: Moment | None,
    retain_last: int | None,
    *,
    delete_files: bool,
    dry_run: bool,
    retry: Retry | None,
    commit_id: str | None,
    on_phase: OnDeletion | None,
) -> Commit:
    """Inside a transaction no file is deleted: the next expiry outside of one does it."""
    change = changes.expire_snapshots(older_than, retain_last)
    if not isinstance(destination, CommitNow):
        return change.run(destination, retry, commit_id)
    context = service_context(destination, on_phase)
    if dry_run:
        limit = None if older_than is None else milliseconds(older_than, "older_than")
        head = context.head()
        found = expiry.plan(head.metadata, head.now_ms, limit, retain_last)
        expired = Expiry(snapshots=len(found.snapshot_ids), refs=len(found.refs))
        newest = head.metadata.ref_snapshot_id()
        return Commit(newest, head.metadata.last_sequence_number, "", attempts=0, changed=False, expired=expired)
    send = partial(change.run, destination, retry, commit_id)
    return recorded_service(destination, EXPIRE, lambda _progress: expiry.run(context, send, delete_files=delete_files))


def own_commit(destination: Destination, what: str) -> CommitNow:
    """Raises Unsupported inside a transaction."""
    if not isinstance(destination, CommitNow):
        raise Unsupported(f"{what} is not part of a transaction", advice="Call it on lake.table(…)")
    return destination


def remove_orphans(
    destination: Destination,
    older_than: dt.timedelta | Moment,
    *,
    dry_run: bool,
    location: str | None,
    on_phase: OnDeletion | None,
) -> OrphanReport:
    own = own_commit(destination, "remove_orphans()")
    context = service_context(own, on_phase)
    if isinstance(older_than, dt.timedelta):
        grace_ms = older_than // dt.timedelta(milliseconds=1)
    else:
        grace_ms = context.head().now_ms - milliseconds(older_than, "older_than")
    search = partial(OrphanRun(context, grace_ms, location).run, dry_run=dry_run, fence=partial(_fence, own))
    if dry_run:
        return search()
    own.lake.check_writable()
    return recorded_service(own, ORPHANS, lambda _progress: search())


def _fence(destination: CommitNow, grace_ms: int) -> None:
    now = destination.lake.runtime.new_hex()
    properties = {ORPHAN_GRACE: str(max(1, grace_ms)), ORPHANS_FENCE: now}
    change = replace(changes.set_properties(properties), verb="remove_orphans")
    change.run(destination, None, None)
