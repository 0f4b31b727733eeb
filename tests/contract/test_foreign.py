"""ForeignCatalog on PyIceberg's SqlCatalog: what it asks for (P29), and what it believes (P30)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pydantic
import pytest
import requests
from botocore import exceptions as boto
from pyiceberg import exceptions as theirs
from pyiceberg.typedef import Identifier
from requests.models import Response

from contract.foreign_tables import (
    EVENTS,
    Json,
    Moody,
    append,
    empty_metadata,
    foreign,
    landed,
    move,
    new_table,
    propose,
    record_of,
    send,
    send_exactly,
    set_property,
    snapshot_updates,
    sql_catalog,
    with_other_ids,
)
from frazil.catalog.base import Committed, Head, Proposal, Stale, Unknown
from frazil.catalog.foreign import ForeignCatalog
from frazil.catalog.requirements import requirements_for
from frazil.errors import CatalogUnavailable, FrazilError, InvalidInput, NoSuchTable, PermissionDenied, TableExists
from frazil.model import Ident
from frazil.runtime import SYSTEM


@pytest.fixture
def moody(tmp_path: Path) -> Iterator[Moody]:
    catalog = sql_catalog(tmp_path / "lake", Moody)
    assert isinstance(catalog, Moody)
    yield catalog
    catalog.close()


@pytest.fixture
def catalog(moody: Moody, tmp_path: Path) -> ForeignCatalog:
    catalog = foreign(moody)
    new_table(catalog, str(tmp_path / "lake"))
    return catalog


# P29: taking one requirement out lets a lost update through


@dataclasses.dataclass(frozen=True)
class Race:
    """This writer's updates are computed from a head that does not have the other writer's commit yet."""

    setup: Callable[[ForeignCatalog], object]
    own: Callable[[Head], list[Json]]
    theirs: Callable[[ForeignCatalog], object]
    guard: str
    """The requirement that notices theirs."""
    ref: str | None = None


def _columns(schema_id: int, *more: tuple[int, str]) -> Json:
    fields = [{"id": n, "name": name, "required": n == 1, "type": "long"} for n, name in enumerate(("id", "day"), 1)]
    fields += [{"id": n, "name": name, "required": False, "type": "long"} for n, name in more]
    return {"action": "add-schema", "schema": {"type": "struct", "schema-id": schema_id, "fields": fields}}


def _spec(spec_id: int, field_id: int, transform: str) -> Json:
    field = {"source-id": 1, "field-id": field_id, "name": f"id_{transform[:6]}", "transform": transform}
    return {"action": "add-spec", "spec": {"spec-id": spec_id, "fields": [field]}}


def _current_schema(schema_id: int) -> Json:
    return {"action": "set-current-schema", "schema-id": schema_id}


def _default_spec(spec_id: int) -> Json:
    return {"action": "set-default-spec", "spec-id": spec_id}


def _recreate(catalog: ForeignCatalog) -> None:
    location = catalog.load(EVENTS).metadata.location
    catalog.drop(EVENTS)
    catalog.create(EVENTS, empty_metadata(location + "-again"))


def _two_snapshots(catalog: ForeignCatalog) -> None:
    append(catalog)
    append(catalog)


def _two_branches(catalog: ForeignCatalog) -> None:
    _two_snapshots(catalog)
    oldest = next(catalog.load(EVENTS).metadata.snapshots()).snapshot_id
    landed(catalog, [move("a", oldest), move("b", oldest)])


def _a_tag(catalog: ForeignCatalog) -> None:
    _two_snapshots(catalog)
    landed(catalog, [move("t", _newest(catalog.load(EVENTS)), "tag")])


def _oldest(head: Head) -> int:
    return next(head.metadata.snapshots()).snapshot_id


def _newest(head: Head) -> int:
    return head.metadata.ref_snapshot_id() or 0


RACES = {
    "a dropped and recreated table": Race(
        lambda _: None, lambda _: [set_property("x", "own")], _recreate, "assert-table-uuid"
    ),
    "a rollback and an append": Race(
        _two_snapshots, lambda head: [move("main", _oldest(head))], append, "assert-ref-snapshot-id", "main"
    ),
    "two branches moved, the second one moved by another": Race(
        _two_branches,
        lambda head: [move("a", _newest(head)), move("b", _newest(head))],
        lambda catalog: append(catalog, "b"),
        "assert-ref-snapshot-id",
        "b",
    ),
    "two writers create one branch": Race(
        _two_snapshots,
        lambda head: [move("new", _oldest(head))],
        lambda catalog: landed(catalog, [move("new", _newest(catalog.load(EVENTS)))]),
        "assert-ref-snapshot-id",
        "new",
    ),
    "expiry and a tag moved to what expires": Race(
        _a_tag,
        lambda head: [{"action": "remove-snapshots", "snapshot-ids": [_oldest(head)]}],
        lambda catalog: landed(catalog, [move("t", _oldest(catalog.load(EVENTS)), "tag")]),
        "assert-ref-snapshot-id",
        "t",
    ),
    "a new schema and another current schema": Race(
        lambda catalog: landed(catalog, [_columns(1, (3, "note"), (4, "old")), _current_schema(1)]),
        lambda _: [_columns(2, (3, "note"), (4, "old"), (5, "own")), _current_schema(2)],
        lambda catalog: landed(catalog, [_current_schema(0)]),
        "assert-current-schema-id",
    ),
    "rows bound to a schema that changed": Race(
        lambda catalog: landed(catalog, [_columns(1, (3, "note"), (4, "old"))]),
        lambda head: list(snapshot_updates(head)),
        lambda catalog: landed(catalog, [_current_schema(1)]),
        "assert-current-schema-id",
    ),
    "two columns with one id": Race(
        lambda _: None,
        lambda _: [_columns(2, (3, "note"), (4, "own")), _current_schema(2)],
        lambda catalog: landed(catalog, [_columns(1, (3, "note"), (4, "theirs"))]),
        "assert-last-assigned-field-id",
    ),
    "rows laid out by a spec that is no longer the default": Race(
        lambda catalog: landed(catalog, [_spec(1, 1000, "bucket[4]")]),
        lambda head: list(snapshot_updates(head)),
        lambda catalog: landed(catalog, [_default_spec(1)]),
        "assert-default-spec-id",
    ),
    "two partition fields with one id": Race(
        lambda _: None,
        lambda _: [_spec(2, 1000, "bucket[8]"), _default_spec(2)],
        lambda catalog: landed(catalog, [_spec(1, 1000, "truncate[4]")]),
        "assert-last-assigned-partition-id",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_p29_each_requirement_stops_a_lost_update_that_passes_without_it(catalog: ForeignCatalog, name: str) -> None:
    race = RACES[name]
    race.setup(catalog)
    head = catalog.load(EVENTS)
    updates = tuple(race.own(head))
    race.theirs(catalog)
    asked = requirements_for(head.metadata, updates, spec_scoped=True)
    guard = {"type": race.guard, **({"ref": race.ref} if race.ref else {})}
    weaker = tuple(each for each in asked if not guard.items() <= each.items())
    assert len(weaker) == len(asked) - 1

    assert send_exactly(catalog, head, Proposal(updates, asked)) == Stale(catalog.load(EVENTS).location)
    assert isinstance(send_exactly(catalog, head, Proposal(updates, weaker)), Committed)


def test_p29_prepare_adds_what_no_commit_may_lack(catalog: ForeignCatalog) -> None:
    _two_branches(catalog)
    head = catalog.load(EVENTS)
    prepared = catalog.prepare(EVENTS, head, Proposal((move("a", _newest(head)), move("b", _newest(head))), ()))
    assert prepared.proposal.requirements == (
        {"type": "assert-table-uuid", "uuid": head.metadata.uuid},
        {"type": "assert-ref-snapshot-id", "ref": "a", "snapshot-id": _oldest(head)},
        {"type": "assert-ref-snapshot-id", "ref": "b", "snapshot-id": _oldest(head)},
    )


def test_p29_two_expiries_of_one_snapshot_do_not_break_each_other(catalog: ForeignCatalog) -> None:
    _two_snapshots(catalog)
    head = catalog.load(EVENTS)
    expiry = [{"action": "remove-snapshots", "snapshot-ids": [_oldest(head)]}]
    landed(catalog, expiry)
    # No ref has moved, and PyIceberg says that there is no such snapshot: the next attempt sees it, too.
    assert send(catalog, head, expiry) == Stale(catalog.load(EVENTS).location)


def test_p29_a_commit_to_a_dropped_table_does_not_bring_it_back(catalog: ForeignCatalog) -> None:
    head = catalog.load(EVENTS)
    catalog.drop(EVENTS)
    assert send(catalog, head, [set_property("x", "1")]) == Stale(None)
    with pytest.raises(NoSuchTable):
        catalog.load(EVENTS)


def test_p29_properties_are_last_writer_wins(catalog: ForeignCatalog) -> None:
    head = catalog.load(EVENTS)
    landed(catalog, [set_property("x", "theirs")])
    assert isinstance(send(catalog, head, [set_property("x", "own")]), Committed)
    assert catalog.load(EVENTS).metadata.properties["x"] == "own"


# P30: no answer but success is believed


def _answer(status: int) -> Exception:
    """What PyIceberg's REST client raises for an HTTP status."""
    response = Response()
    response.status_code = status
    kinds: dict[int, type[Exception]] = {
        400: theirs.BadRequestError,
        403: theirs.ForbiddenError,
        409: theirs.CommitFailedException,
        429: theirs.TooManyRequestsError,
        500: theirs.CommitStateUnknownException,
        503: theirs.ServiceUnavailableError,
    }
    error = kinds.get(status, theirs.RESTError)(f"HTTP {status}")
    error.__cause__ = requests.HTTPError(response=response)
    return error


def _unreadable_answer() -> Exception:
    try:
        pydantic.TypeAdapter(int).validate_json("<html>502</html>")
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


def _client_error(code: str, *, retries: int) -> Exception:
    metadata = {"HTTPStatusCode": 400, "RetryAttempts": retries}
    error: Exception = boto.ClientError({"Error": {"Code": code}, "ResponseMetadata": metadata}, "UpdateTable")
    return error


SILENT = {
    "connection lost": requests.exceptions.ConnectionError("Connection aborted"),
    "read timeout": requests.exceptions.ReadTimeout("Read timed out"),
    "server error": _answer(500),
    "unavailable": _answer(503),
    "request timeout": _answer(408),
    "unreadable answer": _unreadable_answer(),
    "glue read timeout": boto.ReadTimeoutError(endpoint_url="http://glue"),
    "glue out of reach": boto.EndpointConnectionError(endpoint_url="http://glue"),
    "glue refused the second sending": _client_error("AccessDeniedException", retries=1),
    "defect": RuntimeError("a bug in a client"),
}
NEGATIVE = {
    "commit failed": theirs.CommitFailedException("Requirement failed"),
    "conflict": _answer(409),
    "already exists": theirs.TableAlreadyExistsError("Table already exists"),
    "sequence number": ValueError("Cannot add snapshot with sequence number 2 older than last sequence number 2"),
    "property already gone": KeyError("frazil.commit.x"),
}
REFUSED = {
    "bad request": (_answer(400), InvalidInput),
    "forbidden": (_answer(403), PermissionDenied),
    "too many requests": (_answer(429), CatalogUnavailable),
    "glue denied": (_client_error("AccessDeniedException", retries=0), PermissionDenied),
}
EVERY = {**SILENT, **NEGATIVE, **{name: error for name, (error, _) in REFUSED.items()}}


@pytest.mark.parametrize("name", EVERY)
def test_p30_a_commit_that_landed_is_committed_whatever_the_answer(
    catalog: ForeignCatalog, moody: Moody, name: str
) -> None:
    head = append(catalog)
    updates = snapshot_updates(head)
    moody.next_commit(EVERY[name], applies=True)
    outcome = send(catalog, head, updates)
    now = catalog.load(EVENTS)
    assert outcome == Committed(now.location)
    assert now.metadata.ref_snapshot_id() == updates[1]["snapshot-id"]


@pytest.mark.parametrize("name", EVERY)
def test_p30_a_commit_without_a_snapshot_is_found_by_its_id(catalog: ForeignCatalog, moody: Moody, name: str) -> None:
    head = catalog.load(EVENTS)
    moody.next_commit(EVERY[name], applies=True)
    outcome = send(catalog, head, [set_property("x", "1")], record_of(head, "set-x"))
    assert outcome == Committed(catalog.load(EVENTS).location)


@pytest.mark.parametrize("name", [*SILENT, *NEGATIVE])
def test_p30_while_the_head_is_as_expected_nothing_is_certain(catalog: ForeignCatalog, moody: Moody, name: str) -> None:
    head = append(catalog)
    moody.next_commit(EVERY[name], applies=False)
    outcome = send(catalog, head, snapshot_updates(head))
    assert isinstance(outcome, Unknown)
    assert type(EVERY[name]).__name__ in outcome.cause


@pytest.mark.parametrize("name", EVERY)
def test_p30_a_branch_that_moved_fences_every_copy_of_the_request(
    catalog: ForeignCatalog, moody: Moody, name: str
) -> None:
    head = append(catalog)
    winner = append(catalog)
    moody.next_commit(EVERY[name], applies=False)
    assert send(catalog, head, snapshot_updates(head)) == Stale(winner.location)


@pytest.mark.parametrize("name", SILENT)
def test_p30_a_change_that_fences_nothing_leaves_a_silent_request_unknown(
    catalog: ForeignCatalog, moody: Moody, name: str
) -> None:
    head = append(catalog)
    landed(catalog, [set_property("of", "another")])
    moody.next_commit(EVERY[name], applies=False)
    assert isinstance(send(catalog, head, snapshot_updates(head)), Unknown)


@pytest.mark.parametrize("name", NEGATIVE)
def test_p30_an_answered_request_is_stale_when_the_head_differs(
    catalog: ForeignCatalog, moody: Moody, name: str
) -> None:
    head = append(catalog)
    winner = landed(catalog, [set_property("of", "another")])
    moody.next_commit(EVERY[name], applies=False)
    assert send(catalog, head, snapshot_updates(head)) == Stale(winner.location)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_that_repeating_would_not_change_is_an_error(
    catalog: ForeignCatalog, moody: Moody, name: str
) -> None:
    error, ours = REFUSED[name]
    head = append(catalog)
    moody.next_commit(error, applies=False)
    with pytest.raises(ours):
        send(catalog, head, snapshot_updates(head))


def test_p30_a_commit_to_another_branch_raises_the_sequence_number_and_is_stale(catalog: ForeignCatalog) -> None:
    _two_branches(catalog)
    head = catalog.load(EVENTS)
    winner = append(catalog, "b")
    assert send(catalog, head, snapshot_updates(head, "a")) == Stale(winner.location)
    assert isinstance(send(catalog, winner, snapshot_updates(winner, "a")), Committed)


def test_p30_a_commit_that_was_rolled_back_has_landed(catalog: ForeignCatalog, moody: Moody) -> None:
    head = append(catalog)
    updates = snapshot_updates(head)
    assert isinstance(send(catalog, head, updates), Committed)
    landed(catalog, [move("main", _newest(head))])
    append(catalog)
    assert isinstance(send(catalog, head, updates), Committed)


def test_p30_a_commit_that_may_have_expired_is_unknown(catalog: ForeignCatalog, moody: Moody) -> None:
    head = append(catalog)
    updates = snapshot_updates(head)
    assert isinstance(send(catalog, head, updates), Committed)
    append(catalog)
    landed(catalog, [{"action": "remove-snapshots", "snapshot-ids": [_newest(head), updates[1]["snapshot-id"]]}])
    moody.next_commit(SILENT["read timeout"], applies=False)
    assert isinstance(send(catalog, head, updates), Unknown)


def test_p30_the_first_commit_that_may_have_expired_is_unknown(catalog: ForeignCatalog, moody: Moody) -> None:
    head = catalog.load(EVENTS)
    updates = snapshot_updates(head)
    assert isinstance(send(catalog, head, updates), Committed)
    append(catalog)
    # PyIceberg's expiry clears the parent of what stays, so the second snapshot now looks like a first one.
    landed(catalog, [{"action": "remove-snapshots", "snapshot-ids": [updates[1]["snapshot-id"]]}])
    moody.next_commit(SILENT["read timeout"], applies=False)
    assert isinstance(send(catalog, head, updates), Unknown)


def test_p30_the_first_commit_lost_to_another_first_one_is_stale(catalog: ForeignCatalog, moody: Moody) -> None:
    head = catalog.load(EVENTS)
    winner = append(catalog)
    moody.next_commit(SILENT["read timeout"], applies=False)
    assert send(catalog, head, snapshot_updates(head)) == Stale(winner.location)


def test_a_swap_sent_twice_is_harmless(catalog: ForeignCatalog) -> None:
    head = append(catalog)
    prepared = catalog.prepare(EVENTS, head, propose(head, snapshot_updates(head)))
    assert isinstance(catalog.swap(prepared), Committed)
    again = catalog.swap(prepared)
    assert again == Committed(catalog.load(EVENTS).location)
    assert len(list(catalog.load(EVENTS).metadata.snapshots())) == 2


def test_a_table_gone_after_a_silent_request_is_unknown(catalog: ForeignCatalog, moody: Moody) -> None:
    head = append(catalog)
    moody.next_commit(SILENT["read timeout"], applies=False)
    catalog.drop(EVENTS)
    prepared = catalog.prepare(EVENTS, head, propose(head, snapshot_updates(head)))
    catalog._loaded[EVENTS] = moody.create_table(("shop", "other"), schema=head.metadata.schema())
    assert isinstance(catalog.swap(prepared), Unknown)


def test_secrets_are_in_no_message(tmp_path: Path) -> None:
    catalog = Moody(
        "stand-in",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=tmp_path.as_uri(),
        token="tok-4711-secret",
        credential="client:s3sam-secret",
    )
    ours = foreign(catalog)
    head = new_table(ours, str(tmp_path))
    catalog.next_commit(requests.exceptions.ConnectionError("lost tok-4711-secret and s3sam-secret"), applies=False)
    outcome = send(ours, head, snapshot_updates(head))
    assert isinstance(outcome, Unknown)
    assert "secret" not in outcome.cause
    assert "lost *** and ***" in outcome.cause
    catalog.close()


# Names


def test_create_keeps_the_field_ids_and_the_uuid_asked_for(catalog: ForeignCatalog, tmp_path: Path) -> None:
    asked = with_other_ids(empty_metadata(str(tmp_path / "gaps")))
    head = catalog.create(Ident(("shop",), "gaps"), asked)
    assert [field.field_id for field in head.metadata.schema().fields] == [10, 20, 30]
    assert head.metadata.uuid == asked.uuid
    assert catalog.load(Ident(("shop",), "gaps")).metadata.raw == head.metadata.raw


def test_creating_what_is_there_writes_nothing(catalog: ForeignCatalog, tmp_path: Path) -> None:
    with pytest.raises(TableExists):
        catalog.create(EVENTS, empty_metadata(str(tmp_path / "second")))
    with pytest.raises(FrazilError, match="no namespace nowhere"):
        catalog.create(Ident(("nowhere",), "t"), empty_metadata(str(tmp_path / "second")))
    assert not (tmp_path / "second").exists()


def test_a_creation_whose_answer_was_lost_is_found_by_its_location(
    catalog: ForeignCatalog, moody: Moody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Moody.register_table

    def register_and_lose(self: Moody, identifier: Identifier, location: str) -> None:
        register(self, identifier, location)
        raise requests.exceptions.ConnectionError("Connection aborted")

    monkeypatch.setattr(Moody, "register_table", register_and_lose)
    head = catalog.create(Ident(("shop",), "lost"), empty_metadata(str(tmp_path / "lost")))
    assert head.metadata.location == str(tmp_path / "lost")


def test_a_creation_that_lost_its_race_leaves_no_file(
    catalog: ForeignCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both looked before either wrote.
    monkeypatch.setattr(Moody, "table_exists", lambda *_: False)
    with pytest.raises(TableExists):
        catalog.create(EVENTS, empty_metadata(str(tmp_path / "second")))
    assert [path for path in (tmp_path / "second").rglob("*") if path.is_file()] == []


def test_namespaces_have_levels(catalog: ForeignCatalog) -> None:
    catalog.create_namespace(("shop", "eu", "north"), {"owner": "me"})
    found = catalog.namespaces()
    assert set(found) == {("shop",), ("shop", "eu"), ("shop", "eu", "north")}
    assert found[("shop", "eu", "north")]["owner"] == "me"


def test_tables_of_all_namespaces_are_listed(catalog: ForeignCatalog, tmp_path: Path) -> None:
    catalog.create_namespace(("shop", "eu"), {})
    deep = Ident(("shop", "eu"), "orders")
    catalog.create(deep, empty_metadata(str(tmp_path / "orders")))
    assert sorted(catalog.tables()) == sorted([EVENTS, deep])
    assert catalog.tables(("shop",)) == [EVENTS]


def test_drop_rename_and_register(catalog: ForeignCatalog) -> None:
    renamed = Ident(("shop",), "renamed")
    catalog.rename(EVENTS, renamed)
    assert catalog.tables() == [renamed]
    location = catalog.drop(renamed)
    assert catalog.tables() == []
    assert catalog.register(EVENTS, location).location == location
    with pytest.raises(TableExists):
        catalog.register(EVENTS, location)


def test_a_catalog_opened_read_only_changes_nothing(moody: Moody, catalog: ForeignCatalog) -> None:
    head = catalog.load(EVENTS)
    reader = ForeignCatalog(moody, catalog._storage, SYSTEM, read_only=True)
    changes: list[Callable[[], object]] = [
        lambda: send(reader, head, [set_property("x", "1")]),
        lambda: reader.drop(EVENTS),
        lambda: reader.rename(EVENTS, Ident(("shop",), "b")),
        lambda: reader.create_namespace(("other",), {}),
        lambda: reader.create(Ident(("shop",), "c"), empty_metadata("/nowhere")),
    ]
    for change in changes:
        with pytest.raises(PermissionDenied, match="read_only"):
            change()
    assert reader.load(EVENTS).location == head.location
