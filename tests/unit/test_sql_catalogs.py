"""URIs, secrets, and what SQLite says when its disk, file or folder is not as it should be."""

from __future__ import annotations

import builtins
import gc
import os
import resource
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.catalog import sqlite as sqlite_module
from frazil.catalog._uri import is_secret, mask_uri
from frazil.catalog.base import CommitRecord, Committed, Unknown
from frazil.catalog.open import open_catalog
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.sqlite import SqliteStore, network_file_system
from frazil.catalog.store import Swap
from frazil.errors import (
    CatalogUnavailable,
    CorruptMetadata,
    InvalidInput,
    PermissionDenied,
    StorageError,
)
from frazil.lake import Lake
from frazil.model import Ident
from frazil.runtime import SYSTEM, Runtime

EVENTS = Ident(("shop",), "events")
RECORD = CommitRecord("table-uuid", "c1", "digest", None, 1, {})


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("jdbc:postgresql://u:p@h/d", "jdbc:postgresql://u:***@h/d"),
        ("jdbc:postgresql://h/d?user=u&password=p&ssl=true", "jdbc:postgresql://h/d?user=u&password=***&ssl=true"),
        ("postgresql+psycopg2://u:p/w@h/d", "postgresql+psycopg2://u:***@h/d"),
        ("postgresql://u:p@w@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p?w@h/d", "postgresql://u:***@h/d"),
        ("https://h/v1?token=t&warehouse=w", "https://h/v1?token=***&warehouse=w"),
        ("https://h/v1?s3.secret-access-key=k", "https://h/v1?s3.secret-access-key=***"),
        ("./lake", "./lake"),
        ("sqlite:////a@b/c.db", "sqlite:////a@b/c.db"),
        ("memory://", "memory://"),
    ],
)
def test_secrets_are_masked_in_uris(uri: str, shown: str) -> None:
    assert mask_uri(uri) == shown


@pytest.mark.parametrize(
    ("key", "secret"),
    [("s3.access-key-id", True), ("adls.account-key", True), ("token", True), ("s3.endpoint", False), ("user", False)],
)
def test_properties_that_hold_secrets_are_known_by_name(key: str, secret: bool) -> None:
    assert is_secret(key) is secret


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local xfs rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
me@host:/ /mnt/ssh fuse.sshfs rw 0 0
overlay /var/lib/docker overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data", None),
        ("/home/ann/lake", "nfs4"),
        ("/home", "nfs4"),
        ("/homes", None),
        ("/home/local/lake", None),
        ("/mnt/my share/lake", "cifs"),
        ("/mnt/ssh/a", "fuse.sshfs"),
        ("/var/lib/docker/x", None),
    ],
)
def test_p5_network_file_systems_are_told_by_their_mount(folder: str, kind: str | None) -> None:
    assert network_file_system(folder, MOUNTS) == kind


def test_p5_a_catalog_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "NETWORK_FILE_SYSTEMS", frozenset({network_type_of(tmp_path)}))
    with pytest.raises(InvalidInput, match=r"network file system.*postgresql://"):
        SqliteStore(tmp_path / "catalog.db")
    assert list(tmp_path.iterdir()) == []


def network_type_of(folder: Path) -> str:
    """The real type of the file system these tests run on."""
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        _, point, kind, *_ = line.split(" ")
        if str(folder).startswith(point) and (point != "/" or kind != "rootfs"):
            return kind
    raise AssertionError


# SQLite's files


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    found = SqliteStore(tmp_path / "catalog.db", busy_seconds=0.2)
    found.create_namespace(("shop",), {})
    found.insert(EVENTS, "v0")
    yield found
    found.close()


def test_p5_the_file_is_in_wal_mode_and_commits_are_synced(store: SqliteStore) -> None:
    ask = store._engine.read
    assert ask(lambda db: db.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
    assert ask(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2,)


def test_p5_a_swap_is_synced_whatever_came_before_it(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    swap = store._swap

    def watched(db: Any, what: Any) -> Any:
        asked.append(db.execute("PRAGMA synchronous").fetchone()[0])
        return swap(db, what)

    monkeypatch.setattr(store, "_swap", watched)
    # As tickets are put into the queue: nobody is left to wait for them after a crash.
    store._engine.write(lambda db: asked.append(db.execute("PRAGMA synchronous").fetchone()[0]), durable=False)
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")
    assert asked == [1, 2]


def test_p5_a_change_takes_the_write_lock_before_it_reads(store: SqliteStore, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, timeout=0)) as other:

        def work(db: Any) -> None:
            db.execute("SELECT 1 FROM iceberg_tables").fetchall()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")

        store._engine.write(work)


def on_a_virtual_clock() -> tuple[Runtime, Callable[[], float]]:
    """A runtime whose sleeps take no time, and the seconds that have passed on its clock."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    return replace(SYSTEM, monotonic=lambda: now, sleep=sleep), lambda: now


@pytest.mark.parametrize(
    ("retry", "seconds", "refusal"),
    [
        (frazil.Retry(total_s=3), (2.9, 4.5), (frazil.RetriesExhausted, r"its time of 3 s.*1 fault.*stayed locked")),
        (frazil.Retry(total_s=0.5), (0.9, 1.6), (frazil.RetriesExhausted, "its time of 0.5 s")),
        (frazil.Retry(), (180, 190), (CatalogUnavailable, "stayed locked")),
    ],
)
def test_a_commit_to_a_locked_file_takes_no_longer_than_it_may(
    retry: frazil.Retry, seconds: tuple[float, float], refusal: tuple[type[Exception], str], tmp_path: Path
) -> None:
    runtime, passed = on_a_virtual_clock()
    with frazil.connect(str(tmp_path / "lake")) as made, Lake(made._connection, runtime) as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint")
        with closing(sqlite3.connect(tmp_path / "lake" / "catalog.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            began = passed()
            with pytest.raises(refusal[0], match=refusal[1]):
                table.append([{"id": 1}], retry=retry)
            assert seconds[0] <= passed() - began <= seconds[1]
            other.execute("ROLLBACK")
        table.append([{"id": 2}], retry=retry)
        assert table.scan().to_arrow().to_pylist() == [{"id": 2}]


def test_a_file_that_stays_locked_is_unavailable_and_may_be_tried_again(store: SqliteStore, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogUnavailable, match="locked") as refused:
            store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD))
        assert refused.value.retryable
        assert store.read(EVENTS).location == "v0"
        other.execute("ROLLBACK")
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")


def test_a_full_disk_is_said_and_nothing_landed(store: SqliteStore, tmp_path: Path) -> None:
    def keep_small(db: Any) -> None:
        db.execute("PRAGMA max_page_count = 1").fetchone()

    store._engine.read(keep_small)
    with pytest.raises(StorageError, match="full") as refused:
        store.commits.put(CommitRecord("u", "long" * 10_000, "d", None, 1, {}))
    assert refused.value.retryable
    assert store.read(EVENTS).location == "v0"


def test_p9_a_commit_that_could_not_be_written_is_unknown_and_may_be_sent_again(
    store: SqliteStore, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "catalog.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        outcome = store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(outcome, Unknown), outcome
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    file.write_text("hello, this is not a database at all" * 100)
    with pytest.raises(CorruptMetadata, match="not a SQLite database"):
        SqliteStore(file)
    assert file.read_text().startswith("hello")


@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}])
def test_a_path_that_cannot_hold_a_catalog_is_refused(tmp_path: Path, options: dict[str, bool]) -> None:
    with pytest.raises(InvalidInput, match="folder"):
        SqliteStore(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"does not exist|no SQLite catalog"):
        SqliteStore(tmp_path / "missing" / "catalog.db", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_clock_is_the_runtimes(tmp_path: Path) -> None:
    runtime = Runtime(lambda: 12345, SYSTEM.monotonic, SYSTEM.sleep, SYSTEM.random, SYSTEM.new_uuid)
    with closing(SqliteStore(tmp_path / "catalog.db", runtime=runtime)) as store:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
        assert store.read(EVENTS).now_ms == 12345


def test_names_with_odd_characters_in_the_path_work(tmp_path: Path) -> None:
    folder = tmp_path / "my lake? 100% #1"
    folder.mkdir()
    with closing(SqliteStore(folder / "catalog.db")) as store:
        store.create_namespace(("shop",), {})
    assert (folder / "catalog.db").exists()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user may look into; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def unprivileged(work: Callable[[], None]) -> int:
    """Run as a user who does not own the folder; root may write anywhere."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_read_only_folder_is_permission_denied_to_write_and_open_to_read(public_folder: Path) -> None:
    store = SqliteStore(public_folder / "catalog.db")
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    store.close()
    public_folder.chmod(0o555)
    if os.geteuid() != 0:
        (public_folder / "catalog.db").chmod(0o444)

    def work() -> None:
        with pytest.raises(PermissionDenied):
            open_catalog(str(public_folder))
        with pytest.raises(PermissionDenied):
            open_catalog(str(public_folder / "sub"))
        with closing(SqliteStore(public_folder / "catalog.db", read_only=True)) as reader:
            assert reader.read(EVENTS).location == "v0"

    assert unprivileged(work) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_reader_without_rights_sees_what_a_writer_commits_meanwhile(public_folder: Path) -> None:
    store = SqliteStore(public_folder / "catalog.db")
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    store.close()
    public_folder.chmod(0o555)

    def work() -> None:
        with closing(SqliteStore(public_folder / "catalog.db", read_only=True)) as reader:
            assert reader.read(EVENTS).location == "v0"
            os.write(to_parent, b"x")
            assert os.read(from_parent, 1) == b"x"
            assert reader.read(EVENTS).location == "v1"

    if os.geteuid() != 0:
        pytest.skip("the writer needs rights that the reader has not")
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(unprivileged(work))
    os.close(to_parent)
    assert os.read(from_child, 1) == b"x"
    with closing(SqliteStore(public_folder / "catalog.db")) as writer:
        assert writer.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
        os.write(to_child, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for each in (from_child, from_parent, to_child):
        os.close(each)


# Opening by URI


def test_a_folder_becomes_an_embedded_lake(tmp_path: Path) -> None:
    for form in (str(tmp_path / "a"), f"file://{tmp_path}/b", f"file:{tmp_path}/c"):
        opened = open_catalog(form)
        opened.catalog.close()
        folder = tmp_path / form[-1]
        assert (opened.kind, opened.created) == ("embedded", True)
        assert opened.warehouse == f"file://{folder}/warehouse"
        assert (folder / "catalog.db").exists()
        again = open_catalog(form, create=False)
        again.catalog.close()
        assert not again.created


def test_a_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_catalog("./lake", warehouse="elsewhere")
    opened.catalog.close()
    assert opened.warehouse == f"file://{tmp_path}/elsewhere"
    assert (tmp_path / "lake" / "catalog.db").exists()


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_lake_that_is_not_there_is_not_made_unasked(tmp_path: Path, options: dict[str, bool]) -> None:
    with pytest.raises(InvalidInput, match="no lake"):
        open_catalog(str(tmp_path / "lake"), **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="sqlite:///"):
        open_catalog(str(tmp_path / "file"))
    with pytest.raises(StorageError):
        open_catalog(str(tmp_path / "file" / "below"))


def test_sqlite_uris_name_relative_and_absolute_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form in ("sqlite:///a.db", f"sqlite:///{tmp_path}/b.db", f"jdbc:sqlite:{tmp_path}/c.db", "jdbc:sqlite:d.db"):
        opened = open_catalog(form)
        opened.catalog.close()
        assert opened.kind == "sqlite"
        assert opened.warehouse == f"file://{tmp_path}/warehouse"
    assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db", "c.db", "d.db"}


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("sqlite://host/a.db", "sqlite:////absolute"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///", "memory://"),
        ("postgre://u:hidden@h/d", "Did you mean postgres"),
        ("mysql://u:hidden@h/d", "postgresql:"),
        ("s3://bucket/lake", "Known are"),
        ("", "connect"),
    ],
)
def test_uris_that_cannot_be_opened_are_answered_with_what_to_write(uri: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_catalog(uri)
    assert words in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_memory_catalogs_are_new_each_time_unless_they_have_a_name() -> None:
    first, second = open_catalog("memory://"), open_catalog("memory://")
    first.catalog.create_namespace(("shop",), {})
    assert second.catalog.namespaces() == {}
    assert first.warehouse != second.warehouse
    shared, again = open_catalog("memory://unit-test"), open_catalog("memory://unit-test")
    shared.catalog.create_namespace(("shop",), {})
    assert list(again.catalog.namespaces()) == [("shop",)]
    assert (shared.created, again.created) == (True, False)
    assert shared.storage is again.storage
    assert shared.warehouse == again.warehouse
    reader = open_catalog("memory://unit-test", read_only=True)
    assert list(reader.catalog.namespaces()) == [("shop",)]
    with pytest.raises(PermissionDenied, match="read_only"):
        reader.catalog.create_namespace(("other",), {})


def test_a_missing_driver_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_psycopg(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    with pytest.raises(InvalidInput, match=r"pip install 'frazil\[postgres\]'"):
        PostgresStore("postgresql://h/d")


def test_an_unclosed_store_closes_itself_when_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    store = SqliteStore(path)
    store.create_namespace(("shop",), {})
    assert path.with_name("catalog.db-wal").exists()
    del store
    gc.collect()
    assert not path.with_name("catalog.db-wal").exists()
