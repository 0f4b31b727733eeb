"""How Spark's own readers and writers access a table's object store: the lake's properties are passed to the Hadoop
connector as options of each read, so that the session needs no settings.

Hadoop caches one client per bucket and user: if lakes share a bucket with different keys, the first keys are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from frazil.errors import Unsupported
from frazil.format.storage import Storage, is_local
from frazil.on_spark.session import Session, setting

SHARED_FILES = "frazil.spark.shared-files"
_S3 = ("s3://", "s3a://", "s3n://")
_NAMES = {
    "fs.s3a.endpoint": ("s3.endpoint",),
    "fs.s3a.endpoint.region": ("s3.region", "client.region"),
    "fs.s3a.access.key": ("s3.access-key-id", "client.access-key-id"),
    "fs.s3a.secret.key": ("s3.secret-access-key", "client.secret-access-key"),
    "fs.s3a.session.token": ("s3.session-token", "client.session-token"),
}
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_GIVEN = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_ABSENT = ("S3AFileSystem not found", "No FileSystem for scheme", "FileSystem not found")


def connector_options(files: Iterable[str], storage: Storage) -> dict[str, str]:
    """The reader options for these files' object store. Missing ones come from the cluster's configuration."""
    first = next((path for path in files if path.startswith(_S3)), None)
    if first is None:
        return {}
    known = storage.properties_for(first)
    found: dict[str, str] = {}
    for option, names in _NAMES.items():
        value = next((known[name] for name in names if name in known), None)
        if value is not None:
            found[option] = value
    if "fs.s3a.access.key" in found:
        found["fs.s3a.aws.credentials.provider"] = _TEMPORARY if "fs.s3a.session.token" in found else _GIVEN
    endpoint = found.get("fs.s3a.endpoint")
    if endpoint is not None:
        virtual = known.get("s3.force-virtual-addressing", "false").lower() == "true"
        found["fs.s3a.path.style.access"] = "false" if virtual else "true"
        found["fs.s3a.connection.ssl.enabled"] = "false" if endpoint.startswith("http://") else "true"
        found.setdefault("fs.s3a.endpoint.region", "us-east-1")
    return found


@contextmanager
def connector_needed() -> Iterator[None]:
    """Raises Unsupported where Spark has no connector for a file's store."""
    try:
        yield
    except Exception as error:
        # The error is recognised by its text: a missing Java class has no exception type of its own here.
        said = next((line for line in str(error).splitlines() if any(each in line for each in _ABSENT)), None)
        if said is None:
            raise
        raise Unsupported(
            "This Spark has no connector to the store of the table's files",
            evidence=said.strip(),
            advice="For S3 start Spark with the jar org.apache.hadoop:hadoop-aws of its own Hadoop's version, for "
            'instance by spark.jars.packages. Clusters in a cloud bring theirs. Or use engine="arrow"',
        ) from error


def check_reachable(spark: Session, location: str, storage: Storage) -> None:
    """Raises Unsupported for a local folder on a cluster: each executor would read and write its own disk."""
    if not is_local(location) or storage.properties.get(SHARED_FILES, "false").lower() == "true":
        return
    master = setting(spark, "spark.master", "local")
    if not master.startswith("local"):
        raise Unsupported(
            f"The table is in the local folder {location}, which Spark's executors on other machines cannot reach",
            evidence=f"spark.master is {master}",
            advice=f"Keep the lake in an object store. If the folder is shared by all of them, connect with "
            f'properties={{"{SHARED_FILES}": "true"}}',
        )
