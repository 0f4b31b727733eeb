"""One door to files, on a folder, in memory and on an object store (moto's S3)."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frazil
from aws.server import KEYS, Aws
from frazil.commit.manifests import OperationManifests
from frazil.commit.operations import Kind, Write
from frazil.errors import DiskFull, FrazilError, InvalidInput, PermissionDenied, StorageError, Unsupported
from frazil.format.storage import Storage, canonical, is_local, local_path, storage_error
from frazil.model import DataFile, Ident
from frazil.runtime import SYSTEM


@pytest.fixture
def s3(aws: Aws) -> Storage:
    aws.create_bucket("lake")
    return Storage(aws.properties)


@pytest.fixture(params=["folder", "file-uri", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A storage and an empty folder in it."""
    if request.param == "s3":
        return request.getfixturevalue("s3"), f"s3://lake/{tmp_path.name}"
    return Storage(), {"folder": str(tmp_path), "file-uri": tmp_path.as_uri(), "memory": "memory://wh"}[request.param]


Place = tuple[Storage, str]


def names(storage: Storage, folder: str) -> list[str]:
    return sorted(info.path for info in storage.list(folder))


# Every kind of storage


def test_what_was_written_is_read_back(place: Place) -> None:
    storage, folder = place
    storage.write(f"{folder}/a/b/data.bin", b"rows")
    assert storage.read(f"{folder}/a/b/data.bin") == b"rows"
    with storage.open_input(f"{folder}/a/b/data.bin") as file:
        file.seek(2)
        assert file.read() == b"ws"


def test_a_stream_is_a_file_once_it_is_closed(place: Place) -> None:
    storage, folder = place
    with storage.open_output(f"{folder}/stream") as stream:
        stream.write(b"one,")
        stream.write(b"two")
    storage.sync([f"{folder}/stream"])
    assert storage.read(f"{folder}/stream") == b"one,two"


def test_an_empty_file_is_a_file(place: Place) -> None:
    storage, folder = place
    storage.write(f"{folder}/empty", b"")
    assert storage.read(f"{folder}/empty") == b""


def test_a_writer_that_fails_leaves_no_file(place: Place) -> None:
    storage, folder = place

    def write_half() -> None:
        with storage.output(f"{folder}/half") as stream:
            stream.write(b"half of it")
            raise RuntimeError("the rows ended in an error")

    with pytest.raises(RuntimeError, match="ended in an error"):
        write_half()
    assert names(storage, folder) == []
    with pytest.raises(StorageError, match="does not exist"):
        storage.read(f"{folder}/half")


def test_a_writer_that_succeeds_leaves_its_file(place: Place) -> None:
    storage, folder = place
    with storage.output(f"{folder}/whole") as stream:
        stream.write(b"all of it")
    assert storage.read(f"{folder}/whole") == b"all of it"


def test_a_missing_file_is_said_to_be_missing(place: Place) -> None:
    storage, folder = place
    for call in (storage.read, storage.open_input):
        with pytest.raises(StorageError, match="nowhere: the file does not exist"):
            call(f"{folder}/nowhere")


def test_delete_takes_missing_files_as_deleted(place: Place) -> None:
    storage, folder = place
    storage.write(f"{folder}/x/one", b"1")
    assert storage.delete([f"{folder}/x/one", f"{folder}/x/never"]) == []
    assert names(storage, folder) == []


def test_list_finds_files_of_all_levels_in_the_form_asked_for(place: Place) -> None:
    storage, folder = place
    storage.write(f"{folder}/one", b"1")
    storage.write(f"{folder}/deep/er/two", b"22")
    found = {info.path: info.size for info in storage.list(folder)}
    wanted = folder if not folder.startswith("file:") else local_path(folder)
    assert found == {f"{wanted}/one": 1, f"{wanted}/deep/er/two": 2}


def test_list_of_a_missing_folder_is_empty(place: Place) -> None:
    storage, folder = place
    assert names(storage, f"{folder}/nowhere") == []


def test_names_are_taken_as_they_are(place: Place) -> None:
    storage, folder = place
    odd = f"{folder}/day=2026-11-15 00%3A00/a b#c?d&e=ü+.parquet"
    storage.write(odd, b"odd")
    storage.write(odd.partition("#")[0], b"another")
    assert storage.read(odd) == b"odd"
    assert len(names(storage, folder)) == 2


# Folders


def test_a_local_file_is_never_overwritten(tmp_path: Path) -> None:
    storage = Storage()
    storage.write(f"{tmp_path}/once", b"first")
    with pytest.raises(StorageError):
        storage.write(f"{tmp_path}/once", b"second")
    assert storage.read(f"{tmp_path}/once") == b"first"


def test_p6_a_written_file_and_its_new_folders_are_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def spy(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    Storage().write(f"{tmp_path}/a/b/file", b"x")
    assert synced == {str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b", f"{tmp_path}/a/b/file"}


@pytest.fixture
def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all fsyncs, in order."""
    synced: list[str] = []
    fsync = os.fsync

    def spy(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    return synced


def test_p6_files_of_one_folder_share_its_fsync(tmp_path: Path, fsyncs: list[str]) -> None:
    storage, files = Storage(), [f"{tmp_path}/{name}" for name in ("manifest", "list", "metadata")]
    for each in files:
        storage.write(each, b"x", sync=False)
    storage.sync_writes()
    assert sorted(fsyncs) == sorted([*files, str(tmp_path)])
    storage.sync_writes()
    assert len(fsyncs) == 4


def test_p6_a_durable_write_covers_the_earlier_files_of_its_folder(tmp_path: Path, fsyncs: list[str]) -> None:
    storage = Storage()
    storage.write(f"{tmp_path}/manifest", b"x", sync=False)
    storage.write(f"{tmp_path}/metadata", b"x")
    storage.sync_writes()
    assert sorted(fsyncs) == [str(tmp_path), f"{tmp_path}/manifest", f"{tmp_path}/metadata"]


def test_p6_a_file_of_another_folder_is_not_covered(tmp_path: Path, fsyncs: list[str]) -> None:
    storage = Storage()
    for folder in ("a", "b"):
        storage.write(f"{tmp_path}/{folder}/file", b"x", sync=False)
    storage.write(f"{tmp_path}/b/durable", b"x")
    fsyncs.clear()
    storage.sync_writes()
    assert [each for each in fsyncs if not each.endswith("/file")] == [f"{tmp_path}/a"]


def test_p6_a_file_that_comes_while_its_folder_is_synced_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage()
    storage.write(f"{tmp_path}/first", b"x", sync=False)
    fsync, folders = os.fsync, []

    def write_meanwhile(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path):
            folders.append(sorted(os.listdir(tmp_path)))
            if len(folders) == 1:
                storage.write(f"{tmp_path}/second", b"x", sync=False)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    storage.sync_writes()
    storage.sync_writes()
    assert folders == [["first"], ["first", "second"]]


def test_a_folder_that_cannot_be_synced_is_synced_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, fsync = Storage(), os.fsync
    storage.write(f"{tmp_path}/file", b"x", sync=False)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(2):
        with pytest.raises(StorageError, match="Cannot sync"):
            storage.sync_writes()
    monkeypatch.setattr(os, "fsync", fsync)
    storage.sync_writes()


def test_p6_a_file_is_waited_for_until_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, fsync, may_end, done = Storage(), os.fsync, threading.Event(), []

    def slow(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("slow"):
            assert may_end.wait(60)
            done.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    storage.write(f"{tmp_path}/slow", b"x", sync=False)
    storage.write(f"{tmp_path}/quick", b"x")
    threading.Timer(0.1, may_end.set).start()
    storage.sync_writes()
    assert len(done) == 1


def test_a_file_that_cannot_be_synced_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, fsync, file = Storage(), os.fsync, tmp_path / "file"
    failures = iter([True, True, False])
    inodes = []

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(file):
            inodes.append(os.fstat(fd).st_ino)
            if next(failures):
                # What is in memory of a page that could not be written is not what is on the disk.
                os.truncate(file, 0)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    storage.write(str(file), b"rows", sync=False)
    with pytest.raises(DiskFull):
        storage.sync_writes()
    assert not file.exists()
    storage.sync_writes()
    assert file.read_bytes() == b"rows"
    assert len(inodes) == 3
    storage.sync_writes()


def test_a_deleted_file_that_cannot_be_synced_stays_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage()

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") != str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    storage.write(f"{tmp_path}/file", b"rows", sync=False)
    storage.delete([f"{tmp_path}/file"])
    storage.sync_writes()
    assert os.listdir(tmp_path) == []


def test_a_forked_process_does_not_wait_for_its_parents_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, fsync, may_end, parent = Storage(), os.fsync, threading.Event(), os.getpid()

    def slow(fd: int) -> None:
        if os.getpid() == parent:
            assert may_end.wait(60)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    storage.write(f"{tmp_path}/of_parent", b"x", sync=False)
    child = os.fork()
    if child == 0:
        try:
            storage.write(f"{tmp_path}/of_child", b"x", sync=False)
            storage.sync_writes()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    storage.sync_writes()
    assert sorted(os.listdir(tmp_path)) == ["of_child", "of_parent"]


def test_a_folder_that_is_gone_needs_no_sync(tmp_path: Path, fsyncs: list[str]) -> None:
    storage = Storage()
    for folder in ("purged", "kept"):
        storage.write(f"{tmp_path}/{folder}/file", b"x", sync=False)
    storage.delete([f"{tmp_path}/purged/file"])
    (tmp_path / "purged").rmdir()
    fsyncs.clear()
    storage.sync_writes()
    storage.sync_writes()
    assert [each for each in fsyncs if "/file" not in each] == [f"{tmp_path}/kept"]


def test_files_are_written_the_same_with_and_without_a_shared_fsync(place: Place) -> None:
    storage, folder = place
    storage.write(f"{folder}/new/file", b"rows", sync=False)
    storage.sync_writes()
    assert storage.read(f"{folder}/new/file") == b"rows"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_permission_denied(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(PermissionDenied, match="access is denied"):
        Storage().write(f"{tmp_path}/x", b"1")


def test_a_local_location_has_three_spellings() -> None:
    assert {local_path(each) for each in ("/a/b c", "file:/a/b c", "file:///a/b c", "file://host/a/b c")} == {"/a/b c"}
    assert is_local("/a")
    assert is_local("file:///a")
    assert not is_local("s3://a")


def test_an_unknown_scheme_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="unknown scheme 'ftp'"):
        Storage().read("ftp://host/x")


def test_memory_cannot_be_pickled() -> None:
    storage = Storage()
    storage.write("memory://wh/x", b"1")
    with pytest.raises(Unsupported, match="one process"):
        pickle.dumps(storage)


# S3


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_hadoops_schemes_read_and_write_the_same_objects(s3: Storage, scheme: str, tmp_path: Path) -> None:
    s3.write(f"{scheme}://lake/{tmp_path.name}/x", b"same")
    assert s3.read(f"s3://lake/{tmp_path.name}/x") == b"same"
    assert names(s3, f"{scheme}://lake/{tmp_path.name}") == [f"{scheme}://lake/{tmp_path.name}/x"]


def test_the_canonical_location_is_s3() -> None:
    locations = ["s3a://b/wh/", "s3n://b/wh", "s3://b/wh//", "/data/wh/", "file:///data/wh", "/"]
    canonicals = ["s3://b/wh", "s3://b/wh", "s3://b/wh", "/data/wh", "file:///data/wh", "/"]
    assert [canonical(each) for each in locations] == canonicals


def test_a_whole_bucket_is_listed(aws: Aws, s3: Storage) -> None:
    aws.create_bucket("small")
    s3.write("s3://small/top", b"1")
    assert names(s3, "s3://small") == names(s3, "s3://small/") == ["s3://small/top"]


def test_a_large_object_goes_up_in_parts(s3: Storage, tmp_path: Path) -> None:
    part = os.urandom(1 << 20)
    with s3.output(f"s3://lake/{tmp_path.name}/large") as stream:
        for _ in range(12):
            stream.write(part)
    assert s3.read(f"s3://lake/{tmp_path.name}/large") == part * 12


def test_a_large_upload_that_fails_leaves_no_object(s3: Storage, tmp_path: Path) -> None:
    def write_half() -> None:
        with s3.output(f"s3://lake/{tmp_path.name}/large") as stream:
            for _ in range(12):
                stream.write(bytes(1 << 20))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert names(s3, f"s3://lake/{tmp_path.name}") == []


def test_wrong_keys_are_permission_denied_and_not_shown(aws: Aws) -> None:
    calls: list[Callable[[Storage], object]] = [
        lambda storage: storage.read("s3://lake/x"),
        lambda storage: storage.write("s3://lake/x", b"1"),
        lambda storage: list(storage.list("s3://lake/x")),
    ]
    with aws.checking_keys():
        for call in calls:
            with pytest.raises(PermissionDenied, match="access is denied") as refused:
                call(Storage(aws.properties))
            assert KEYS["secret-access-key"] not in str(refused.value) + repr(refused.value)


def test_a_missing_bucket_is_named(s3: Storage) -> None:
    with pytest.raises(StorageError, match="the bucket does not exist"):
        s3.write("s3://no-such-bucket/x", b"1")


def test_a_store_out_of_reach_is_a_sentence_in_bounded_time(aws: Aws) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(StorageError, match="the object store cannot be reached") as missing:
        Storage({**aws.properties, "s3.endpoint": endpoint}).read("s3://lake/x")
    assert time.monotonic() - started < 30
    assert "s3.endpoint" in str(missing.value)


def test_a_store_that_never_answers_is_a_sentence_in_bounded_time(aws: Aws) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StorageError, match="the object store cannot be reached"):
            Storage({**aws.properties, "s3.endpoint": endpoint, "s3.request-timeout": "1"}).read("s3://lake/x")


def test_an_endpoint_without_a_region_needs_no_amazon(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    properties = {key: value for key, value in aws.properties.items() if key != "s3.region"}
    storage = Storage(properties)
    storage.write("s3://lake/regionless", b"1")
    assert storage.read("s3://lake/regionless") == b"1"


def test_a_storage_travels_to_another_process(s3: Storage) -> None:
    s3.write("s3://lake/travel", b"far")
    assert pickle.loads(pickle.dumps(s3)).read("s3://lake/travel") == b"far"


def _read_in_child(storage: Storage, answers: multiprocessing.Queue[bytes]) -> None:
    answers.put(storage.read("s3://lake/fork"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_used_storage_survives_a_fork(s3: Storage) -> None:
    s3.write("s3://lake/fork", b"both")
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[bytes] = fork.Queue()
    child = fork.Process(target=_read_in_child, args=(s3, answers))
    child.start()
    try:
        assert answers.get(timeout=60) == b"both"
        assert s3.read("s3://lake/fork") == b"both"
        child.join(timeout=30)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


def test_granted_credentials_serve_their_prefix_only(aws: Aws) -> None:
    aws.create_bucket("vended")
    Storage(aws.properties).write("s3://vended/table/data", b"rows")
    storage = Storage({**aws.properties, "s3.endpoint": "http://127.0.0.1:1", "s3.connect-timeout": "1"})
    storage.grant("s3://vended/table", {"s3.endpoint": aws.url})
    assert storage.read("s3://vended/table/data") == b"rows"
    with pytest.raises(StorageError, match="cannot be reached"):
        storage.read("s3://vended/table-of-another/data")


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (errno.ENOSPC, DiskFull, "the disk is full"),
        (errno.EDQUOT, DiskFull, "the disk is full"),
        (errno.EACCES, PermissionDenied, "access is denied"),
        (errno.EROFS, PermissionDenied, "access is denied"),
        (errno.EIO, StorageError, "Input/output error"),
    ],
)
def test_each_os_error_says_who_must_act(number: int, error: type[FrazilError], words: str) -> None:
    ours = storage_error(OSError(number, os.strerror(number)), "Cannot write x")
    assert type(ours) is error
    assert words in str(ours)


def test_p6_the_files_of_an_attempt_share_one_fsync_of_their_folder_before_the_swap(
    tmp_path: Path, fsyncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with frazil.connect(str(tmp_path)) as lake:
        lake.create_namespace("ns")
        table = lake.create_table("ns.t", "id bigint")
        swap, at_swap = lake.catalog.swap, list[str]()

        def noted(prepared: Any) -> Any:
            at_swap.extend(fsyncs)
            return swap(prepared)

        monkeypatch.setattr(lake.catalog, "swap", noted)
        fsyncs.clear()
        table.append([{"id": 1}])
        folder = f"{table.metadata_location.removeprefix('file://').rpartition('/')[0]}"
        files = {path for path in at_swap if path.startswith(f"{folder}/")}
    assert {Path(path).suffix for path in files} == {".avro", ".json"}
    assert len(files) == 3
    assert at_swap.count(folder) == fsyncs.count(folder) == 1


def test_p3_a_bundle_is_durable_before_it_is_queued(tmp_path: Path, fsyncs: list[str]) -> None:
    with frazil.connect(str(tmp_path)) as lake:
        lake.create_namespace("ns")
        lake.create_table("ns.t", "id bigint")
        head = lake.catalog.load(Ident.parse("ns.t")).metadata
        write = Write(Kind.APPEND, head.uuid, added=(DataFile(f"{tmp_path}/rows.parquet", 1, 10),))
        fsyncs.clear()
        (bundle,) = OperationManifests(write, lake.storage, SYSTEM).bundle(head)
    path = bundle.manifest.manifest_path.removeprefix("file://")
    assert sorted(fsyncs) == [os.path.dirname(path), path]
