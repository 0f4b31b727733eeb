"""Many at once: exactly one wins, and each loser is told the truth."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from contract.openers import OPENERS, Address
from contract.samples import EVENTS, add_column, create_table, new_metadata, prepared, race, race_in_rounds
from frazil.catalog.base import Catalog, Committed, OpenedCatalog, Stale
from frazil.errors import FrazilError, NoSuchNamespace, NoSuchTable, TableExists
from frazil.model import Ident

WRITERS = 8
ROUNDS = 5


def in_processes(address: Address) -> dict[int, list[tuple[Any, str, Any]]]:
    """By round: what each process got for its creation, the head it then saw, and what it got for its swap."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(WRITERS), context.Queue()
    workers = [
        context.Process(target=race_in_rounds, args=(address, n, ROUNDS, barrier, answers), daemon=True)
        for n in range(WRITERS)
    ]
    for worker in workers:
        worker.start()
    found: dict[int, list[tuple[Any, str, Any]]] = defaultdict(list)
    for _ in range(WRITERS * ROUNDS):
        n, *rest = answers.get(timeout=200)
        found[n].append(tuple(rest))
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    answers.close()
    return found


def check_one_winner(catalog: Catalog, outcomes: list[Any], ident: Ident = EVENTS) -> None:
    won = [each for each in outcomes if isinstance(each, Committed)]
    lost = [each for each in outcomes if isinstance(each, Stale)]
    assert len(won) == 1, outcomes
    assert len(lost) == len(outcomes) - 1, outcomes
    if catalog.capabilities.stale_is_certain:
        assert {each.actual for each in lost} == {won[0].location}
    assert catalog.load(ident).location == won[0].location


def test_p5_of_threads_that_swap_from_one_value_exactly_one_wins(opened: OpenedCatalog, address: Address) -> None:
    create_table(opened)
    handles = [address.open() for _ in range(WRITERS)]
    try:
        for n in range(ROUNDS):
            head = opened.catalog.load(EVENTS)
            ready = [
                each.catalog.prepare(EVENTS, head, add_column(head, f"c{n}_{me}")) for me, each in enumerate(handles)
            ]
            outcomes = race([partial(each.catalog.swap, p) for each, p in zip(handles, ready, strict=True)])
            check_one_winner(opened.catalog, outcomes)
    finally:
        for each in handles:
            each.catalog.close()


def test_threads_may_share_one_handle(opened: OpenedCatalog) -> None:
    create_table(opened)
    head = opened.catalog.load(EVENTS)
    ready = [opened.catalog.prepare(EVENTS, head, add_column(head, f"c{me}")) for me in range(WRITERS)]
    check_one_winner(opened.catalog, race([partial(opened.catalog.swap, p) for p in ready]))


@pytest.mark.parametrize("opener", [each for each in OPENERS if each.processes], ids=lambda each: each.name)
def test_p5_of_processes_that_race_exactly_one_creates_and_exactly_one_swaps(
    opened: OpenedCatalog, address: Address
) -> None:
    opened.catalog.create_namespace(("shop",), {})
    for n, answers in in_processes(address).items():
        made = [created for created, _, _ in answers if isinstance(created, str)]
        assert len(made) == 1, answers
        assert all(isinstance(created, str | TableExists) for created, _, _ in answers), answers
        assert {head for _, head, _ in answers} == set(made)
        check_one_winner(opened.catalog, [outcome for _, _, outcome in answers], Ident(("shop",), f"t{n}"))


def test_of_threads_that_create_one_table_exactly_one_does(opened: OpenedCatalog) -> None:
    opened.catalog.create_namespace(("shop",), {})
    for n in range(ROUNDS):
        ident = Ident(("shop",), f"t{n}")
        answers = race([partial(create_table, opened, ident)] * 4)
        losers = [each for each in answers if isinstance(each, FrazilError)]
        assert len(losers) == 3
        assert all(isinstance(each, TableExists) for each in losers), losers
        (winner,) = [each for each in answers if not isinstance(each, FrazilError)]
        assert opened.catalog.load(ident).location == winner.location
    files = list(opened.storage.list(opened.warehouse or ""))
    assert len(files) == ROUNDS


def test_create_and_drop_of_one_name_leave_a_whole_table_or_none(opened: OpenedCatalog) -> None:
    for _ in range(ROUNDS):
        create_table(opened)
        dropped, created = race([lambda: opened.catalog.drop(EVENTS), lambda: create_table(opened)])
        assert isinstance(dropped, str)
        if isinstance(created, FrazilError):
            assert isinstance(created, TableExists)
            assert opened.catalog.tables() == []
        else:
            assert opened.catalog.load(EVENTS).location == created.location
            opened.catalog.drop(EVENTS)


def test_two_renames_of_one_table_move_it_once(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    for n in range(ROUNDS):
        head = create_table(opened)
        goals = [Ident(("shop",), f"a{n}"), Ident(("shop",), f"b{n}")]
        answers = race([partial(catalog.rename, EVENTS, goal) for goal in goals])
        assert sorted(type(each).__name__ for each in answers) == ["NoSuchTable", "NoneType"], answers
        moved = goals[answers.index(None)]
        assert catalog.load(moved).location == head.location
        assert [ident for ident in goals if ident in catalog.tables()] == [moved]


def test_two_renames_to_one_name_move_one_table(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    for n in range(ROUNDS):
        sources = [Ident(("shop",), f"a{n}"), Ident(("shop",), f"b{n}")]
        heads = [create_table(opened, ident) for ident in sources]
        goal = Ident(("shop",), f"goal{n}")
        answers = race([partial(catalog.rename, ident, goal) for ident in sources])
        assert sorted(type(each).__name__ for each in answers) == ["NoneType", "TableExists"], answers
        assert catalog.load(goal).location == heads[answers.index(None)].location


def test_a_drop_and_a_swap_never_bring_a_dropped_table_back(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    for n in range(ROUNDS):
        head = create_table(opened)
        ready = prepared(catalog, str(n))
        dropped, swapped = race([lambda: catalog.drop(EVENTS), partial(catalog.swap, ready)])
        if isinstance(swapped, Committed):
            assert dropped == swapped.location
        else:
            assert (dropped, swapped) == (head.location, Stale(None))
        assert catalog.tables() == []


def test_a_rename_and_a_swap_lose_nothing(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    for n in range(ROUNDS):
        head = create_table(opened)
        ready = prepared(catalog, str(n))
        goal = Ident(("shop",), f"goal{n}")
        renamed, swapped = race([partial(catalog.rename, EVENTS, goal), partial(catalog.swap, ready)])
        assert renamed is None
        assert isinstance(swapped, Committed | Stale)
        assert catalog.load(goal).location == (swapped.location if isinstance(swapped, Committed) else head.location)


def test_a_table_and_the_drop_of_its_namespace_exclude_each_other(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    for n in range(ROUNDS):
        name = (f"n{n}",)
        catalog.create_namespace(name, {"owner": "ann"})
        location = f"{opened.warehouse}/n{n}/t"
        table = Ident(name, "t")
        created, dropped = race(
            [
                partial(catalog.create, table, new_metadata(location)),
                partial(catalog.drop_namespace, name),
            ]
        )
        if isinstance(created, FrazilError):
            assert isinstance(created, NoSuchNamespace)
            assert dropped is None
            assert name not in catalog.namespaces()
        else:
            assert isinstance(dropped, FrazilError)
            assert catalog.namespaces()[name].get("owner") == "ann"


def test_a_reader_beside_writers_always_finds_a_whole_table(opened: OpenedCatalog) -> None:
    catalog = opened.catalog
    create_table(opened)

    def write() -> int:
        return sum(isinstance(catalog.swap(prepared(catalog, "x")), Committed) for _ in range(20))

    def read() -> int:
        return len({catalog.load(EVENTS).location for _ in range(40)})

    wins_a, wins_b, seen = race([write, write, read])
    assert wins_a + wins_b >= 20
    assert seen >= 1
    with pytest.raises(NoSuchTable):
        catalog.load(Ident(("shop",), "other"))
