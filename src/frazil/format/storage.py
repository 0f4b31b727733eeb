"""The one door to files: local folders, object stores, memory.

Writing is durable before it returns (rule P6): on a local file system the file and its folder are fsynced; an object
store acknowledges an upload only when it is durable. Names are fresh randomness (rule P13), so nothing is overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs as pafs

from frazil.errors import FrazilError, InvalidInput, PermissionDenied, StorageError, Unsupported

LOCAL_SCHEMES = frozenset({"", "file"})
REMOTE_SCHEMES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "oss", "hdfs", "viewfs"})


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size: int
    modified_ms: int


class Backend(Protocol):
    """One kind of storage. Paths keep the form the caller gave them."""

    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def open_input(self, path: str) -> pa.NativeFile: ...
    def open_output(self, path: str) -> pa.NativeFile: ...
    def sync(self, paths: Iterable[str]) -> None: ...
    def delete(self, path: str) -> None: ...
    def list(self, prefix: str) -> Iterator[FileInfo]: ...


class Storage:
    """Routes each path to its kind of storage. ``properties`` are PyIceberg's FileIO properties (``s3.endpoint`` …)."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.properties = dict(properties or {})
        self._backends: dict[str, Backend] = {}
        self._lock = threading.Lock()

    def read(self, path: str) -> bytes:
        """The whole file."""
        with _translated("read", path):
            return self._backend(path).read(path)

    def write(self, path: str, data: bytes) -> None:
        """Create the file, durably."""
        with _translated("write", path):
            self._backend(path).write(path, data)

    def open_input(self, path: str) -> pa.NativeFile:
        """For random access, as Parquet readers want it."""
        with _translated("read", path):
            return self._backend(path).open_input(path)

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream to a new file; call ``sync`` with its path once it is closed."""
        with _translated("write", path):
            return self._backend(path).open_output(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Make closed files durable, folders included."""
        for path in paths:
            with _translated("sync", path):
                self._backend(path).sync([path])

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

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """Every file under a folder."""
        return self._backend(prefix).list(prefix)

    def fs(self, path: str) -> Any:
        """The pyarrow file system behind a remote path."""
        return _remote_fs(self._backend(path), path)

    def _backend(self, path: str) -> Backend:
        scheme = urlparse(path).scheme if "://" in path or path.startswith(("file:", "memory:")) else ""
        key = "file" if scheme in LOCAL_SCHEMES else scheme
        with self._lock:
            backend = self._backends.get(key)
            if backend is None:
                backend = self._backends[key] = self._open(key, path)
            return backend

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
            raise Unsupported("A memory:// lake lives in one process and cannot be pickled")
        return {"properties": self.properties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["properties"])  # type: ignore[misc]


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


class LocalBackend:
    def __init__(self) -> None:
        self._made: set[str] = set()

    def read(self, path: str) -> bytes:
        with open(local_path(path), "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        target = local_path(path)
        fd = self._create(target)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(target)
            raise
        os.close(fd)
        _fsync_folder(os.path.dirname(target))

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.OSFile(local_path(path), "rb")

    def open_output(self, path: str) -> pa.NativeFile:
        target = local_path(path)
        os.close(self._create(target))
        return pa.OSFile(target, "wb")

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            target = local_path(path)
            fd = os.open(target, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            _fsync_folder(os.path.dirname(target))

    def delete(self, path: str) -> None:
        os.unlink(local_path(path))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        for folder, _, names in os.walk(local_path(prefix)):
            for name in names:
                full = os.path.join(folder, name)
                stat = os.stat(full)
                yield FileInfo(full, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def _create(self, target: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(target, flags, 0o644)
        except FileNotFoundError:
            self._make_folder(os.path.dirname(target))
            return os.open(target, flags, 0o644)

    def _make_folder(self, folder: str) -> None:
        missing = []
        while folder and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
            # The entry of a new folder lives in its parent.
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
            found = [(path, len(data)) for path, data in self._files.items() if path.startswith(prefix)]
        for path, size in found:
            yield FileInfo(path, size, 0)


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
    """Object stores through PyIceberg's FileIO, whose property names are the one door for credentials."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self._io = PyArrowFileIO(dict(properties))

    def _locate(self, path: str) -> tuple[pafs.FileSystem, str]:
        scheme, netloc, key = self._io.parse_location(path, self._io.properties)
        return self._io.fs_by_scheme(scheme, netloc), key

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
        pass

    def delete(self, path: str) -> None:
        fs, key = self._locate(path)
        fs.delete_file(key)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        fs, key = self._locate(prefix)
        root = prefix[: len(prefix) - len(key)]
        for info in fs.get_file_info(pafs.FileSelector(key, recursive=True, allow_not_found=True)):
            if info.type == pafs.FileType.File:
                yield FileInfo(root + info.path, info.size, int((info.mtime_ns or 0) // 1_000_000))


def _remote_fs(backend: Backend, path: str) -> Any:
    return backend._locate(path)[0] if isinstance(backend, RemoteBackend) else None


@contextlib.contextmanager
def _translated(verb: str, path: str) -> Iterator[None]:
    """File-system errors as sentences of ours."""
    try:
        yield
    except FrazilError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"Cannot {verb} {path}: the file does not exist") from error
    except OSError as error:
        raise storage_error(error, f"Cannot {verb} {path}") from error


def storage_error(error: OSError, problem: str) -> FrazilError:
    """An OSError as the error of ours that says who must act."""
    text = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
        return StorageError(
            f"{problem}: the disk is full", advice="Free some space, then call again; nothing was committed"
        )
    if (
        isinstance(error, PermissionError)
        or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        or "ACCESS_DENIED" in text
    ):
        return PermissionDenied(
            f"{problem}: access is denied",
            evidence=error.strerror or text,
            advice="Check the folder's owner and mode, or the store's credentials",
        )
    return StorageError(f"{problem}: {error.strerror or text}")
