"""The timeline of a table: what its services do and did, over crashes of the processes that ran them (rule P44).

    requested ──▶ inflight ──▶ completed
        └────────────┴───────▶ failed: by its owner, or by the next run once the owner gave no sign of life

Every change is a guarded update by the owner's token, and no commit depends on one. An action's id is also the commit
id of its commit, where it makes one: whether an action that was cut off has landed is read from the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil import observe
from frazil.catalog.base import ActionChange, Catalog, Timeline
from frazil.errors import CommitUnknown, FrazilError, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.model import ActionState, Ident, TimelineEntry
from frazil.runtime import Runtime
from frazil.wording import short

SILENT_MS = 60_000
"""An action whose owner gave no sign of life for so long is failed by the next run."""
COMMIT_IDS, STAGED = "commit_ids", "staged"
"""Keys of a detail or an outcome: the commits that an action makes, and the folders that it stages files in."""
_PRIVATE = frozenset(
    {"where", "condition", "conditions", "filter", "predicate", "params", "keys", "partition", "values"}
)
"""Keys of plans whose texts may have values of the table's rows."""
_MOST_ITEMS = 100


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs actions, as the timeline names it."""

    token: str
    app: str
    host: str
    pid: int

    @staticmethod
    def of(app: str, host: str, runtime: Runtime) -> Owner:
        return Owner(runtime.new_hex(), short(app), short(host), os.getpid())


@dataclass(slots=True)
class Action:
    """One action of a service in the timeline, as its owner sees it: a ``ServiceProgress``.

    A catalog without a timeline, or one that does not answer, does not stop the service.
    """

    timeline: Timeline | None
    table_uuid: str
    service: str
    owner: Owner
    action_id: str
    asked_to_stop: Callable[[], bool] = lambda: False
    is_lost: bool = False
    """Another run has failed the action: its owner seemed dead."""
    _plan: dict[str, Any] = field(default_factory=dict)
    _detail: dict[str, Any] = field(default_factory=dict)

    def request(self, plan: Mapping[str, Any]) -> None:
        """Put it into the timeline, before anything is done."""
        if self.timeline is None:
            return
        owner = self.owner
        about = (self.action_id, self.table_uuid, self.service, ActionState.REQUESTED)
        self._plan.update(redacted(plan))
        entry = TimelineEntry(*about, owner.token, owner.app, owner.host, owner.pid, self._plan)
        try:
            self.timeline.request(entry)
        except FrazilError as error:
            observe.log.debug("a %s is not in the timeline: %s", self.service, error)
            self.timeline = None

    def start(self) -> None:
        """``COMMIT_IDS`` is known before the commit is sent: after a crash, the next run looks it up."""
        self._detail[COMMIT_IDS] = [self.action_id]
        self._advance(ActionChange(ActionState.INFLIGHT, detail=self._detail))

    def planned(self, plan: Mapping[str, Any]) -> None:
        self._plan.update(redacted(plan))
        self._advance(ActionChange(ActionState.INFLIGHT, plan=self._plan))

    def advanced(self, done: int, total: int, detail: Mapping[str, Any]) -> None:
        self._detail.update(redacted(detail))
        self._advance(ActionChange(ActionState.INFLIGHT, done=done, total=total, detail=self._detail))

    @property
    def should_stop(self) -> bool:
        return self.is_lost or self.asked_to_stop()

    def beat(self) -> None:
        """A sign of life."""
        self._advance(ActionChange(ActionState.INFLIGHT))

    def complete(self, outcome: Mapping[str, Any]) -> None:
        made = self._detail.get(COMMIT_IDS, ())
        if len(made) > 1:
            # A service that commits group by group returns the last commit alone.
            outcome = {**outcome, COMMIT_IDS: made}
        self._advance(ActionChange(ActionState.COMPLETED, outcome=redacted(outcome)))

    def fail(self, error: BaseException) -> None:
        """The kind of the error alone: its text may name values.

        Whether a commit has landed whose outcome is not known, the next run finds out.
        """
        if isinstance(error, CommitUnknown):
            return
        self._advance(ActionChange(ActionState.FAILED, outcome={"error": type(error).__name__}))

    def _advance(self, change: ActionChange) -> None:
        if self.timeline is None or self.is_lost:
            return
        try:
            self.is_lost = not self.timeline.advance(self.action_id, self.owner.token, change)
        except FrazilError as error:
            observe.log.debug("the timeline of a %s did not take %s: %s", self.service, change.state, error)


def fail_silent(catalog: Catalog, metadata: TableMetadata, silent_ms: int = SILENT_MS) -> list[TimelineEntry]:
    """End the actions whose owners gave no sign of life, and return them as they were.

    One whose commits have all landed is completed. Of another the outcome names what it may have left behind. An owner
    that gives a sign of life between the two requests keeps its action.
    """
    if catalog.timeline is None:
        return []
    found = []
    for each in catalog.timeline.silent(metadata.uuid, silent_ms):
        change = _ending(catalog, metadata, each)
        if catalog.timeline.advance(each.action_id, each.owner, change):
            found.append(each)
    return found


def _ending(catalog: Catalog, metadata: TableMetadata, silent: TimelineEntry) -> ActionChange:
    named = [str(each) for each in silent.detail.get(COMMIT_IDS, ())]
    landed = [each for each in named if catalog.find_commit(metadata, each) is not None]
    if named and landed == named and silent.done >= silent.total:
        ended = {COMMIT_IDS: landed, "ended_by": "the next run, which found its commits"}
        return ActionChange(ActionState.COMPLETED, outcome=ended, heartbeat_ms=silent.heartbeat_ms)
    outcome: dict[str, Any] = {
        "error": "no sign of life",
        COMMIT_IDS: landed,
        "leftovers": {
            "staged": silent.detail.get(STAGED, []),
            "since_ms": silent.started_ms or silent.requested_ms,
            "until_ms": silent.heartbeat_ms,
        },
    }
    return ActionChange(ActionState.FAILED, outcome=outcome, heartbeat_ms=silent.heartbeat_ms)


def entries(catalog: Catalog, ident: Ident, most: int) -> list[TimelineEntry]:
    """The newest actions of a table, the newest first."""
    uuid = catalog.load(ident).metadata.uuid
    if catalog.timeline is None:
        raise Unsupported(
            f"The catalog of {ident} keeps no timeline of services",
            advice="SQL catalogs keep one from the first writer of this version on",
        )
    return catalog.timeline.find(uuid, most)


def redacted(value: Mapping[str, Any]) -> dict[str, Any]:
    """A plan without values of the table's rows: no conditions, no folders, which may be named by partition values."""
    return {str(key): "[redacted]" if _is_private(key, each) else _plain(each) for key, each in value.items()}


def _is_private(key: object, value: object) -> bool:
    return str(key).lower() in _PRIVATE and value is not None and not isinstance(value, int | float)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, str):
        return value.rstrip("/").rpartition("/")[2]
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Sequence | set | frozenset):
        kept = [_plain(each) for each in list(value)[:_MOST_ITEMS]]
        return kept if len(value) <= _MOST_ITEMS else [*kept, f"and {len(value) - _MOST_ITEMS} more"]
    return str(value).rpartition("/")[2]
