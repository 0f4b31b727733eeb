"""All access to files: local folders, object stores, memory.

Writing is durable before it returns (rule P6): on a local file system the file and its folder are fsynced; an object
store acknowledges an upload only when it is durable. Names are fresh randomness (rule P13), so nothing is overwritten.
The files of one attempt are fsynced side by side, and their folders once: ``write(…, sync=False)``, ``sync_writes()``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs as pafs

from frazil import _fork
from frazil.errors import DiskFull, FrazilError, InvalidInput, PermissionDenied, StorageError, Unsupported
from frazil.runtime import SYSTEM

LOCAL_SCHEMES = frozenset({"", "file"})
REMOTE_SCHEMES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "oss", "hdfs", "viewfs"})
_SYNC_THREADS = 8
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size: int
    modified_ms: int = 0
    """By the store's clock."""


class Backend(Protocol):
    """One kind of storage. Paths keep the form the caller gave them."""

    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def open_input(self, path: str) -> pa.NativeFile: ...
    def open_output(self, path: str) -> pa.NativeFile: ...
    def sync(self, paths: Iterable[str]) -> None: ...
    def delete(self, path: str) -> None: ...
    def list(self, prefix: str) -> Iterator[FileInfo]: ...


class ParsedFiles:
    """A cache of parsed immutable files, by path. Entries are never stale, as files never change."""

    def __init__(self, budget: int = 32 << 20) -> None:
        self._budget = budget
        self._used = 0
        self._values: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        _fork.watch(self)

    def get(self, path: str) -> Any:
        with self._lock:
            if path not in self._values:
                return None
            self._values.move_to_end(path)
            return self._values[path][0]

    def put(self, path: str, value: Any, size: int) -> None:
        """Keep ``value``, which came from a file of about ``size`` bytes, and let go of what was used longest ago."""
        with self._lock:
            self._used += size - self._values.pop(path, (None, 0))[1]
            self._values[path] = (value, size)
            while self._used > self._budget and len(self._values) > 1:
                self._used -= self._values.popitem(last=False)[1][1]

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock.release()


class Storage:
    """Routes each path to its kind of storage. ``properties`` are PyIceberg's FileIO properties (``s3.endpoint`` …)."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.properties = dict(properties or {})
        self.parsed = ParsedFiles()
        self._backends: dict[str, Backend] = {}
        self._grants: dict[str, RemoteBackend] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        _fork.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock.release()

    def read(self, path: str) -> bytes:
        """The whole file."""
        with _translated("read", path):
            return self._backend(path).read(path)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Create the file, durably.

        ``sync=False``: the file is durable after ``sync_writes``. Its fsync begins at once, beside those of other
        files, and the files of a folder share that of the folder.
        """
        with _translated("write", path):
            backend = self._backend(path)
            if isinstance(backend, LocalBackend):
                backend.write(path, data, sync=sync)
            else:
                backend.write(path, data)

    def sync_writes(self) -> None:
        """Wait until every file is durable that was written with ``sync=False``.

        Call it before anything refers to such a file (rule P6). A file whose fsync has failed is written once more.
        """
        with self._lock:
            local = self._backends.get("file")
        if isinstance(local, LocalBackend):
            with _translated("sync", "new files"):
                local.sync_writes()

    def open_input(self, path: str) -> pa.NativeFile:
        """For random access, as Parquet readers want it."""
        with _translated("read", path):
            return self._backend(path).open_input(path)

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream to a new file; call ``sync`` with its path once it is closed.

        Closing completes the file, even one half written: ``output`` is for writers that may fail in between.
        """
        with _translated("write", path):
            return self._backend(path).open_output(path)

    @contextlib.contextmanager
    def output(self, path: str) -> Iterator[pa.NativeFile]:
        """A stream to a new, durable file. A block that fails leaves no file behind."""
        stream = self.open_output(path)
        try:
            yield stream
            with _translated("write", path):
                stream.close()
            self.sync([path])
        except BaseException:
            # An object store completes the upload when the stream is closed and has no way to abandon it, so the
            # truncated object comes into being and goes at once. Nothing refers to it: its name is fresh.
            with contextlib.suppress(Exception):
                stream.close()
            self.delete([path])
            raise

    def sync(self, paths: Iterable[str]) -> None:
        """Make closed files durable, folders included."""
        by_backend: dict[int, tuple[Backend, list[str]]] = {}
        for path in paths:
            backend = self._backend(path)
            by_backend.setdefault(id(backend), (backend, []))[1].append(path)
        for backend, found in by_backend.values():
            with _translated("sync", found[0]):
                backend.sync(found)

    def delete(self, paths: Iterable[str]) -> list[str]:
        """Remove files; a missing one is fine. Never raises: returns the paths that could not be removed."""
        kept = []
        for path in paths:
            try:
                self._backend(path).delete(path)
            except FileNotFoundError:
                continue
            except Exception:  # noqa: BLE001 - clean-up must not hide the error that caused it; orphans are found later
                kept.append(path)
        return kept

    def remove_empty_folders(self, location: str) -> None:
        """Remove a folder of a local file system and those in it, as far as they are empty. Never raises."""
        if is_local(location):
            root = local_path(location)
            for folder, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """Every file under a folder."""
        with _translated("list", prefix):
            yield from self._backend(prefix).list(prefix)

    def grant(self, prefix: str, properties: Mapping[str, str]) -> None:
        """Use these credentials, vended by a REST catalog, for the files of one table. They replace earlier ones."""
        granted = {**self.properties, **properties}
        with self._lock:
            known = self._grants.get(prefix)
            if known is None or known.properties != granted:
                self._grants[prefix] = RemoteBackend(granted)

    def properties_for(self, path: str) -> Mapping[str, str]:
        """The properties, with the credentials granted for this path, for code that opens the file itself."""
        with self._lock:
            granted = self._granted(path)
        return self.properties if granted is None else granted.properties

    def _backend(self, path: str) -> Backend:
        start, _, rest = path.partition("/")
        scheme = _scheme(start) if rest.startswith("/") or start.startswith(("file:", "memory:")) else ""
        key = "file" if scheme in LOCAL_SCHEMES else _SAME_STORE.get(scheme, scheme)
        with self._lock:
            self._leave_parents_connections()
            if self._grants and key in REMOTE_SCHEMES and (granted := self._granted(path)) is not None:
                return granted
            backend = self._backends.get(key)
            if backend is None:
                backend = self._backends[key] = self._open(key, path)
            return backend

    def _granted(self, path: str) -> RemoteBackend | None:
        prefixes = [prefix for prefix in self._grants if path.startswith(prefix.rstrip("/") + "/")]
        return self._grants[max(prefixes, key=len)] if prefixes else None

    def _leave_parents_connections(self) -> None:
        # Two processes must not share a connection.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._backends = {key: each for key, each in self._backends.items() if not isinstance(each, RemoteBackend)}
            self._grants = {prefix: RemoteBackend(each.properties) for prefix, each in self._grants.items()}

    def _open(self, scheme: str, path: str) -> Backend:
        if scheme == "file":
            return LocalBackend()
        if scheme == "memory":
            return MemoryBackend()
        if scheme in REMOTE_SCHEMES:
            return RemoteBackend(self.properties)
        raise InvalidInput(
            f"The location {path!r} has the unknown scheme {scheme!r}",
            advice=f"Use a local path, file://, or one of {', '.join(sorted(REMOTE_SCHEMES))}",
        )

    def __getstate__(self) -> dict[str, Any]:
        if "memory" in self._backends:
            raise Unsupported("A memory:// lake exists in one process only and cannot be pickled")
        return {"properties": self.properties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["properties"])  # type: ignore[misc]


@lru_cache(maxsize=64)
def _scheme(start: str) -> str:
    """Of a location that begins so."""
    return urlparse(start).scheme


def local_path(location: str) -> str:
    """The file-system path behind ``/a``, ``file:/a`` or ``file:///a``. Iceberg does not percent-encode, nor do we."""
    if location.startswith("file:"):
        rest = location[5:]
        if rest.startswith("//"):
            rest = rest[2:]
            return rest[rest.index("/") :] if not rest.startswith("/") else rest
        return rest
    return location


def is_local(location: str) -> bool:
    return "://" not in location or location.startswith("file:")


def same_path(path: str) -> str:
    """One form of a path for all the ways to write it: schemes of one store, ``file:``, escapes, doubled slashes.

    Two paths of different files may have one form, never one file two: for looking up what must not be deleted.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        scheme, rest = "file", local_path(path)
    elif scheme == "memory":
        rest = rest.lstrip("/")
    return f"{_SAME_STORE.get(scheme, scheme)}:{_SLASHES.sub('/', unquote(rest)).rstrip('/')}"


_SLASHES = re.compile("/+")


def is_below(path: str, folder: str) -> bool:
    """Both in the form of ``same_path``."""
    return path == folder or path.startswith(folder + "/")


def canonical(location: str) -> str:
    """The form for new metadata, without a slash at the end: Hadoop's ``s3a://`` and ``s3n://`` are ``s3://``."""
    scheme, separator, rest = location.partition("://")
    return (f"{_SAME_STORE.get(scheme, scheme)}{separator}{rest}").rstrip("/") or location


@dataclass(frozen=True, slots=True)
class _Syncing:
    """A new file whose fsync is in progress."""

    data: bytes
    done: Future[None]


class LocalBackend:
    """The local file system.

    A file written with ``sync=False`` is fsynced by another thread, and written once more if that fails: what a failed
    fsync has left of a file is unknown. Its folder is due for an fsync, too: the file gets a number once it is there,
    and a sync of the folder covers every number that was given out before it began. So threads need no lock, and a
    folder is synced once too often at worst.
    """

    def __init__(self) -> None:
        self._syncing: dict[str, _Syncing] = {}
        self._rewriting = threading.Lock()
        self._numbers = itertools.count(1)
        self._unsynced: dict[str, int] = {}
        """Folder → the number of the last file that was written without it."""
        self._synced: dict[str, int] = {}
        _fork.watch(self)

    def before_fork(self) -> None:
        self._rewriting.acquire()

    def after_fork_in_parent(self) -> None:
        self._rewriting.release()

    def after_fork_in_child(self) -> None:
        # The parent's threads, and the writes that wait for them, are the parent's.
        self._syncing.clear()
        self._rewriting.release()

    def read(self, path: str) -> bytes:
        with open(local_path(path), "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        target = local_path(path)
        fd = self._new_file(target, data)
        folder = os.path.dirname(target)
        if sync:
            self._sync_new_file(fd, target)
            self._sync_folder(folder)
        else:
            self._syncing[target] = _Syncing(data, _begin(_sync_and_close, fd))
            self._unsynced[folder] = next(self._numbers)

    def _new_file(self, target: str, data: bytes) -> int:
        fd = self._create(target)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        except BaseException:
            os.close(fd)
            _remove(target)
            raise
        return fd

    def _sync_new_file(self, fd: int, target: str) -> None:
        try:
            _sync_and_close(fd)
        except BaseException:
            _remove(target)
            raise

    def sync_writes(self) -> None:
        """Wait until the files are durable that were written with ``sync=False``, and sync their folders."""
        due = [folder for folder, number in list(self._unsynced.items()) if number > self._synced.get(folder, 0)]
        others = [_begin(self._sync_folder_if_there, folder) for folder in due[1:]]
        for folder in due[:1]:
            self._sync_folder_if_there(folder)
        for each in others:
            each.result()
        for target, syncing in list(self._syncing.items()):
            try:
                syncing.done.result()
            except OSError:
                self._write_again(target, syncing)
            self._syncing.pop(target, None)

    def _write_again(self, target: str, syncing: _Syncing) -> None:
        with self._rewriting:
            if self._syncing.get(target) is not syncing:
                # Another thread has written it, or it was deleted.
                return
            folder = os.path.dirname(target)
            if os.path.isdir(folder):
                _remove(target)
                self._sync_new_file(self._new_file(target, syncing.data), target)
                _fsync_folder(folder)
            self._syncing.pop(target, None)

    def _sync_folder_if_there(self, folder: str) -> None:
        number = self._unsynced[folder]
        try:
            self._sync_folder(folder)
        except FileNotFoundError:
            # A table that was purged: with the folder its files are gone.
            self._synced[folder] = number

    def _sync_folder(self, folder: str) -> None:
        number = self._unsynced.get(folder)
        _fsync_folder(folder)
        if number is not None:
            self._synced[folder] = number

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.OSFile(local_path(path), "rb")

    def open_output(self, path: str) -> pa.NativeFile:
        target = local_path(path)
        os.close(self._create(target))
        return pa.OSFile(target, "wb")

    def sync(self, paths: Iterable[str]) -> None:
        targets = [local_path(path) for path in paths]
        for target in targets:
            fd = os.open(target, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        for folder in {os.path.dirname(target) for target in targets}:
            self._sync_folder(folder)

    def delete(self, path: str) -> None:
        target = local_path(path)
        self._syncing.pop(target, None)
        os.unlink(target)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        for folder, _, names in os.walk(local_path(prefix)):
            for name in names:
                full = os.path.join(folder, name)
                # Files go while they are listed: an attempt that lost deletes its own.
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(full)
                    yield FileInfo(full, found.st_size, found.st_mtime_ns // 1_000_000)

    def _create(self, target: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(target, flags, 0o644)
        except FileNotFoundError:
            make_folder(os.path.dirname(target))
            return os.open(target, flags, 0o644)


@cache
def _threads() -> ThreadPoolExecutor:
    """Wait for disks. A child process makes its own."""
    return ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="frazil-fsync")


os.register_at_fork(after_in_child=_threads.cache_clear)


def _begin(action: Callable[[Any], None], argument: object) -> Future[None]:
    """Start it in another thread; at the end of the process, when none can be started, do it now."""
    try:
        return _threads().submit(action, argument)
    except RuntimeError:
        done = Future[None]()
        try:
            action(argument)
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done


def _sync_and_close(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(target: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(target)


def make_folder(folder: str) -> None:
    """Create a folder and its missing parents, durably."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each)
        # A new folder's entry is part of its parent.
        _fsync_folder(os.path.dirname(each))


def _fsync_folder(folder: str) -> None:
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class MemoryBackend:
    """Files of one process; for tests and simulation."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._modified_ms: dict[str, int] = {}
        self._lock = threading.Lock()

    def read(self, path: str) -> bytes:
        with self._lock:
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            return self._files[path]

    def write(self, path: str, data: bytes) -> None:
        with self._lock:
            if path in self._files:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            self._files[path] = bytes(data)
            self._modified_ms[path] = SYSTEM.now_ms()

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def open_output(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_MemoryFile(self, path), mode="w")

    def sync(self, paths: Iterable[str]) -> None:
        pass

    def delete(self, path: str) -> None:
        with self._lock:
            if self._files.pop(path, None) is None:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        with self._lock:
            found = [
                FileInfo(path, len(data), self._modified_ms[path])
                for path, data in self._files.items()
                if path.startswith(prefix)
            ]
        yield from found


class _MemoryFile(io.BytesIO):
    def __init__(self, backend: MemoryBackend, path: str) -> None:
        super().__init__()
        self._target = (backend, path)

    def close(self) -> None:
        if not self.closed:
            backend, path = self._target
            backend.write(path, self.getvalue())
        super().close()


class RemoteBackend:
    """Object stores through PyIceberg's FileIO and its property names."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self.properties = dict(properties)
        self._io = PyArrowFileIO(_with_s3_defaults(properties))

    def _locate(self, path: str) -> tuple[pafs.FileSystem, str]:
        # Not PyIceberg's parser: it reads a path as a URL and loses what follows a "#" or "?" in a key.
        scheme, _, rest = path.partition("://")
        netloc, slash, inside = rest.partition("/")
        key = slash + inside if scheme in ("hdfs", "viewfs") else rest
        return self._io.fs_by_scheme(_SAME_STORE.get(scheme, scheme), netloc), key

    def read(self, path: str) -> bytes:
        fs, key = self._locate(path)
        with fs.open_input_file(key) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        with self.open_output(path) as file:
            file.write(data)

    def open_input(self, path: str) -> pa.NativeFile:
        fs, key = self._locate(path)
        return fs.open_input_file(key)

    def open_output(self, path: str) -> pa.NativeFile:
        fs, key = self._locate(path)
        return fs.open_output_stream(key)

    def sync(self, paths: Iterable[str]) -> None:
        """An upload is acknowledged when it is durable."""

    def delete(self, path: str) -> None:
        fs, key = self._locate(path)
        fs.delete_file(key)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        fs, key = self._locate(prefix)
        root = prefix[: len(prefix) - len(key)]
        for info in fs.get_file_info(pafs.FileSelector(key.rstrip("/"), recursive=True, allow_not_found=True)):
            if info.type == pafs.FileType.File:
                yield FileInfo(root + info.path, info.size, (info.mtime_ns or 0) // 1_000_000)


def _with_s3_defaults(properties: Mapping[str, str]) -> dict[str, str]:
    found = dict(properties)
    if "s3.region" not in found and "client.region" not in found:
        # Without a region PyIceberg asks Amazon where the bucket is, which another store's bucket never is.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or "s3.endpoint" in found:
            found["s3.region"] = region or "us-east-1"
    # Arrow's own limits are 1 s and 3 s: too short for a busy store, and a slow answer is not a lost one.
    return {"s3.connect-timeout": "5", "s3.request-timeout": "30", **found}


@contextlib.contextmanager
def _translated(verb: str, path: str) -> Iterator[None]:
    """Raise file-system errors as Frazil's errors."""
    try:
        yield
    except FrazilError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"Cannot {verb} {path}: the file does not exist") from error
    except OSError as error:
        raise storage_error(error, f"Cannot {verb} {path}") from error


def storage_error(error: OSError, problem: str) -> FrazilError:
    """The Frazil error for an OSError."""
    text = str(error)
    aws = _AWS_ERROR.search(text)
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
        return DiskFull(
            f"{problem}: the disk is full", advice="Free some space, then call again; nothing was committed"
        )
    if (
        isinstance(error, PermissionError)
        or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        or (aws is not None and aws[1] in _AWS_DENIED)
    ):
        return PermissionDenied(
            f"{problem}: access is denied",
            evidence=error.strerror or text,
            advice="Check the folder's owner and mode, or the store's credentials",
        )
    if aws is not None and aws[1] == "NO_SUCH_BUCKET":
        return StorageError(f"{problem}: the bucket does not exist", advice="Create it, or correct the warehouse")
    if aws is not None and aws[1] == "NETWORK_CONNECTION":
        return StorageError(
            f"{problem}: the object store cannot be reached",
            evidence=text.partition("Details: ")[2] or text,
            advice="Check s3.endpoint in properties=, and that the store is up",
        )
    return StorageError(f"{problem}: {error.strerror or text}")


# Arrow passes an AWS error's code on inside the message only.
_AWS_ERROR = re.compile(r"AWS Error ([A-Z_]+)")
_AWS_DENIED = frozenset(
    {
        "ACCESS_DENIED",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "INVALID_SIGNATURE",
        "MISSING_AUTHENTICATION_TOKEN",
    }
    | {"SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT", "REQUEST_EXPIRED", "EXPIRED_TOKEN"}
)
