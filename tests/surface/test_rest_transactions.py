"""Transactions over several tables of a REST catalog: one commit, found out whatever the answer (P29, P30, P40)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.update import AssertCreate, AssertRefSnapshotId, AssertTableUUID

import frazil
from frazil.commit.context import Phase
from frazil.model import Snapshot
from rest_service import COMMIT_TRANSACTION, ENDPOINTS, Plan, Refused, RestService, Sent, serving
from surface.matrix import files_of
from surface.three_tables import DDL, held, move, row, stray_files, values

NAMES = ("s.a", "s.b", "s.c")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RestService]:
    with serving(RestService(tmp_path / "warehouse")) as found:
        yield found


@pytest.fixture
def lake(service: RestService) -> Iterator[frazil.Lake]:
    with frazil.connect(service.url) as lake:
        lake.create_namespace("s")
        for name in NAMES:
            lake.create_table(name, DDL, keys=["id"]).append([row(1, 10), row(2, 20)])
        yield lake


def state(service: RestService) -> dict[str, str]:
    return {".".join(name): service.version(name) for name in service.tables}


def newest(lake: frazil.Lake, name: str) -> Snapshot:
    found = lake.table(name).snapshot()
    assert found is not None
    return found


def was_moved(lake: frazil.Lake) -> bool:
    """Once or not at all; any other outcome is an error."""
    found = [values(lake, "s.a")[1], values(lake, "s.b")[1], values(lake, "s.c").get(101)]
    assert found in ([9, 11, 0], [10, 10, None]), found
    return found == [9, 11, 0]


def patient(tries: int = 16) -> frazil.Retry:
    return frazil.Retry(tries=tries, base_ms=1, cap_ms=2)


# One commit


def test_all_tables_change_in_one_request(lake: frazil.Lake, service: RestService) -> None:
    before = state(service)
    with lake.transaction(commit_id="transfer-1") as tx:
        move(tx)
    done = tx.result
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.attempts, list(done.tables)) == (1, list(NAMES))
    (request,) = service.received
    assert [each.identifier.name for each in request] == ["a", "b", "c"]
    assert was_moved(lake)
    assert all(before[name] != now for name, now in state(service).items())
    for name in NAMES:
        assert lake.table(name).history()[-1].snapshot_id == done.tables[name].snapshot_id
        assert newest(lake, name).summary["frazil.commit-id"] == "transfer-1"


def test_p40_a_table_that_was_only_read_is_sent_with_requirements_alone(
    lake: frazil.Lake, service: RestService
) -> None:
    with lake.transaction() as tx:
        count = tx.table("s.b").scan().count()
        tx.table("s.a").append([row(3, count)])
    (request,) = service.received
    sent = {each.identifier.name: each for each in request}
    assert set(sent) == {"a", "b"}
    assert sent["b"].updates == ()
    assert any(isinstance(each, AssertTableUUID) for each in sent["b"].requirements)
    (branch,) = [each for each in sent["b"].requirements if isinstance(each, AssertRefSnapshotId)]
    assert (branch.ref, branch.snapshot_id) == ("main", newest(lake, "s.b").snapshot_id)


def test_at_snapshot_isolation_a_table_that_was_only_read_is_not_sent(lake: frazil.Lake, service: RestService) -> None:
    with lake.transaction(isolation="snapshot") as tx:
        tx.table("s.b").scan().count()
        tx.table("s.a").append([row(3, 0)])
        tx.table("s.c").append([row(3, 0)])
    (request,) = service.received
    assert [each.identifier.name for each in request] == ["a", "c"]


def test_every_kind_of_change_lands_with_the_others(lake: frazil.Lake, service: RestService) -> None:
    with lake.transaction(commit_id="all-kinds") as tx:
        a = tx.table("s.a")
        a.add_column("note", "string")
        a.append([{"id": 3, "v": 30, "note": "x"}])
        a.delete("id = 1")
        tx.table("s.b").set_properties({"owner": "ann"})
        tx.table("s.c").set_partitioning(["bucket(4, id)"])
        tx.table("s.c").append([row(3, 30)])
    assert len(service.received) == 1
    assert {each["id"]: each["note"] for each in lake.table("s.a").scan().to_arrow().to_pylist()} == {2: None, 3: "x"}
    assert lake.table("s.b").properties["owner"] == "ann"
    assert len(lake.table("s.c").spec.fields) == 1
    assert values(lake, "s.c") == {1: 10, 2: 20, 3: 30}


def test_a_request_carries_the_token_of_the_session(lake: frazil.Lake, service: RestService) -> None:
    service.token = "secret-1"
    with frazil.connect(
        service.url, token="secret-1", properties={"oauth2-server-uri": f"{service.url}/none"}
    ) as again:
        with again.transaction() as tx:
            move(tx)
        assert was_moved(again)


def test_a_token_that_has_expired_is_replaced_and_the_request_sent_again(
    lake: frazil.Lake, service: RestService
) -> None:
    service.plans.append(failing(401))
    with lake.transaction() as tx:
        move(tx)
    assert len(service.received) == 2
    assert was_moved(lake)


# Rebase or refuse


@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.PREPARED])
def test_p40_changes_that_commute_are_rebased_on_every_table(lake: frazil.Lake, at: Phase) -> None:
    def others() -> None:
        lake.table("s.a").update(set={"v": "99"}, where="id = 2")
        lake.table("s.b").append([row(7, 70)])

    with held(lake, at, others) as tx:
        move(tx)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert tx.result.attempts == 2
    assert values(lake, "s.a") == {1: 9, 2: 99}
    assert values(lake, "s.b") == {1: 11, 2: 20, 7: 70}


@pytest.mark.parametrize("name", ["s.a", "s.b"])
def test_p40_one_conflict_refuses_the_whole_and_names_the_table(
    lake: frazil.Lake, service: RestService, name: str
) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.table(name).update(set={"v": "0"}, where="id = 1"))
    move(tx)
    before = state(service)
    with pytest.raises(frazil.ConflictError, match=rf"{name}: "):
        tx.commit()
    assert {each for each, at in state(service).items() if at != before[each]} == {name}
    assert values(lake, "s.c") == {1: 10, 2: 20}


def skewed(lake: frazil.Lake, isolation: str, at: Phase) -> Any:
    """Two transactions that each read both tables and write to the other one of them."""

    def other() -> None:
        with lake.transaction(isolation=isolation) as theirs:
            if sum(values_in(theirs)) >= 60:
                theirs.table("s.a").update(set={"v": "v - 30"}, where="id = 1")

    mine = held(lake, at, other, isolation=isolation)
    if sum(values_in(mine)) >= 60:
        mine.table("s.b").update(set={"v": "v - 30"}, where="id = 1")
    return mine


def values_in(tx: Any) -> list[int]:
    return [each["v"] for name in ("s.a", "s.b") for each in tx.table(name).scan().to_arrow().to_pylist()]


@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.PREPARED])
def test_p40_write_skew_is_refused_by_the_server(lake: frazil.Lake, at: Phase) -> None:
    with pytest.raises(frazil.ConflictError, match=r"s\.a: "):
        skewed(lake, "serializable", at).commit()
    assert sum(values(lake, "s.a").values()) + sum(values(lake, "s.b").values()) == 30


@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.PREPARED])
def test_write_skew_happens_at_snapshot_isolation(lake: frazil.Lake, at: Phase) -> None:
    skewed(lake, "snapshot", at).commit()
    assert sum(values(lake, "s.a").values()) + sum(values(lake, "s.b").values()) == 0


def test_p40_a_delete_that_found_nothing_is_compared_and_recorded(lake: frazil.Lake, service: RestService) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.a").append([row(77, 0)]))
    tx.table("s.a").delete("id = 77")
    tx.table("s.b").append([row(3, 0)])
    with pytest.raises(frazil.ConflictError, match=r"s\.a: no added rows match my filter"):
        tx.commit()
    for attempt in range(2):
        with lake.transaction(commit_id="nothing-there") as tx:
            tx.table("s.a").delete("id = 78")
            tx.table("s.b").append([row(4, 0)])
        assert isinstance(tx.result, frazil.TransactionCommit)
        assert tx.result.already_committed is bool(attempt)
    assert any(key == "frazil.commit.nothing-there" for key in service.tables["s", "a"][1].properties)


# Answers that decide nothing (P9, P30)


def landing(status: int | None) -> Plan:
    def plan(sent: Sent) -> int | None:
        sent.apply()
        return status

    return plan


def failing(status: int | None) -> Plan:
    return lambda _sent: status


@pytest.mark.parametrize("status", [409, 500, 502, 503, 504, None])
def test_p30_a_commit_that_landed_is_found_whatever_the_answer(
    lake: frazil.Lake, service: RestService, status: int | None
) -> None:
    """409: the request was sent twice on its way, and the second one lost to the first."""
    service.plans.append(landing(status))
    with lake.transaction() as tx:
        move(tx)
    assert tx.result is not None
    assert len(service.received) == 1, "it was found, and not sent again"
    assert was_moved(lake)


@pytest.mark.parametrize("status", [409, 500, 502, 503, 504, None])
def test_p30_a_commit_that_never_arrived_is_sent_again(
    lake: frazil.Lake, service: RestService, status: int | None
) -> None:
    service.plans.append(failing(status))
    with lake.transaction(retry=patient()) as tx:
        move(tx)
    assert len(service.received) == 2
    assert service.received[0] == service.received[1]
    assert was_moved(lake)


@pytest.mark.parametrize("status", [400, 403])
def test_a_request_that_is_refused_outright_leaves_nothing(
    lake: frazil.Lake, service: RestService, status: int
) -> None:
    service.plans.append(failing(status))
    files = {name: files_of(lake.table(name)) for name in NAMES}
    tx = lake.transaction()
    move(tx)
    with pytest.raises((frazil.InvalidInput, frazil.PermissionDenied), match=r"s\.a, s\.b and s\.c"):
        tx.commit()
    assert {name: files_of(lake.table(name)) for name in NAMES} == files
    assert not was_moved(lake)


def test_p9_a_request_that_was_overtaken_is_fenced_off_and_never_lands(lake: frazil.Lake, service: RestService) -> None:
    late: list[Sent] = []

    def overtaken(sent: Sent) -> None:
        late.append(sent)
        lake.table("s.a").append([row(50, 0)])

    service.plans.append(overtaken)
    with lake.transaction(retry=patient()) as tx:
        move(tx)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert tx.result.attempts == 2
    with pytest.raises(Refused):
        late[0].apply()
    assert was_moved(lake)


def test_p9_a_read_table_that_moved_fences_off_the_whole(lake: frazil.Lake, service: RestService) -> None:
    late: list[Sent] = []

    def overtaken(sent: Sent) -> None:
        late.append(sent)
        lake.table("s.b").append([row(50, 0)])

    service.plans.append(overtaken)
    with lake.transaction(retry=patient()) as tx:
        assert tx.table("s.b").scan(where="id < 10").count() == 2
        tx.table("s.a").append([row(3, 0)])
    assert isinstance(tx.result, frazil.Commit)
    assert tx.result.attempts == 2
    with pytest.raises(Refused):
        late[0].apply()
    assert lake.table("s.a").scan(where="id = 3").count() == 1


@pytest.mark.parametrize("later", [503, 409])
def test_p9_while_nothing_fences_it_off_the_outcome_is_unknown(
    lake: frazil.Lake, service: RestService, later: int
) -> None:
    """``later``: the answer to the request that is sent again, which says nothing about the first one."""
    late: list[Sent] = []

    def kept(sent: Sent) -> int:
        late.append(sent)
        if len(late) == 1:
            # Another branch: no requirement of the request notices.
            lake.table("s.a").create_branch("audit")
        return 503 if len(late) == 1 else later

    service.plans.extend([kept] * 20)
    tx = lake.transaction(retry=patient(tries=1), commit_id="late")
    move(tx)
    with pytest.raises(frazil.CommitUnknown, match="late"):
        tx.commit()
    service.plans.clear()
    late[0].apply()
    assert was_moved(lake), "no file of it was deleted"
    with lake.transaction(commit_id="late") as again:
        move(again)
    assert isinstance(again.result, frazil.TransactionCommit)
    assert again.result.already_committed
    assert list(again.result.tables) == list(NAMES)
    assert was_moved(lake)


def test_p9_changes_without_snapshots_are_not_sent_over_what_landed_since(
    lake: frazil.Lake, service: RestService
) -> None:
    def unreadable(_name: str) -> None:
        service.on_load = None
        raise Refused(503, "busy")

    def lost(sent: Sent) -> int:
        # The client cannot read the tables after this answer, and would have to send again.
        sent.apply()
        lake.table("s.b").set_properties({"owner": "later"})
        service.on_load = unreadable
        return 503

    service.plans.append(lost)
    with lake.transaction(retry=patient()) as tx:
        for name in ("s.a", "s.b"):
            tx.table(name).set_properties({"owner": "mine"})
    assert [lake.table(name).properties["owner"] for name in ("s.a", "s.b")] == ["mine", "later"]


def test_p40_heads_read_while_the_commit_lands_are_not_taken_for_half_of_it(
    lake: frazil.Lake, service: RestService
) -> None:
    late: list[Sent] = []

    def land(name: str) -> None:
        if name == "c" and late:
            late.pop().apply()

    def slow(sent: Sent) -> None:
        late.append(sent)

    service.plans.append(slow)
    with lake.transaction() as tx:
        move(tx)
        service.on_load = land
    assert (tx.result is not None, len(service.received)) == (True, 1)
    assert was_moved(lake)


# Servers that are not atomic over tables


def half(status: int | None) -> Plan:
    def plan(sent: Sent) -> int | None:
        sent.apply_one(0)
        return status

    return plan


@pytest.mark.parametrize("status", [204, 409, 500, None])
def test_p40_half_of_a_commit_is_reported_and_nothing_is_deleted(
    lake: frazil.Lake, service: RestService, status: int | None
) -> None:
    service.plans.append(half(status))
    tx = lake.transaction(commit_id="torn")
    move(tx)
    files = {name: files_of(lake.table(name)) for name in NAMES}
    with pytest.raises(frazil.PartlyCommitted, match=r"s\.a has it, s\.b and s\.c have not") as caught:
        tx.commit()
    error = caught.value
    assert (error.committed, error.missing, error.commit_id) == (("s.a",), ("s.b", "s.c"), "torn")
    assert not error.safe_to_delete_staged
    assert not error.retryable
    assert all(files[name] <= files_of(lake.table(name)) for name in NAMES)
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1]) == (9, 10)
    assert len(service.received) == 1, "it is not sent again"


def test_p40_a_call_that_is_repeated_does_not_take_half_of_it_for_the_whole(
    lake: frazil.Lake, service: RestService
) -> None:
    service.plans.append(half(500))
    for _ in range(2):
        with pytest.raises(frazil.PartlyCommitted, match=r"s\.a has it"):
            lake.run(move, commit_id="torn")
    assert values(lake, "s.a")[1] == 9


def test_an_id_that_expired_from_one_table_is_not_half_of_a_commit(lake: frazil.Lake) -> None:
    with lake.transaction(commit_id="old") as tx:
        move(tx)
    for number in range(2):
        lake.table("s.b").append([row(60 + number, 0)])
    assert lake.table("s.b").expire_snapshots(older_than="2100-01-01T00:00:00Z", retain_last=1)
    with lake.transaction(commit_id="old") as again:
        move(again)
    assert isinstance(again.result, frazil.TransactionCommit)
    assert again.result.already_committed


def test_p40_a_change_that_a_server_dropped_without_a_word_is_noticed(lake: frazil.Lake, service: RestService) -> None:
    """As Iceberg's reference server does with a table that moves between its checks and its commits."""
    service.plans.append(lambda sent: sent.apply_one_by_one(lambda: lake.table("s.b").append([row(70, 0)])))
    tx = lake.transaction()
    move(tx)
    with pytest.raises(frazil.PartlyCommitted, match=r"s\.a and s\.c have it, s\.b has not"):
        tx.commit()


def test_a_server_that_commits_one_by_one_and_finishes_is_no_half(lake: frazil.Lake, service: RestService) -> None:
    service.plans.append(lambda sent: sent.apply_one_by_one(lambda: None))
    with lake.transaction() as tx:
        move(tx)
    assert was_moved(lake)


# Tables made and dropped


def test_a_table_is_created_and_filled_with_the_commit(lake: frazil.Lake, service: RestService) -> None:
    with lake.transaction() as tx:
        tx.create_table("s.new", "id bigint not null, day date", partition_by=["day"], properties={"k": "1"}, as_=None)
        tx.table("s.new").append([{"id": 5, "day": None}])
        tx.table("s.a").append([row(3, 0)])
        assert not lake.exists("s.new")
    made = {each.identifier.name: each for each in service.received[0]}["new"]
    assert [type(each) for each in made.requirements] == [AssertCreate]
    new = lake.table("s.new")
    assert new.scan().to_arrow().to_pylist() == [{"id": 5, "day": None}]
    assert (new.properties["k"], len(new.spec.fields)) == ("1", 1)
    assert stray_files(lake, "s.new") == set()


def test_a_table_that_is_created_alone_in_a_transaction(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        tx.create_table("s.new", DDL, as_=[row(1, 1)])
    assert values(lake, "s.new") == {1: 1}


def test_p40_a_name_that_was_taken_meanwhile_is_refused(lake: frazil.Lake, service: RestService) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.create_table("s.new", DDL))
    tx.create_table("s.new", DDL, as_=[row(1, 1)])
    tx.table("s.a").append([row(3, 0)])
    before = state(service)
    with pytest.raises(frazil.TableExists):
        tx.commit()
    assert {name for name, at in state(service).items() if at != before.get(name)} == {"s.new"}
    with pytest.raises(frazil.TableExists):
        lake.transaction().create_table("s.a", DDL)


@pytest.mark.parametrize("status", [400, 404])
def test_a_server_that_creates_no_tables_in_such_a_commit_is_named(
    lake: frazil.Lake, service: RestService, status: int
) -> None:
    service.plans.append(failing(status))
    tx = lake.transaction()
    tx.create_table("s.new", DDL, as_=[row(1, 1)])
    tx.table("s.a").append([row(3, 0)])
    files = files_of(lake.table("s.a"))
    with pytest.raises(frazil.Unsupported, match=r"does not create s\.new in a transaction"):
        tx.commit()
    assert not lake.exists("s.new")
    assert files_of(lake.table("s.a")) < files


def test_a_drop_is_refused_before_any_work(lake: frazil.Lake, service: RestService) -> None:
    with lake.transaction() as tx, pytest.raises(frazil.Unsupported, match=r"does not drop tables .* s\.a"):
        tx.drop_table("s.a")
    assert lake.exists("s.a")
    assert service.received == []


# Servers without the endpoint


@pytest.fixture(params=["no list", "not listed", "pyiceberg-sql"])
def one_by_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    """A catalog that commits one table at a time."""
    if request.param == "pyiceberg-sql":
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/pyiceberg.db"}
        with frazil.connect("pyiceberg:standin", warehouse=tmp_path.as_uri(), properties=properties) as lake:
            yield lake
        return
    others = [each for each in ENDPOINTS if each != COMMIT_TRANSACTION]
    service = RestService(tmp_path, None if request.param == "no list" else others)
    with serving(service), frazil.connect(service.url) as lake:
        yield lake
        assert service.received == []


def test_without_the_endpoint_the_second_table_is_refused_before_anything_is_staged(one_by_one: frazil.Lake) -> None:
    lake = one_by_one
    verbs: list[Callable[[Any], object]] = [
        lambda tx: tx.table("s.b").append([row(3, 0)]),
        lambda tx: tx.table("s.b").delete("id = 1"),
        lambda tx: tx.table("s.b").upsert([row(1, 0)]),
        lambda tx: tx.table("s.b").set_properties({"k": "1"}),
        lambda tx: tx.create_table("s.new", DDL),
        lambda tx: tx.drop_table("s.b"),
    ]
    lake.create_namespace("s")
    for name in ("s.a", "s.b"):
        lake.create_table(name, DDL, keys=["id"]).append([row(1, 10)])
    files, before = files_of(lake.table("s.b")), versions(lake)
    for verb in verbs:
        with lake.transaction() as tx:
            tx.table("s.a").append([row(2, 0)])
            with pytest.raises(frazil.Unsupported, match="commits one table at a time") as refused:
                verb(tx)
            tx.rollback()
        assert "commit_id" in str(refused.value.advice)
        assert "branches" in str(refused.value.advice)
        assert (files_of(lake.table("s.b")), versions(lake)) == (files, before)
    with lake.transaction() as tx:
        tx.table("s.b").scan().count()
        tx.table("s.a").append([row(2, 0)])
    assert isinstance(tx.result, frazil.Commit)


def versions(lake: frazil.Lake) -> list[str]:
    return [lake.catalog.load(ident).location for ident in lake.catalog.tables()]


# PyIceberg beside it


def test_an_append_of_pyiceberg_is_rebased_over(lake: frazil.Lake, service: RestService) -> None:
    theirs = RestCatalog("theirs", uri=service.url)
    table = theirs.load_table("s.a")
    rows = pa.table({"id": [9], "v": [90]}, schema=table.schema().as_arrow())
    with held(lake, Phase.PREPARED, lambda: table.append(rows)) as tx:
        move(tx)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert (tx.result.attempts, tx.result.tables["s.a"].rebased_over) == (2, 1)
    assert was_moved(lake)
    assert values(lake, "s.a")[9] == 90
    seen = {each["id"]: each["v"] for each in theirs.load_table("s.a").scan().to_arrow().to_pylist()}
    assert seen == {1: 9, 2: 20, 9: 90}


def test_a_delete_of_pyiceberg_refuses_the_whole(lake: frazil.Lake, service: RestService) -> None:
    theirs = RestCatalog("theirs", uri=service.url)
    tx = held(lake, Phase.PREPARED, lambda: theirs.load_table("s.b").delete("id = 1"))
    move(tx)
    with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
        tx.commit()
    assert (values(lake, "s.a")[1], values(lake, "s.b")) == (10, {2: 20})
