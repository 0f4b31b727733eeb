"""ForeignCatalog on Iceberg's own REST server: requirements, races and lost answers, decided by Java."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from contract import samples
from contract.foreign_tables import (
    EVENTS,
    append,
    empty_metadata,
    move,
    new_table,
    record_of,
    send,
    send_exactly,
    set_property,
    snapshot_updates,
    with_other_ids,
)
from contract.test_foreign import RACES
from frazil.catalog.base import Committed, Proposal, Stale, Unknown
from frazil.catalog.foreign import ForeignCatalog, open_foreign
from frazil.catalog.requirements import requirements_for
from frazil.errors import NamespaceExists, NamespaceNotEmpty, NoSuchNamespace, NoSuchTable, TableExists
from frazil.model import Ident
from frazil.runtime import SYSTEM
from interop.rest_server import RestServer

pytestmark = pytest.mark.interop


def open_rest(server: RestServer) -> ForeignCatalog:
    catalog = open_foreign(server.url, warehouse=None, name=None, properties={}, runtime=SYSTEM).catalog
    assert isinstance(catalog, ForeignCatalog)
    return catalog


@pytest.fixture
def catalog(rest_server: RestServer) -> Iterator[ForeignCatalog]:
    """With an empty table EVENTS; the server serves the whole session, so it is dropped again."""
    opened = open_rest(rest_server)
    new_table(opened, rest_server.warehouse)
    yield opened
    for ident in opened.tables(("shop",)):
        opened.drop(ident)
    opened.drop_namespace(("shop",))
    opened.close()


# "Rows bound to a schema that changed" and the like: the server decides by the requirements alone.
@pytest.mark.parametrize("name", RACES)
def test_p29_the_requirements_stop_a_lost_update_on_a_java_server(catalog: ForeignCatalog, name: str) -> None:
    race = RACES[name]
    race.setup(catalog)
    head = catalog.load(EVENTS)
    updates = tuple(race.own(head))
    race.theirs(catalog)
    asked = requirements_for(head.metadata, updates, spec_scoped=True)
    assert send_exactly(catalog, head, Proposal(updates, asked)) == Stale(catalog.load(EVENTS).location)


def test_p30_a_commit_to_another_branch_is_stale_on_a_java_server(catalog: ForeignCatalog) -> None:
    append(catalog)
    head = append(catalog)
    newest = head.metadata.ref_snapshot_id() or 0
    assert isinstance(send(catalog, head, [move("a", newest), move("b", newest)]), Committed)
    head = catalog.load(EVENTS)
    winner = append(catalog, "b")
    assert send(catalog, head, snapshot_updates(head, "a")) == Stale(winner.location)


def test_p30_an_answer_lost_by_the_server_is_found_out(catalog: ForeignCatalog, rest_server: RestServer) -> None:
    head = append(catalog)
    rest_server.lose_answers(1)
    assert isinstance(send(catalog, head, snapshot_updates(head)), Committed)
    head = catalog.load(EVENTS)
    rest_server.lose_answers(1)
    assert isinstance(send(catalog, head, [set_property("x", "1")], record_of(head, "set-x")), Committed)
    assert len(list(head.metadata.snapshots())) == 2


def test_p30_a_server_that_is_unavailable_leaves_the_commit_unknown(
    catalog: ForeignCatalog, rest_server: RestServer
) -> None:
    head = append(catalog)
    prepared = catalog.prepare(EVENTS, head, Proposal(snapshot_updates(head), ()))
    rest_server.refuse(1)
    assert isinstance(catalog.swap(prepared), Unknown)
    assert isinstance(catalog.swap(prepared), Committed)


def test_of_threads_that_swap_from_one_head_exactly_one_wins(catalog: ForeignCatalog, rest_server: RestServer) -> None:
    handles = [open_rest(rest_server) for _ in range(6)]
    for n in range(5):
        head = catalog.load(EVENTS)
        ready = [each.prepare(EVENTS, head, samples.add_column(head, f"c{n}_{me}")) for me, each in enumerate(handles)]
        outcomes = samples.race([partial(each.swap, mine) for each, mine in zip(handles, ready, strict=True)])
        now = catalog.load(EVENTS).location
        assert sorted(outcomes, key=str) == [Committed(now), *[Stale(now)] * 5]
    for each in handles:
        each.close()


def test_names_are_refused_in_our_words(catalog: ForeignCatalog, rest_server: RestServer) -> None:
    location = f"{rest_server.warehouse}/{uuid.uuid4().hex}"
    with pytest.raises(NoSuchTable):
        catalog.load(Ident(("shop",), "nothing"))
    with pytest.raises(NoSuchNamespace):
        catalog.create(Ident(("nowhere",), "t"), empty_metadata(location))
    with pytest.raises(TableExists):
        catalog.create(EVENTS, empty_metadata(location))
    with pytest.raises(NamespaceExists):
        catalog.create_namespace(("shop",), {})
    with pytest.raises(NamespaceNotEmpty):
        catalog.drop_namespace(("shop",))
    with pytest.raises(NoSuchNamespace):
        catalog.tables(("nowhere",))
    with pytest.raises(NoSuchTable):
        catalog.rename(Ident(("shop",), "nothing"), Ident(("shop",), "b"))


def test_create_gives_back_the_ids_and_the_place_the_server_chose(catalog: ForeignCatalog) -> None:
    asked = with_other_ids(empty_metadata(""))
    head = catalog.create(Ident(("shop",), "gaps"), asked)
    assert [field.field_id for field in head.metadata.schema().fields] == [1, 2, 3]
    assert head.metadata.schema().identifier_field_ids == [1]
    assert "/shop/gaps" in head.metadata.location
    assert catalog.load(Ident(("shop",), "gaps")).metadata.raw == head.metadata.raw


def test_namespaces_have_levels(catalog: ForeignCatalog) -> None:
    catalog.create_namespace(("shop", "eu"), {"owner": "me"})
    assert catalog.namespaces()["shop", "eu"]["owner"] == "me"
    catalog.drop_namespace(("shop", "eu"))
    assert ("shop", "eu") not in catalog.namespaces()


def test_rename_drop_and_register(catalog: ForeignCatalog) -> None:
    head = append(catalog)
    renamed = Ident(("shop",), "renamed")
    catalog.rename(EVENTS, renamed)
    assert catalog.load(renamed).location == head.location
    assert catalog.drop(renamed) == head.location
    assert catalog.register(EVENTS, head.location).metadata.uuid == head.metadata.uuid


def test_p29_a_commit_to_a_dropped_table_does_not_bring_it_back(catalog: ForeignCatalog) -> None:
    head = catalog.load(EVENTS)
    catalog.drop(EVENTS)
    assert send(catalog, head, [set_property("x", "1")]) == Stale(None)
    assert catalog.tables(("shop",)) == []


def test_a_write_that_changed_nothing_is_remembered(catalog: ForeignCatalog) -> None:
    head = catalog.load(EVENTS)
    catalog.record_commit(EVENTS, head, record_of(head, "nothing"))
    found = catalog.find_commit(catalog.load(EVENTS).metadata, "nothing")
    assert found == record_of(head, "nothing")
