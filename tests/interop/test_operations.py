"""Frazil's operations as Iceberg Java and PyIceberg see them, and theirs as Frazil's checks see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from frazil.commit.context import Phase
from frazil.lake import Lake
from frazil.table.table import Table
from interop.canonical import canonical
from interop.conftest import Place
from interop.iceberg_java import JavaError, JavaTable
from interop.race import local_path, unreferenced
from interop.refusals import COMMUTING, CONFLICTING, FIRST, IMPATIENT, NAMESPACE, SECOND, Runner, kept
from interop.statements import (
    COW,
    DDL,
    EU,
    MOR,
    US,
    State,
    Statement,
    Where,
    append,
    compact,
    delete,
    delete_files,
    ident,
    in_order,
    overwrite,
    replace_partitions,
    row,
    update,
    upsert,
)
from interop.systems import FrazilSystem, JavaSystem, PyIcebergSystem, System, run_in_frazil

pytestmark = pytest.mark.interop

NAME = "shop.people"
LOW = Where("score", "<", 25)


@dataclass
class Shared:
    """One table, held by all three; the model says what they must read."""

    place: Place
    lake: Lake
    ours: Table
    java: JavaTable
    state: State

    def run(self, *statements: Statement) -> None:
        """Frazil runs them; after each one the table is the same for all."""
        for statement in statements:
            run_in_frazil(self.ours, statement)
            self.state = self.state.after(statement)
            self.check()

    def check(self) -> None:
        metadata = self.java.metadata()
        for branch, wanted in self.state.shown().branches.items():
            snapshot = metadata["refs"][branch]["snapshot_id"]
            assert in_order(self.java.rows(snapshot=snapshot)) == wanted
            assert in_order(self.ours.scan(ref=branch).to_arrow().to_pylist()) == wanted
            totals = self.java.totals(snapshot)
            _check_summary(metadata, snapshot, totals["totals"])
            _check_smallest_sequence_numbers(totals["manifests"])
            self._check_pyiceberg(branch, wanted, has_keys=totals["totals"]["total-equality-deletes"] > 0)
        _check_entries(self.java.entries())

    def _check_pyiceberg(self, branch: str, wanted: object, *, has_keys: bool) -> None:
        scan = self.place.pyiceberg().load_table(NAME).scan().use_ref(branch)
        if has_keys:
            with pytest.raises(ValueError, match="equality deletes"):
                scan.to_arrow()
        else:
            assert in_order(scan.to_arrow().to_pylist()) == wanted


def _check_summary(metadata: dict[str, Any], snapshot: int, totals: dict[str, int]) -> None:
    (summary,) = [each["summary"] for each in metadata["snapshots"] if each["snapshot_id"] == snapshot]
    assert {key: int(summary[key]) for key in totals} == totals


def _check_smallest_sequence_numbers(manifests: list[dict[str, Any]]) -> None:
    """Iceberg Java drops delete files that are older than every data file, by what manifest lists say (P20)."""
    wrong = [each for each in manifests if each["live"] is not None and each["said"] != each["live"]]
    assert wrong == []


def _check_entries(entries: list[dict[str, Any]]) -> None:
    live = [entry["path"] for entry in entries if entry["status"] != 2]
    assert len(live) == len(set(live))
    assert all(entry["sequence_number"] <= entry["file_sequence_number"] for entry in entries)


@pytest.fixture
def start(sqlite_place: Place) -> Iterator[Callable[..., Shared]]:
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")

        def make(*, partitioned: bool = False, branches: tuple[str, ...] = ()) -> Shared:
            partitions = ["region"] if partitioned else []
            table = lake.create_table(NAME, DDL, keys=["id"], partition_by=partitions, properties=IMPATIENT)
            table.append([*FIRST, *SECOND] if partitioned else list(FIRST))
            if not partitioned:
                table.append(list(SECOND))
            for branch in branches:
                table.create_branch(branch)
            state = State(dict.fromkeys(("main", *branches), (*FIRST, *SECOND)))
            return Shared(sqlite_place, lake, table, sqlite_place.iceberg_java().table(NAME), state)

        yield make


# After each operation every reader sees the same


CHAINS: dict[str, list[Statement]] = {
    "delete of whole files": [delete_files(EU), delete_files(US), append(row(9))],
    "delete copy-on-write": [delete(ident(2), COW), delete(LOW, COW), delete(Where("id", ">", 4), COW)],
    "delete merge-on-read": [delete(ident(2), MOR), delete(LOW, MOR), delete(Where("id", "in", (3, 6, 8)), MOR)],
    "update copy-on-write": [update("x", ident(2), COW), update("y", LOW, COW), update("z", EU, COW)],
    "update merge-on-read": [update("x", ident(2), MOR), update("y", LOW, MOR), update("z", EU, MOR)],
    "both modes on one file": [delete(ident(1), MOR), update("x", ident(2), COW), delete(ident(3), MOR), compact()],
    "overwrite": [overwrite(EU, row(20), row(21)), overwrite(Where("id", ">", 6), row(30, "us")), overwrite(EU)],
    "upsert": [upsert(row(2, name="x"), row(40)), upsert(row(40, name="y")), update("z", ident(40), MOR)],
    "upsert by position": [upsert(row(2, name="x"), row(40), mode="position"), upsert(row(40, name="y"), mode=COW)],
    "compaction": [delete(ident(1), MOR), update("x", ident(6), MOR), append(row(9)), compact(), delete(ident(6), MOR)],
    "compaction of upserts": [upsert(row(2, name="x")), upsert(row(2, name="y")), compact(), upsert(row(2, name="z"))],
}


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_reader_sees_the_same_after_each_operation(
    start: Callable[..., Shared], chain: str, partitioned: bool
) -> None:
    shared = start(partitioned=partitioned)
    shared.run(*CHAINS[chain])
    assert unreferenced(shared.place.pyiceberg().load_table(NAME)) == lineages(shared)


def lineages(shared: Shared) -> set[Any]:
    """The files beside the metadata that say where rows went; Iceberg does not know of them."""
    summaries = [each.summary for each in shared.ours.history()]
    return {local_path(each["frazil.lineage"]) for each in summaries if "frazil.lineage" in each}


def test_every_reader_sees_the_same_after_replace_partitions(start: Callable[..., Shared]) -> None:
    shared = start(partitioned=True)
    shared.run(
        replace_partitions(row(20), row(21)),
        delete(ident(20), MOR),
        replace_partitions(row(22), row(23, "asia")),
        replace_partitions(row(24, "us"), row(25, "asia")),
    )


def test_every_reader_sees_the_same_after_the_partitioning_changed(start: Callable[..., Shared]) -> None:
    shared = start(partitioned=True)
    shared.java.update_spec(["remove", "region"], ["add", "bucket", "id", 4])
    shared.run(
        append(row(9), row(10, "us")),
        delete(ident(2), MOR),
        update("x", Where("id", "in", (3, 6, 9)), COW),
        update("y", Where("id", "in", (4, 7, 10)), MOR),
        delete_files(EU),
        upsert(row(7, name="z"), row(41)),
        compact(),
        overwrite(US, row(50, "us")),
    )


def test_every_reader_sees_the_same_after_the_schema_changed(start: Callable[..., Shared]) -> None:
    shared = start()
    shared.java.update_schema(["add", "extra", "int"], ["rename", "name", "title"], ["widen", "score", "long"])
    renamed = {"id": "long", "region": "string", "title": "string", "score": "long", "extra": "int"}
    shared.ours.update({"title": "concat(title, '!')", "extra": "score + 1"}, "id in (2, 6)", mode="copy-on-write")
    shared.ours.update({"extra": "7"}, "id = 3", mode="merge-on-read")
    shared.ours.delete("title = 'n4'", mode="copy-on-write")
    shared.ours.compact()
    rows = [{**each, "title": each["name"], "extra": None} for each in (*FIRST, *SECOND) if each["id"] != 4]
    for each in rows:
        if each["id"] in (2, 6):
            each.update(title=f"{each['title']}!", extra=each["score"] + 1)
        if each["id"] == 3:
            each["extra"] = 7
    wanted = sorted(([each[column] for column in renamed] for each in rows), key=str)
    peer = shared.place.pyiceberg().load_table(NAME).scan().to_arrow().to_pylist()
    for found in (shared.ours.scan().to_arrow().to_pylist(), shared.java.rows(), peer):
        assert sorted(([each[column] for column in renamed] for each in found), key=str) == wanted


WIDER_KEYS: dict[str, tuple[str, list[Any], Any]] = {
    # old type: the new one as Java names it, keys of the old one, a key that only the new one holds
    "int": ("long", [1, 2, 3, 4], 2**32 + 2),
    "decimal(5, 2)": ("decimal(12, 2)", [Decimal(n).scaleb(-2) for n in (150, 175, 250, 99999)], Decimal("1000001.75")),
}


@pytest.mark.parametrize("partitions", [[], ["id"], ["bucket(4, id)"]], ids=["plain", "by key", "by bucket"])
@pytest.mark.parametrize("kind", WIDER_KEYS)
def test_p16_deletes_by_key_reach_rows_whose_key_was_widened_meanwhile_whoever_reads(
    sqlite_place: Place, kind: str, partitions: list[str]
) -> None:
    """Both ways: narrow keys on rows of the wider type, and wide keys on rows and deletes of the narrow one."""
    wider, keys, beyond = WIDER_KEYS[kind]
    first, second, third, fourth = keys
    with sqlite_place.lake() as lake:
        lake.create_namespace("shop")
        ours = lake.create_table(NAME, f"id {kind} not null, name string", keys=["id"], partition_by=partitions)
        java = sqlite_place.iceberg_java().table(NAME)
        ours.append([{"id": each, "name": "old"} for each in (first, second, third)])

        def check(names: dict[Any, str]) -> None:
            schema = ours.schema
            wanted = in_order(canonical([{"id": key, "name": name} for key, name in names.items()], schema))
            assert in_order(java.rows()) == wanted
            assert in_order(canonical(ours.scan().to_arrow(), schema)) == wanted

        meanwhile = [lambda: java.update_schema(["widen", "id", wider])]

        def widen(phase: Phase, _attempt: int) -> None:
            if phase is Phase.HEAD_READ and meanwhile:
                meanwhile.pop()()

        mine = [{"id": first, "name": "mine"}, {"id": fourth, "name": "mine"}]
        assert ours.upsert(mine, mode="equality", on_phase=widen).attempts == 2
        assert str(ours.schema.find_type("id")) == wider
        check({first: "mine", second: "old", third: "old", fourth: "mine"})
        ours.upsert([{"id": beyond, "name": "wide"}, {"id": second, "name": "wide"}], mode="equality")
        check({first: "mine", second: "wide", third: "old", fourth: "mine", beyond: "wide"})
        java.append(canonical([{"id": beyond, "name": "java"}], ours.schema))
        ours.upsert([{"id": beyond, "name": "again"}, {"id": fourth, "name": "again"}], mode="equality")
        check({first: "mine", second: "wide", third: "old", fourth: "again", beyond: "again"})
        ours.compact()
        check({first: "mine", second: "wide", third: "old", fourth: "again", beyond: "again"})


def test_every_reader_sees_the_same_on_branches(start: Callable[..., Shared]) -> None:
    shared = start(branches=("audit",))
    statements = [
        delete(ident(1), MOR),
        update("x", ident(2), COW),
        overwrite(US, row(20, "us")),
        upsert(row(3, name="y")),
        compact(),
        append(row(21)),
    ]
    for statement in statements:
        shared.run(replace(statement, branch="audit"))
    assert shared.state.branches["main"] == (*FIRST, *SECOND)
    shared.run(delete(ident(1), MOR), compact())


# Carried over what others did meanwhile


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_every_reader_sees_the_same_after_deletes_were_carried_over_a_compaction(
    start: Callable[..., Shared], partitioned: bool
) -> None:
    shared = start(partitioned=partitioned)
    shared.run(append(row(9), row(10, "us")))
    held = [delete(ident(1), MOR), update("x", ident(6), MOR), delete(Where("id", "in", (2, 9)), COW)]
    transactions = [shared.lake.transaction() for _ in held]
    for transaction, statement in zip(transactions, held, strict=True):
        run_in_frazil(transaction.table(NAME), statement)
    shared.run(compact())
    for transaction, statement in zip(transactions, held, strict=True):
        transaction.commit()
        shared.state = shared.state.after(statement)
        shared.check()


def test_every_reader_sees_the_same_after_a_compaction_took_deletes_along(start: Callable[..., Shared]) -> None:
    shared = start()
    late = shared.lake.transaction()
    late.table(NAME).compact()
    shared.run(delete(ident(1), MOR), update("x", ident(6), MOR), upsert(row(3, name="y")), append(row(9)))
    late.commit()
    shared.check()


def test_p20_a_compacted_file_is_as_old_as_the_snapshot_that_was_read(start: Callable[..., Shared]) -> None:
    shared = start()
    shared.run(upsert(row(2, name="x")))
    base = shared.ours.snapshot()
    assert base is not None
    late = shared.lake.transaction()
    late.table(NAME).compact()
    shared.run(upsert(row(5, "us", name="y"), row(2, name="z")))
    head = shared.ours.snapshot()
    assert head is not None
    late.commit()
    shared.check()
    done = shared.ours.snapshot()
    assert done is not None
    (output,) = [
        entry for entry in shared.java.entries() if entry["snapshot_id"] == done.snapshot_id and entry["status"] == 1
    ]
    assert output["sequence_number"] == base.sequence_number
    assert output["file_sequence_number"] == done.sequence_number == head.sequence_number + 1


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_p36_pyiceberg_reads_upserted_rows_once_they_are_compacted(
    start: Callable[..., Shared], partitioned: bool
) -> None:
    shared = start(partitioned=partitioned)
    shared.run(upsert(row(2, name="x"), row(40)), upsert(row(40, name="y")), delete(ident(3), MOR))
    peer = shared.place.pyiceberg()
    with pytest.raises(ValueError, match="equality deletes"):
        peer.load_table(NAME).scan().to_arrow()
    before = in_order(shared.java.rows())
    shared.run(compact())
    totals = shared.java.totals(shared.java.head())["totals"]
    assert (totals["total-delete-files"], totals["total-equality-deletes"]) == (0, 0)
    assert in_order(peer.load_table(NAME).scan().to_arrow().to_pylist()) == before == in_order(shared.java.rows())
    shared.run(upsert(row(2, name="z")), delete(ident(40), COW))


# Iceberg Java's checks see Frazil's commits (P14)


@pytest.fixture
def runner(sqlite_place: Place) -> Iterator[tuple[Runner, FrazilSystem, JavaSystem, PyIcebergSystem]]:
    java = sqlite_place.iceberg_java()
    with sqlite_place.lake() as lake:
        lake.create_namespace(NAMESPACE)
        yield Runner(lake, java), FrazilSystem(lake), JavaSystem(java), PyIcebergSystem(sqlite_place.pyiceberg())


Players = tuple[Runner, FrazilSystem, JavaSystem, PyIcebergSystem]
ALL = [*(pair for pairs in COMMUTING.values() for pair in pairs), *CONFLICTING]


@pytest.mark.timeout(900)
def test_p14_java_judges_a_commit_of_frazil_as_it_judges_its_own(runner: Players) -> None:
    """Except for upserts, which are equality deletes in Frazil and a MERGE in Spark."""
    play, frazil, java, _ = runner
    own = [pair["outcomes"][java.name] for pairs in kept().values() for pair in pairs]
    different = {}
    for pair, verdict in zip(ALL, own, strict=True):
        # Java overwrites no part of a file.
        if pair.theirs.verb == "upsert" or verdict == "cannot":
            continue
        outcome = play.play(pair, theirs=frazil, mine=java)
        if outcome.verdict != verdict:
            different[pair.name] = (outcome, verdict)
    assert different == {}


def _rewrites(statement: Statement, winner: str) -> bool:
    """Whether files go while others come, so that rows may have moved from these to those."""
    verbs = {"compact", "overwrite", "replace partitions", *(["upsert"] if winner == "pyiceberg" else [])}
    return statement.mode == COW or statement.verb in verbs


@pytest.mark.timeout(900)
@pytest.mark.parametrize("winner", ["java", "pyiceberg"])
def test_frazil_sees_what_others_committed_since_its_base(runner: Players, winner: str) -> None:
    """Pairs that commute land, unless the other one rewrote files and left no trace of where their rows went."""
    play, frazil, java, pyiceberg = runner
    other: System = java if winner == "java" else pyiceberg
    for pair in ALL:
        outcome = play.play(pair, theirs=other, mine=frazil)
        if pair in CONFLICTING:
            assert outcome.verdict in ("refused", "cannot"), pair.name
        elif outcome.verdict == "refused":
            assert _rewrites(pair.theirs, winner), f"{pair.name}: {outcome.detail}"
            assert "recorded no lineage of the rows" in outcome.detail, outcome.detail
        else:
            assert outcome.verdict in ("landed", "cannot"), f"{pair.name}: {outcome.detail}"


@pytest.mark.parametrize("mine", ["overwrite", "delete", "update"])
def test_p14_java_sees_rows_of_a_manifest_that_was_used_again(start: Callable[..., Shared], mine: str) -> None:
    shared = start()
    about = Where("score", ">", 500)
    statements = {
        "overwrite": lambda: shared.java.prepare("overwrite", filter=about.json(), rows=[row(99)]),
        "delete": lambda: shared.java.prepare("delete", filter=about.json(), mode=COW),
        "update": lambda: shared.java.prepare("update", filter=about.json(), mode=MOR, set={"name": "x"}),
    }
    commit = statements[mine]()

    def java_goes_first(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt <= 2:
            shared.java.append([row(100 + attempt, score=1)])

    done = shared.ours.append([row(60, score=600)], on_phase=java_goes_first)
    assert done.attempts == 3
    with pytest.raises(JavaError, match="conflicting files") as refused:
        commit()
    assert refused.value.kind == "ValidationException"


def test_p14_java_incremental_scan_sees_appends_and_not_what_was_copied(start: Callable[..., Shared]) -> None:
    shared = start()
    base = shared.java.head()
    added = set()

    def append_one(number: int) -> None:
        before = {file["path"] for file in shared.java.plan()}
        shared.run(append(row(number)))
        added.update({file["path"] for file in shared.java.plan()} - before)

    append_one(100)
    shared.run(compact(), delete(ident(100), MOR), update("x", ident(2), COW))
    append_one(101)
    shared.run(upsert(row(3, name="y")), delete_files(US))
    append_one(102)
    assert {file["path"] for file in shared.java.appends_between(base)} == added
