"""Running the services that are due on one table: as its leader, recorded in the timeline, with signs of life.

take the lease ─▶ end what is silent ─▶ health ─▶ policy ─▶ each service: request, start, run, complete or fail
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from frazil import observe
from frazil.catalog.base import Catalog, Head
from frazil.errors import FrazilError
from frazil.format.storage import Storage
from frazil.model import Ident, Origin
from frazil.runtime import Runtime
from frazil.services import policy
from frazil.services.health import TableHealth, health_of
from frazil.services.leases import LEADER, LEASE_MS, TableLeases
from frazil.services.policy import Due
from frazil.services.registry import Service, outcome_of, service_for
from frazil.services.timeline import SILENT_MS, Action, Owner, fail_silent

BEAT_S = 10.0
_LAST_ACTIONS = 50


class ServedLake(Protocol):
    """A lake as services use it."""

    runtime: Runtime

    @property
    def catalog(self) -> Catalog: ...

    @property
    def storage(self) -> Storage: ...

    def table(self, name: str) -> Any: ...

    def origin(self, verb: str) -> Origin: ...


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one service on one table."""

    table: str
    service: str
    reason: str
    error: Exception | None = None
    outcome: Any = None
    """What the service returned."""

    def to_dict(self) -> dict[str, Any]:
        state = "failed" if self.error is not None else "completed"
        about = {"table": self.table, "service": self.service, "reason": self.reason, "state": state}
        if self.error is not None:
            return {**about, "error": str(self.error)}
        return {**about, **outcome_of(self.outcome)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may do."""

    should_stop: Callable[[], bool] = lambda: False
    most_bytes: int | None = None
    """The most that one service may read; None: any amount."""
    keeps_lease: bool = False
    """The lease on the table stays with the owner, for its next run."""
    lease_ms: int = LEASE_MS


UNLIMITED = Limits()


def owner_of(lake: ServedLake) -> Owner:
    """This process, as the owner of actions and leases."""
    origin = lake.origin("services")
    return Owner.of(origin.app, origin.host, lake.runtime)


def run_due(lake: ServedLake, ident: Ident, owner: Owner, limits: Limits = UNLIMITED) -> list[Done] | None:
    """Run what is due on a table; None: another process leads its services.

    An error of a service is in its ``Done``; those of the catalog itself are raised.
    """
    head = lake.catalog.load(ident)
    leases = TableLeases(lake.catalog.leases, head.metadata.uuid, owner.token, limits.lease_ms)
    if not leases.take(LEADER):
        return None
    try:
        fail_silent(lake.catalog, head.metadata)
        return _run_all(lake, ident, head, owner, leases, limits)
    finally:
        if not limits.keeps_lease:
            leases.release()


def _run_all(
    lake: ServedLake, ident: Ident, head: Head, owner: Owner, leases: TableLeases, limits: Limits
) -> list[Done]:
    table, timeline = lake.table(str(ident)), lake.catalog.timeline
    last = () if timeline is None else timeline.find(head.metadata.uuid, _LAST_ACTIONS)
    health = health_of(lake.storage, head.metadata, head.now_ms)
    done: list[Done] = []
    ran: set[str] = set()
    for each in policy.due(health, head.metadata.properties, head.now_ms, last):
        service = service_for(each.service, table)
        if service is None or service.name in ran or limits.should_stop():
            continue
        ran.add(service.name)
        action = Action(
            timeline, head.metadata.uuid, service.name, owner, lake.runtime.new_hex(), asked_to_stop=limits.should_stop
        )
        action.request({**each.to_dict(), "health": health.to_dict()})
        done.append(_run(service, table, str(ident), each, action, leases, _excess(service, health, limits)))
    return done


def _run(
    service: Service, table: object, name: str, why: Due, action: Action, leases: TableLeases, excess: Exception | None
) -> Done:
    # A catalog without a timeline needs no commit id that is looked up in it.
    commit_id = None if action.timeline is None else action.action_id
    try:
        if excess is not None:
            raise excess
        action.start()
        token = _in_action.set(True)
        try:
            with signs_of_life(action, leases):
                result = service.run(table, commit_id, action, leases.claim)
        finally:
            _in_action.reset(token)
    except Exception as error:  # noqa: BLE001 - whatever it is: the other services and tables go on
        action.fail(error)
        observe.log.warning("%s of %s failed: %s", service.name, name, error)
        return Done(name, service.name, why.reason, error)
    except BaseException as error:
        action.fail(error)
        raise
    action.complete(outcome_of(result))
    return Done(name, service.name, why.reason, outcome=result)


class TooLarge(FrazilError):
    """More than a run in a writer's call may read."""


def _excess(service: Service, health: TableHealth, limits: Limits) -> TooLarge | None:
    if limits.most_bytes is None or service.name not in (policy.COMPACT, policy.RESOLVE, policy.REWRITE_DELETES):
        return None
    # Which files an equality delete applies to is known only when they are planned: all of them, at worst.
    size = health.data_bytes if health.delete_bytes else health.small_bytes
    if size <= limits.most_bytes:
        return None
    return TooLarge(
        f"It would read up to {size} bytes in a writer's call",
        evidence=f"{policy.INLINE_BYTES} is {limits.most_bytes}",
        advice="Set frazil.services.mode to service, and let frazil services run do it",
    )


_in_action: ContextVar[bool] = ContextVar("in_action", default=False)


@contextmanager
def recorded(lake: ServedLake, ident: Ident, verb: str) -> Iterator[Action | None]:
    """A service that was called by hand, in the timeline; None: it is part of an action that is there already.

    The caller completes it. An error fails it.
    """
    timeline = lake.catalog.timeline
    if verb not in policy.VERBS or timeline is None or _in_action.get():
        yield None
        return
    uuid = lake.catalog.load(ident).metadata.uuid
    action = Action(timeline, uuid, verb, owner_of(lake), lake.runtime.new_hex())
    action.request({"reason": "it was called"})
    action.advanced(0, 0, {})
    token = _in_action.set(True)
    try:
        with signs_of_life(action, TableLeases(None, uuid, "")):
            yield action
    except BaseException as error:
        action.fail(error)
        raise
    finally:
        _in_action.reset(token)


@contextmanager
def signs_of_life(action: Action, leases: TableLeases, beat_s: float = BEAT_S) -> Iterator[None]:
    """While a service works, its action and its leases do not expire."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(beat_s):
            action.beat()
            leases.extend()

    # A daemon: it must not keep a process alive. It ends with the block.
    thread = threading.Thread(target=beat, name="frazil-service-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


assert min(SILENT_MS, LEASE_MS) >= BEAT_S * 3000, "a missed beat or two must not look like death"
