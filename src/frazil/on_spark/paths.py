"""Translates file paths between the table's metadata and Spark.

Metadata holds plain paths: ``/a b``, ``file:///a b``, ``s3://bucket/a b``. Spark's readers take patterns, and the
``_metadata.file_path`` of a row is a URI in which a space is ``%20``.
"""

from __future__ import annotations

import re
import unicodedata

from frazil.errors import Unsupported
from frazil.format.storage import is_local, local_path

# Hadoop's names for the stores that metadata calls otherwise.
_TO_HADOOP = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}
_PATTERN = re.compile(r"([\\*?\[\]{}])")
# What java.net.URI leaves as it is in a path.
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-!.~'()*,;:$&+=@/")
_SIMPLE = re.compile(r"[A-Za-z0-9_\-!.~'()*,;:$&+=@/]*\Z")


def to_spark(path: str) -> str:
    """The path to pass to a Spark reader or writer for this file or folder. Raises Unsupported."""
    # Without a scheme, Spark would look on the cluster's default file system.
    given = f"file://{local_path(path)}" if is_local(path) else _in_hadoop(path)
    if _PATTERN.search(given) is None:
        return given
    inside = given.partition("://")[2].partition("/")[2]
    if ":" in inside:
        raise Unsupported(
            f"Spark cannot read {path}: the path holds both a colon and one of * ? [ ] {{ }} \\",
            advice="Use to_arrow(), or rewrite the file under another name",
        )
    return _PATTERN.sub(r"\\\1", given)


def uri(path: str) -> str:
    """The ``_metadata.file_path`` of a file."""
    if is_local(path):
        return f"file:{_quoted(local_path(path))}"
    scheme, _, rest = _in_hadoop(path).partition("://")
    place, slash, inside = rest.partition("/")
    return f"{scheme}://{place}{slash}{_quoted(inside)}"


def uris(path: str) -> tuple[str, ...]:
    """Every form of it: Hadoop writes a local file with one slash or with three."""
    said = uri(path)
    return (said, f"file://{said[5:]}") if said.startswith("file:/") else (said,)


def is_hidden(path: str) -> bool:
    """Whether Spark silently ignores the file, even when it is named explicitly."""
    name = path.rpartition("/")[2]
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _in_hadoop(path: str) -> str:
    scheme, separator, rest = path.partition("://")
    return f"{_TO_HADOOP.get(scheme, scheme)}{separator}{rest}"


def _quoted(path: str) -> str:
    if _SIMPLE.match(path) is not None:
        return path
    return "".join(each if _stays(each) else "".join(f"%{byte:02X}" for byte in each.encode()) for each in path)


def _stays(character: str) -> bool:
    if character.isascii():
        return character in _PLAIN
    return unicodedata.category(character) not in ("Zs", "Zl", "Zp", "Cc")
