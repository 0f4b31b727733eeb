"""What an attempt proposes for a table: its operations, one upon the other, and those of the group it leads."""

from __future__ import annotations

from frazil.catalog.base import Catalog, Head
from frazil.commit.build import AttemptFiles, Scope, add_change, add_write, check_staged_files, expire_old
from frazil.commit.checking import checked_and_rebased
from frazil.commit.group import GroupMembers, add_members, shared_write
from frazil.commit.manifests import FilesMissing
from frazil.commit.operations import Identity, MetadataChange
from frazil.commit.stages import Built, RebasedStep, Refused, Undecided
from frazil.commit.unit import TableUnit, WriteStep
from frazil.runtime import Runtime


def proposed(
    unit: TableUnit, head: Head, scope: Scope, members: GroupMembers | None, identity: Identity
) -> Built | Refused:
    """Build the unit on this head, and the group's members on top of it. Without updates, nothing was left to do.

    The unit itself is checked against the head alone. Raises CommitFailed if staged files are gone.
    """
    check_staged_files(unit, head.metadata, scope)
    try:
        built = _with_steps(unit, Built.on(head), scope, members, identity)
        if not isinstance(built, Refused):
            return _with_expiry(built, scope.catalog)
    except FilesMissing as missing:
        built = Refused((missing.conflict,))
    except BaseException:
        scope.files.delete()
        raise
    scope.files.delete()
    return built


def _with_expiry(built: Built, catalog: Catalog) -> Built:
    if not built.updates or catalog.changes is None:
        return built
    pins, table_uuid = catalog.pins, built.head.metadata.uuid
    return expire_old(built, lambda: frozenset() if pins is None else pins.pinned(table_uuid))


def applied(unit: TableUnit, head: Head, catalog: Catalog, runtime: Runtime) -> tuple[Built | Refused, list[str]]:
    """The unit built on a head for reading only, as a transaction reads its own writes; and the files written."""
    files = AttemptFiles(unit.storage)
    nothing = Identity("", "", given=False)
    scope = Scope(catalog, unit.storage, runtime, nothing, attempt=1, files=files)
    return proposed(unit, head, scope, None, nothing), files.written


def _with_steps(
    unit: TableUnit, built: Built, scope: Scope, members: GroupMembers | None, identity: Identity
) -> Built | Refused:
    shared = None if members is None else _shared_write(unit, built, scope)
    if isinstance(shared, Refused):
        return shared
    for step in unit.steps:
        found: Built | Refused | Undecided = built
        if isinstance(step, MetadataChange):
            found = add_change(step, built)
        elif shared is None:
            found = add_write(unit, step, built, scope)
        if isinstance(found, Refused):
            return found
        assert isinstance(found, Built), "only inspectors of queued commits leave a write undecided"
        built = found
    if members is not None and (shared is not None or built.updates):
        built = add_members(unit, shared, members, built, scope, identity)
    return built


def _shared_write(unit: TableUnit, built: Built, scope: Scope) -> WriteStep | Refused | None:
    """The unit's write, if it can share its snapshot with rows of the members."""
    step = shared_write(unit, scope)
    if step is None:
        return None
    found = checked_and_rebased(unit, step, built, scope.catalog)
    if isinstance(found, Refused):
        return found
    return step if isinstance(found, RebasedStep) and found.is_unchanged else None
