"""Bad input gets a sentence for a person, and nothing is written."""

from __future__ import annotations

import datetime as dt
import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from servers import PASSWORD, free_port

NAIVE = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - the lack of a zone is the point
DDL = "id bigint not null, name string, price decimal(9,2), ts timestamp, n int"
GOOD = {"id": 1, "name": "a", "price": Decimal("1.00"), "ts": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "n": 1}


@pytest.fixture
def lake(tmp_path: Path) -> frazil.Lake:
    lake = frazil.connect(str(tmp_path / "lake"))
    lake.create_namespace("shop")
    return lake


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("shop.t", DDL, partition_by=["day(ts)"])


def everything_under(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("catalog.db")}


def assert_refused(folder: Path, call: Callable[[], object], error: type[Exception], *says: str) -> None:
    """The call raises, its message is a sentence with all of ``says``, and no file appears or goes."""
    before = everything_under(folder)
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    for part in says:
        assert part in text, text
    assert text.endswith((".", "!", "?")), text
    assert everything_under(folder) == before


# connect


@pytest.mark.parametrize("uri", ["oracle://host/db", "postgre://host/db", "mysql://h/d"])
def test_an_unknown_scheme(tmp_path: Path, uri: str) -> None:
    assert_refused(tmp_path, lambda: frazil.connect(uri), frazil.InvalidInput, "postgresql")


def test_a_wrong_password_is_denied_and_not_repeated(tmp_path: Path, postgres_uri: str) -> None:
    wrong = postgres_uri.replace(PASSWORD, "wr0ng-secret")
    with pytest.raises(frazil.PermissionDenied) as caught:
        frazil.connect(wrong).tables()
    assert "wr0ng-secret" not in str(caught.value)


def test_an_unreachable_server(tmp_path: Path) -> None:
    uri = f"postgresql://user:hidden-secret@127.0.0.1:{free_port()}/db"
    with pytest.raises(frazil.CatalogUnavailable) as caught:
        frazil.connect(uri).tables()
    assert "hidden-secret" not in str(caught.value)
    assert caught.value.retryable


def test_a_typo_in_a_folder_with_create_false(tmp_path: Path) -> None:
    call = lambda: frazil.connect(str(tmp_path / "lak"), create=False)  # noqa: E731
    assert_refused(tmp_path, call, frazil.FrazilError, "lak", "create")
    assert not (tmp_path / "lak").exists()


# names


def test_missing_and_existing_names(lake: frazil.Lake, table: frazil.Table, tmp_path: Path) -> None:
    assert_refused(tmp_path, lambda: lake.table("shop.nope"), frazil.NoSuchTable, "shop.nope")
    assert_refused(
        tmp_path, lambda: lake.create_table("nope.t", DDL), frazil.NoSuchNamespace, "nope", "create_namespace"
    )
    assert_refused(tmp_path, lambda: lake.tables("nope"), frazil.NoSuchNamespace, "nope")
    assert_refused(tmp_path, lambda: lake.create_table("shop.t", DDL), frazil.TableExists, "shop.t")
    assert_refused(tmp_path, lambda: lake.create_namespace("shop"), frazil.NamespaceExists, "shop")
    assert_refused(tmp_path, lambda: lake.drop_namespace("shop"), frazil.NamespaceNotEmpty, "shop")
    assert_refused(tmp_path, lambda: lake.drop_table("shop.nope"), frazil.NoSuchTable, "shop.nope")
    assert_refused(tmp_path, lambda: lake.rename_table("shop.t", "nope.t"), frazil.NoSuchNamespace, "nope")


@pytest.mark.parametrize(
    "uri",
    [
        None,
        7,
        b"x",
        "",
        " ",
        "lake\n",
        "a\0b",
        "memory:",
        "memory:/x",
        "pyiceberg:",
        "file://host/x",
        "host=db user=me",
    ],
)
def test_uris_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(tmp_path, lambda: frazil.connect(uri), frazil.InvalidInput)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["hash#x", "q?x", "pct%20x"])
def test_a_folder_that_other_engines_could_not_open(tmp_path: Path, folder: str) -> None:
    assert_refused(tmp_path, lambda: frazil.connect(str(tmp_path / folder)), frazil.InvalidInput, "PyIceberg")


@pytest.mark.parametrize(
    "arguments", [{"warehouse": 7}, {"warehouse": ""}, {"warehouse": "s3://"}, {"properties": "x"}, {"name": ""}]
)
def test_arguments_of_connect(tmp_path: Path, arguments: dict[str, Any]) -> None:
    call = lambda: frazil.connect(str(tmp_path / "lake"), **arguments)  # noqa: E731
    assert_refused(tmp_path, call, frazil.InvalidInput)


@pytest.mark.parametrize(
    "name", ["t", "", ".", "shop.", ".t", "shop.`t", 7, ("shop",), ("a.b", "t"), ("shop", "a`b"), ("shop", "a\0b")]
)
def test_names_that_are_none(lake: frazil.Lake, tmp_path: Path, name: Any) -> None:
    assert_refused(tmp_path, lambda: lake.table(name), frazil.InvalidInput)


# schemas, partitioning, properties


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"schema": "id bigin"}, "bigin"),
        ({"schema": ""}, "schema"),
        ({"schema": "id bigint, ID int"}, "id"),
        ({"schema": DDL, "partition_by": ["dya(ts)"]}, "dya"),
        ({"schema": DDL, "partition_by": ["day(nam)"]}, "nam"),
        ({"schema": DDL, "partition_by": ["day(name)"]}, "name"),
        ({"schema": DDL, "partition_by": ["bucket(0, id)"]}, "bucket"),
        ({"schema": DDL, "partition_by": "day(ts)"}, "partition_by=['day(ts)']"),
        ({"schema": DDL, "sort_by": ["nope"]}, "nope"),
        ({"schema": DDL, "keys": ["nope"]}, "nope"),
        ({"schema": DDL, "properties": {"a": 1}}, "string"),
        ({"schema": None}, "schema"),
        ({"schema": 7}, "schema"),
    ],
)
def test_a_table_that_cannot_be(lake: frazil.Lake, tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    assert_refused(tmp_path, lambda: lake.create_table("shop.bad", **arguments), frazil.InvalidInput, says)


def test_format_version_3_is_refused_whole(lake: frazil.Lake, tmp_path: Path) -> None:
    call = lambda: lake.create_table("shop.v3", DDL, properties={"format-version": "3"})  # noqa: E731
    assert_refused(tmp_path, call, frazil.Unsupported, "3")


# rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{**GOOD, "name": 7}], "name"),
        ([{**GOOD, "n": "seven"}], "n"),
        ([{key: value for key, value in GOOD.items() if key != "id"}], "id"),
        ([{**GOOD, "id": None}], "id"),
        ([GOOD, {**GOOD, "price": Decimal("123456789.00")}], "price"),
        ([{**GOOD, "price": Decimal("1.005")}], "price"),
        ([{**GOOD, "n": 2**40}], "n"),
        ([{**GOOD, "extra": 1}], "extra"),
        (pa.table({"id": ["x"]}), "id"),
        (pa.table({"id": pa.array([1, None], pa.int64())}), "id"),
        (pa.table({"id": [1], "ts": pa.array([NAIVE])}), "ts"),
        (pa.table({"id": [1], "n": [1.5]}), "n"),
        (pa.table({"id": [1], "other": [1]}), "other"),
        ("id=1", "str"),
        (7, "int"),
    ],
)
def test_rows_that_do_not_fit(table: frazil.Table, tmp_path: Path, rows: Any, says: str) -> None:
    assert_refused(tmp_path, lambda: table.append(rows), frazil.InvalidInput, says)
    assert table.snapshot() is None


def test_a_bad_batch_after_good_ones_leaves_nothing(table: frazil.Table, tmp_path: Path) -> None:
    good = pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int64())})
    bad = pa.table({"id": [3], "n": pa.array([2**40], pa.int64())})
    batches = [*good.to_batches(), *bad.to_batches()]
    reader = pa.RecordBatchReader.from_batches(good.schema, batches)
    assert_refused(tmp_path, lambda: table.append(reader), frazil.SchemaMismatch, "n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"isolation": "chaos"}, "isolation"),
        ({"engine": "duck"}, "engine"),
        ({"on_deleted": "cry"}, "on_deleted"),
        ({"branch": "nope"}, "nope"),
        ({"retry": 5}, "retry"),
        ({"retry": frazil.Retry}, "retry"),
        ({"branch": ["main"]}, "branch"),
        ({"options": {"bogus": "1"}}, "bogus"),
        ({"snapshot_properties": "x"}, "snapshot_properties"),
        ({"commit_id": ""}, "commit_id"),
        ({"commit_id": 7}, "commit_id"),
        ({"snapshot_properties": {"write.format.default": "orc"}}, "set_properties"),
        ({"snapshot_properties": {"operation": "x"}}, "reserved"),
        ({"snapshot_properties": {"mine": 1}}, "must be strings"),
    ],
)
def test_arguments_of_a_write(table: frazil.Table, tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    assert_refused(tmp_path, lambda: table.append([GOOD], **arguments), frazil.InvalidInput, says)


@pytest.mark.parametrize(
    "properties",
    [
        {"write.metadata.previous-versions-max": "x"},
        {"commit.retry.num-retries": "-1"},
        {"commit.manifest.min-count-to-merge": "0"},
        {"schema.name-mapping.default": "{bad"},
        {"write.data.path": "relative"},
        {"a": 1},
        "x",
    ],
)
def test_properties_that_would_stop_every_later_write(
    lake: frazil.Lake, table: frazil.Table, tmp_path: Path, properties: Any
) -> None:
    assert_refused(tmp_path, lambda: table.set_properties(properties), frazil.InvalidInput)
    assert_refused(tmp_path, lambda: lake.create_table("shop.u", DDL, properties=properties), frazil.InvalidInput)


def test_a_bad_property_of_another_engine_can_be_put_right(table: frazil.Table) -> None:
    with table.pyiceberg().transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "many"})
    with pytest.raises(frazil.InvalidInput, match="num-retries"):
        table.append([GOOD])
    table.remove_properties("commit.retry.num-retries")
    table.append([GOOD])
    assert table.scan().count() == 1


def test_a_refused_append_with_merge_schema_leaves_the_schema_as_it_was(table: frazil.Table, tmp_path: Path) -> None:
    bad: list[list[dict[str, Any]]] = [[{**GOOD, "id": None, "new": 1}], [{"new": 1}], [{**GOOD, "new": {}}]]
    for rows in bad:
        call = functools.partial(table.append, rows, merge_schema=True)
        assert_refused(tmp_path, call, frazil.InvalidInput)
    missing = lambda: table.append([{**GOOD, "new": 1}], merge_schema=True, branch="nope")  # noqa: E731
    assert_refused(tmp_path, missing, frazil.InvalidInput, "nope")
    assert "new" not in table.schema.column_names


def test_a_location_that_is_relative_becomes_absolute(
    lake: frazil.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = lake.create_table("shop.rel", "id bigint", location="place")
    assert table.location == f"file://{tmp_path}/place"


def test_names_with_unusual_characters_stay_readable_for_pyiceberg(lake: frazil.Lake) -> None:
    for name in ("#h", "a?b", "100%", "naïve table", "日本"):
        table = lake.create_table(("shop", name), "id bigint")
        table.append([{"id": 1}])
        assert table.pyiceberg().scan().to_arrow().num_rows == 1


# scans


@pytest.mark.parametrize(
    "where",
    ["", "id =", "idd = 1", "id = 'x'", 'name = "a"', "count(id) > 1", "id in (select 1)", "id = 1; drop table t"],
)
def test_filters_that_are_none(table: frazil.Table, tmp_path: Path, where: str) -> None:
    assert_refused(tmp_path, lambda: table.scan(where=where), frazil.InvalidInput)


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ["nope"]},
        {"snapshot": 7},
        {"ref": "nope"},
        {"as_of": NAIVE},
        {"as_of": "2026-01-01"},
        {"as_of": "yesterday"},
        {"limit": -1},
        {"ref": "main", "as_of": 1},
    ],
)
def test_scans_of_nothing(table: frazil.Table, tmp_path: Path, arguments: dict[str, Any]) -> None:
    table.append([GOOD])
    assert_refused(tmp_path, lambda: table.scan(**arguments).to_arrow(), frazil.InvalidInput)


# files


def test_a_missing_metadata_file(table: frazil.Table, tmp_path: Path) -> None:
    location = table.metadata_location.removeprefix("file://")
    os.rename(location, location + ".away")
    fresh = frazil.connect(str(tmp_path / "lake"))
    assert_refused(tmp_path, lambda: fresh.table("shop.t"), frazil.CorruptMetadata, location, "register_table")
    os.rename(location + ".away", location)
    assert fresh.table("shop.t").scan().count() == 0


@pytest.mark.parametrize("content", [b"", b"{not json", b'{"format-version": 2}'])
def test_a_corrupt_metadata_file(table: frazil.Table, tmp_path: Path, content: bytes) -> None:
    location = table.metadata_location.removeprefix("file://")
    Path(location).write_bytes(content)
    fresh = frazil.connect(str(tmp_path / "lake"))
    assert_refused(tmp_path, lambda: fresh.table("shop.t"), frazil.CorruptMetadata, location)


def test_a_lost_data_file_is_an_error_not_fewer_rows(table: frazil.Table, tmp_path: Path) -> None:
    table.append([GOOD])
    (file,) = (tmp_path / "lake").rglob("*.parquet")
    file.unlink()
    assert_refused(tmp_path, lambda: table.scan().to_arrow(), frazil.StorageError, file.name)


# The world: read-only folders and full disks, in a process whose user and file system are its own


def run_in_child(script: str, *wrapper: str) -> str:
    command = [*wrapper, sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_read_only_folder() -> None:
    out = run_in_child("""
        import os, tempfile, frazil
        work = tempfile.mkdtemp(); os.chmod(work, 0o755)
        # Everything is imported before the process gives up its rights.
        warm = frazil.connect(work + "/warm"); warm.create_namespace("n")
        warm.create_table("n.t", "id bigint").append([dict(id=1)])
        folder = work + "/closed"
        os.mkdir(folder); os.chmod(folder, 0o555)
        if os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)
        try: frazil.connect(folder)
        except frazil.PermissionDenied as error: print("denied:", error)
        print(os.listdir(folder))
        """)
    assert "denied:" in out
    assert "[]" in out


def test_a_full_disk_loses_nothing_and_says_so() -> None:
    script = """
        import os, subprocess, sys, tempfile, pyarrow as pa, frazil
        folder = tempfile.mkdtemp()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
        lake = frazil.connect(folder); lake.create_namespace("n")
        plain = {"write.parquet.compression-codec": "uncompressed"}
        table = lake.create_table("n.t", "id bigint, x binary", properties=plain)
        table.append([dict(id=1, x=b"first")])
        files = lambda: sorted(os.path.join(d, f) for d, _, fs in os.walk(folder) for f in fs if "catalog.db" not in f)
        before = files()
        try: table.append(pa.table({"id": range(64), "x": [os.urandom(100_000) for _ in range(64)]}))
        except frazil.DiskFull as error: print("full:", error)
        print("same files:", files() == before)
        print("rows:", table.scan().count(), table.scan().to_arrow().num_rows)
        table.append([dict(id=2, x=b"second")])
        print("after:", table.scan().count())
        """
    out = run_in_child(script, "unshare", "-rm")
    assert "full:" in out
    assert "same files: True" in out
    assert "rows: 1 1" in out
    assert "after: 2" in out


@pytest.mark.parametrize(
    "verb",
    [
        lambda table: table.delete("id = 3"),
        lambda table: table.update({"name": "'x'"}, where="id = 3"),
        lambda table: table.upsert([{"id": 3, "name": "x"}], mode="position"),
        lambda table: table.compact(options={"min-input-files": "1"}),
    ],
    ids=["delete", "update", "upsert", "compact"],
)
def test_more_than_one_process_should_read_is_refused(tmp_path: Path, verb: Callable[[frazil.Table], object]) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("shop")
        table = lake.create_table(
            "shop.t", "id bigint not null, name string", keys=["id"], properties={"frazil.arrow.max-bytes": "100"}
        )
        table.append([{"id": n, "name": "a"} for n in range(10)])
        with pytest.raises(frazil.Unsupported, match="Run it on Spark"):
            verb(table)
        table.set_properties({"frazil.arrow.max-bytes": "1000000"})
        verb(table)
        assert len(table.history()) == 2
