"""The services by name: which method of a table runs each. One that a table does not have is not offered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.services import policy
from frazil.services.leases import Claim
from frazil.services.progress import ServiceProgress


@dataclass(frozen=True, slots=True)
class Service:
    """A service, and how it is called."""

    name: str
    """The verb, as its commits record it."""
    method: str
    """Of a table."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    instead: str | None = None
    """The service that does its work, with more effort, where the table does not have the method."""

    def method_of(self, table: object) -> Callable[..., Any] | None:
        found = getattr(table, self.method, None)
        return found if callable(found) else None

    def run(self, table: object, action_id: str | None, progress: ServiceProgress, claim: Claim) -> Any:
        """Call it with what it takes of the action: its id as commit id, its record, its leases."""
        call = self.method_of(table)
        assert call is not None, "only services that the table has are run"
        offered = {"progress": progress, "claim": claim, **({} if action_id is None else {"commit_id": action_id})}
        named = inspect.signature(call).parameters
        takes_options = any(each.kind is each.VAR_KEYWORD for each in named.values())
        given = {key: value for key, value in offered.items() if key in named}
        if takes_options and action_id is not None:
            # The options of every write have it.
            given["commit_id"] = action_id
        return call(**self.arguments, **given)


SERVICES: tuple[Service, ...] = (
    Service(policy.RESOLVE, "resolve_deletes", instead=policy.COMPACT),
    Service(policy.REWRITE_DELETES, "rewrite_position_deletes", instead=policy.COMPACT),
    Service(policy.COMPACT, "compact"),
    Service(policy.EXPIRE, "expire_snapshots"),
    Service(policy.MANIFESTS, "rewrite_manifests"),
    Service(policy.ORPHANS, "remove_orphans", {"dry_run": False}),
)
_BY_NAME = {each.name: each for each in SERVICES}


def service_for(name: str, table: object) -> Service | None:
    """The service of this name, or the one that does its work; None: the table has neither."""
    found = _BY_NAME.get(name)
    while found is not None and found.method_of(table) is None:
        found = _BY_NAME.get(found.instead or "")
    return found


def outcome_of(result: object) -> dict[str, Any]:
    """What a service returned, in numbers."""
    to_dict = getattr(result, "to_dict", None)
    if callable(to_dict):
        return dict(to_dict())
    result = getattr(result, "commit", result)
    names = ("commit_id", "changed", "snapshot_id", "files_added", "files_removed", "rows_deleted", "bytes_written")
    found = {name: getattr(result, name) for name in names if hasattr(result, name)}
    if "commit_id" in found:
        found["commit_ids"] = [found.pop("commit_id")]
    return found
