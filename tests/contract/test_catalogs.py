"""What every catalog must do, one call at a time."""

from __future__ import annotations

import pytest

from contract.openers import Address
from contract.samples import EVENTS, add_column, commit, create_table, new_metadata, prepared, record_for, set_property
from frazil.catalog.base import Committed, LakeCatalog, OpenedCatalog, Stale
from frazil.errors import (
    CorruptMetadata,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    StorageError,
    TableExists,
)
from frazil.model import Ident


def files_of(opened: OpenedCatalog) -> set[str]:
    assert opened.warehouse is not None
    return {info.path.removeprefix("file://") for info in opened.storage.list(opened.warehouse)}


def test_a_new_catalog_is_empty(catalog: LakeCatalog) -> None:
    assert catalog.tables() == []
    assert catalog.namespaces() == {}


def test_namespaces_keep_their_properties_and_a_second_creation_is_refused(catalog: LakeCatalog) -> None:
    catalog.create_namespace(("shop",), {"owner": "ann"})
    assert catalog.namespaces()["shop",].get("owner") == "ann"
    with pytest.raises(NamespaceExists, match="shop"):
        catalog.create_namespace(("shop",), {})


def test_only_an_empty_namespace_that_exists_can_be_dropped(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    with pytest.raises(NoSuchNamespace, match="shop"):
        catalog.drop_namespace(("shop",))
    create_table(opened)
    with pytest.raises(NamespaceNotEmpty, match="shop"):
        catalog.drop_namespace(("shop",))
    catalog.drop(EVENTS)
    catalog.drop_namespace(("shop",))
    assert ("shop",) not in catalog.namespaces()


def test_names_that_differ_in_case_only_are_different_names(opened: OpenedCatalog) -> None:
    if opened.kind in ("glue", "hive"):
        pytest.skip("names are lower case there")
    create_table(opened)
    with pytest.raises(NoSuchTable):
        opened.catalog.load(Ident(("shop",), "Events"))
    with pytest.raises(NoSuchNamespace):
        opened.catalog.drop_namespace(("SHOP",))


def test_a_created_table_is_listed_and_loaded(opened: OpenedCatalog) -> None:
    head = create_table(opened)
    assert opened.catalog.tables() == [EVENTS]
    assert opened.catalog.tables(("shop",)) == [EVENTS]
    loaded = opened.catalog.load(EVENTS)
    assert (loaded.location, loaded.metadata.uuid) == (head.location, head.metadata.uuid)
    assert abs(loaded.now_ms - loaded.metadata.last_updated_ms) < 600_000


def test_a_table_needs_its_namespace_and_leaves_no_file_without_it(opened: OpenedCatalog) -> None:
    with pytest.raises(NoSuchNamespace, match="nowhere"):
        opened.catalog.create(Ident(("nowhere",), "t"), new_metadata(f"{opened.warehouse}/nowhere/t"))
    assert files_of(opened) == set()


def test_a_table_that_exists_is_not_created_again_and_leaves_no_file(opened: OpenedCatalog) -> None:
    head = create_table(opened)
    before = files_of(opened)
    with pytest.raises(TableExists, match=r"shop\.events"):
        create_table(opened)
    assert files_of(opened) == before
    assert opened.catalog.load(EVENTS).location == head.location


def test_what_is_not_there_is_said_by_name(catalog: LakeCatalog) -> None:
    with pytest.raises(NoSuchTable, match=r"shop\.events"):
        catalog.load(EVENTS)
    with pytest.raises(NoSuchTable, match=r"shop\.events"):
        catalog.drop(EVENTS)
    with pytest.raises(NoSuchNamespace, match="shop"):
        catalog.tables(("shop",))


def test_a_dropped_table_is_gone_and_its_file_stays(opened: OpenedCatalog) -> None:
    head = create_table(opened)
    assert opened.catalog.drop(EVENTS) == head.location
    with pytest.raises(NoSuchTable):
        opened.catalog.load(EVENTS)
    assert opened.storage.read(head.location)


def test_rename_moves_the_pointer_and_refuses_what_it_must(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    other = Ident(("shop",), "orders")
    create_table(opened, other)
    with pytest.raises(TableExists, match="orders"):
        catalog.rename(EVENTS, other)
    with pytest.raises(NoSuchTable, match="missing"):
        catalog.rename(Ident(("shop",), "missing"), Ident(("shop",), "new"))
    with pytest.raises(NoSuchNamespace, match="nowhere"):
        catalog.rename(EVENTS, Ident(("nowhere",), "events"))
    catalog.create_namespace(("attic",), {})
    moved = Ident(("attic",), "events")
    catalog.rename(EVENTS, moved)
    assert catalog.load(moved).location == head.location
    with pytest.raises(NoSuchTable):
        catalog.load(EVENTS)


def test_a_swap_is_seen_at_once_by_another_handle(opened: OpenedCatalog, address: Address) -> None:
    create_table(opened)
    other = address.open()
    try:
        other.catalog.load(EVENTS)
        outcome = commit(opened.catalog, "1")
        assert isinstance(outcome, Committed)
        seen = other.catalog.load(EVENTS)
        assert seen.metadata.properties["k"] == "1"
        assert seen.location == outcome.location
    finally:
        other.catalog.close()


def test_the_loser_of_a_race_is_told_the_winners_value(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)
    head = catalog.load(EVENTS)
    first = catalog.prepare(EVENTS, head, add_column(head, "a"))
    second = catalog.prepare(EVENTS, head, add_column(head, "b"))
    won = catalog.swap(first)
    assert isinstance(won, Committed)
    assert catalog.swap(second) == Stale(won.location)
    catalog.discard(second)
    latest = catalog.load(EVENTS)
    assert [field.name for field in latest.metadata.schema().fields] == ["id", "name", "a"]


def test_discarding_a_lost_commit_leaves_no_file_of_it(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)
    head = catalog.load(EVENTS)
    loser = catalog.prepare(EVENTS, head, add_column(head, "b"))
    assert isinstance(catalog.swap(catalog.prepare(EVENTS, head, add_column(head, "a"))), Committed)
    before = files_of(opened)
    assert isinstance(catalog.swap(loser), Stale)
    catalog.discard(loser)
    gone = before - files_of(opened)
    assert gone == ({loser.location.removeprefix("file://")} if loser.location else set())


def test_p9_the_same_swap_sent_again_is_harmless(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    if not catalog.capabilities.stale_is_certain:
        pytest.skip("a re-sent commit is recognised by the commit loop there")
    head = create_table(opened)
    ready = prepared(catalog, "1", record=record_for(head, "c1"))
    first = catalog.swap(ready)
    assert isinstance(first, Committed)
    assert catalog.swap(ready) == first
    third = commit(catalog, "2")
    assert isinstance(third, Committed)
    assert catalog.swap(ready) == Stale(third.location)
    assert catalog.load(EVENTS).metadata.properties["k"] == "2"


def test_a_swap_on_a_dropped_table_is_stale_and_brings_nothing_back(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)
    ready = prepared(catalog, "1")
    catalog.drop(EVENTS)
    assert catalog.swap(ready) == Stale(None)
    assert catalog.tables() == []


def test_a_swap_never_lands_on_another_table_of_the_same_name(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)
    ready = prepared(catalog, "1")
    catalog.drop(EVENTS)
    other = create_table(opened)
    assert catalog.swap(ready) == Stale(other.location)
    assert catalog.load(EVENTS).location == other.location


def test_a_commit_id_is_kept_with_what_it_did(opened: OpenedCatalog, address: Address) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    if not catalog.capabilities.records_commit_ids:
        pytest.skip("commit ids live in the table's metadata there")
    assert catalog.find_commit(head.metadata, "c1") is None
    record = record_for(head, "c1", summary={"rows_inserted": 2**40})
    assert isinstance(commit(catalog, "1", record=record), Committed)
    other = address.open()
    try:
        assert other.catalog.find_commit(head.metadata, "c1") == record
    finally:
        other.catalog.close()


def test_a_commit_id_that_is_there_stops_a_swap_whole(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    if not catalog.capabilities.records_commit_ids:
        pytest.skip("commit ids live in the table's metadata there")
    assert isinstance(commit(catalog, "1", record=record_for(head, "c1", "first")), Committed)
    before = catalog.load(EVENTS)
    assert commit(catalog, "2", record=record_for(head, "c1", "second")) == Stale(before.location)
    assert catalog.load(EVENTS).location == before.location
    kept = catalog.find_commit(head.metadata, "c1")
    assert kept is not None
    assert kept.digest == "first"


def test_a_swap_that_loses_records_no_commit_id(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    if not catalog.capabilities.records_commit_ids:
        pytest.skip("commit ids live in the table's metadata there")
    loser = prepared(catalog, "lost", record=record_for(head, "lost"))
    commit(catalog, "won")
    assert isinstance(catalog.swap(loser), Stale)
    assert catalog.find_commit(head.metadata, "lost") is None


def test_p12_a_write_that_changed_nothing_is_remembered(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)
    head = catalog.load(EVENTS)
    record = record_for(head, "nothing-matched")
    catalog.record_commit(EVENTS, head, record)
    catalog.record_commit(EVENTS, catalog.load(EVENTS), record_for(head, "nothing-matched", "another"))
    found = catalog.find_commit(catalog.load(EVENTS).metadata, "nothing-matched")
    assert found is not None
    assert found.digest == "d"


def test_a_metadata_file_is_registered_under_a_new_name_after_it_was_read(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    again = Ident(("shop",), "again")
    catalog.drop(EVENTS)
    assert catalog.register(again, head.location).metadata.uuid == head.metadata.uuid
    assert catalog.load(again).location == head.location
    with pytest.raises((CorruptMetadata, StorageError)):
        catalog.register(Ident(("shop",), "bad"), f"{head.location}.missing")
    assert catalog.tables() == [again]


def test_a_closed_catalog_may_be_closed_again(address: Address) -> None:
    opened = address.open()
    opened.catalog.close()
    opened.catalog.close()


def test_every_version_points_back_to_the_one_before(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    head = create_table(opened)
    commit(catalog, "1")
    latest = catalog.load(EVENTS)
    assert latest.metadata.raw["metadata-log"][-1]["metadata-file"] == head.location
    assert set_property(latest, "x").requirements[0]["uuid"] == head.metadata.uuid
