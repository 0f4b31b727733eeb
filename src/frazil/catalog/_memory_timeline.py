"""What services keep in a catalog in memory: the timeline of their actions, and their leases (rule P44)."""

from __future__ import annotations

from dataclasses import replace

from frazil.catalog._memory_access import Access
from frazil.catalog._sql_timeline import ACTIONS_KEPT, ACTIONS_KEPT_MS
from frazil.catalog.base import ActionChange
from frazil.model import ActionState, Lease, TimelineEntry
from frazil.runtime import Runtime


class MemoryTimeline:
    def __init__(self, access: Access, runtime: Runtime) -> None:
        self.access = access
        self._runtime = runtime
        self._actions: dict[str, TimelineEntry] = {}

    def request(self, action: TimelineEntry) -> None:
        with self.access.writing():
            now = self._runtime.now_ms()
            self._trim(now - ACTIONS_KEPT_MS)
            added = replace(action, state=ActionState.REQUESTED, outcome={}, started_ms=None, completed_ms=None)
            self._actions[action.action_id] = replace(added, requested_ms=now, heartbeat_ms=now)

    def _trim(self, before_ms: int) -> None:
        while self._actions:
            oldest = next(iter(self._actions.values()))
            if len(self._actions) < ACTIONS_KEPT and oldest.heartbeat_ms >= before_ms:
                return
            del self._actions[oldest.action_id]

    def advance(self, action_id: str, owner: str, change: ActionChange) -> bool:
        with self.access.writing():
            known = self._actions.get(action_id)
            if known is None or known.owner != owner or known.is_over:
                return False
            if change.heartbeat_ms not in (None, known.heartbeat_ms):
                return False
            now = self._runtime.now_ms()
            changed = replace(
                known,
                state=change.state,
                heartbeat_ms=now,
                plan=known.plan if change.plan is None else change.plan,
                done=known.done if change.done is None else change.done,
                total=known.total if change.total is None else change.total,
                detail=known.detail if change.detail is None else change.detail,
                outcome=known.outcome if change.outcome is None else change.outcome,
            )
            if changed.is_over:
                changed = replace(changed, completed_ms=now)
            elif change.state is ActionState.INFLIGHT and known.started_ms is None:
                changed = replace(changed, started_ms=now)
            self._actions[action_id] = changed
            return True

    def silent(self, table_uuid: str, silent_ms: int) -> list[TimelineEntry]:
        before = self._runtime.now_ms() - silent_ms
        return [each for each in self._of(table_uuid) if not each.is_over and each.heartbeat_ms < before]

    def find(self, table_uuid: str, most: int) -> list[TimelineEntry]:
        found = self._of(table_uuid)[::-1]
        return found if most < 0 else found[:most]

    def _of(self, table_uuid: str) -> list[TimelineEntry]:
        with self.access.reading():
            return [each for each in self._actions.values() if each.table_uuid == table_uuid]


class MemoryLeases:
    def __init__(self, access: Access, runtime: Runtime) -> None:
        self.access = access
        self._runtime = runtime
        self._leases: dict[tuple[str, str], tuple[str, int]] = {}

    def acquire(self, table_uuid: str, scope: str, owner: str, lives_ms: int) -> bool:
        with self.access.writing():
            now = self._runtime.now_ms()
            holder, until = self._leases.get((table_uuid, scope), (owner, 0))
            if holder != owner and until > now:
                return False
            self._leases[table_uuid, scope] = (owner, now + lives_ms)
            return True

    def extend(self, table_uuid: str, owner: str, lives_ms: int) -> int:
        with self.access.writing():
            now = self._runtime.now_ms()
            own = [key for key, (holder, until) in self._leases.items() if holder == owner and until > now]
            found = [key for key in own if key[0] == table_uuid]
            for key in found:
                self._leases[key] = (owner, now + lives_ms)
            return len(found)

    def release(self, table_uuid: str, owner: str, scope: str | None = None) -> None:
        with self.access.writing():
            now = self._runtime.now_ms()
            for (uuid, name), (holder, until) in list(self._leases.items()):
                if until <= now or (uuid == table_uuid and holder == owner and scope in (None, name)):
                    del self._leases[uuid, name]

    def held(self, table_uuid: str) -> list[Lease]:
        with self.access.reading():
            now = self._runtime.now_ms()
            found = sorted(self._leases.items())
        return [
            Lease(scope, owner, until - now)
            for (uuid, scope), (owner, until) in found
            if uuid == table_uuid and until > now
        ]
