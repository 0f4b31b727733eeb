"""Spark sessions: which one runs a call, and the few settings that could change what is written.

Nothing here uses the JVM directly, so that classic sessions and Spark Connect behave the same.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from frazil.errors import InvalidInput, SchemaMismatch, SparkFailed, Unsupported
from frazil.wording import short

Session = Any
"""A pyspark.sql.SparkSession, classic or Connect: a cluster brings its own pyspark, so that none is imported here."""
Frame = Any
"""A pyspark.sql.DataFrame."""

T = TypeVar("T")

JAVA_NEEDED = 17
_OUR_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Thousands of small files are listed by a few tasks, not by one task each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local(
    name: str = "frazil", *, master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> Session:
    """A local Spark session with suitable settings, or the one that is already running.

    ``conf`` adds to the settings or replaces them. Any other session works as well: no row depends on these settings.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Unsupported("PySpark is not installed", advice='Run: pip install "frazil[local]"') from error
    running = SparkSession.getActiveSession()
    if running is not None and conf is None and master is None:
        return running
    check_java()
    # Spark's workers start the Python they find on PATH, which need not have pyarrow. PySpark looks at its setting
    # only in spark-submit.
    os.environ.setdefault("PYSPARK_PYTHON", (conf or {}).get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.appName(name).master(master or f"local[{max(2, os.cpu_count() or 2)}]")
    given = {**_OUR_DEFAULTS, "spark.driver.memory": memory or "2g", **(conf or {})}
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_java() -> None:
    """Raises Unsupported with advice where Spark would print a Java stack trace or hang."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        found = f"JAVA_HOME is {home}, which has no bin/java" if home else "There is no java on PATH"
        raise Unsupported(f"Spark needs Java {JAVA_NEEDED} or newer. {found}", advice=_JAVA_ADVICE)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = _java_version(answer.stderr + answer.stdout)
    if version is not None and version < JAVA_NEEDED:
        raise Unsupported(f"Spark needs Java {JAVA_NEEDED} or newer; {java} is Java {version}", advice=_JAVA_ADVICE)


_JAVA_ADVICE = "Install a JDK 17 or 21 (on Debian and Ubuntu: apt install openjdk-17-jdk-headless), or set JAVA_HOME"


def _java_version(text: str) -> int | None:
    _, _, rest = text.partition('version "')
    parts = rest.partition('"')[0].split(".")
    if not parts[0].isdigit():
        return None
    # Java 8 called itself 1.8.
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 and parts[1].isdigit() else int(parts[0])


def active() -> Session | None:
    """The session that this thread runs on, if PySpark was imported and has one."""
    module = sys.modules.get("pyspark.sql")
    return None if module is None else module.SparkSession.getActiveSession()


def chosen(*candidates: object) -> Session:
    """The first session given, else the active one. Raises InvalidInput when there is none."""
    found = next((each for each in candidates if each is not None), None)
    found = active() if found is None else found
    if found is None:
        raise InvalidInput("There is no Spark session", advice="Give one: spark=frazil.spark()")
    return checked(found)


def is_frame(rows: object) -> bool:
    """Whether these rows are a Spark DataFrame. Without PySpark imported, nothing is."""
    module = sys.modules.get("pyspark.sql")
    return module is not None and isinstance(rows, module.DataFrame)


def session_of(frame: Frame) -> Session:
    """The live session that a DataFrame belongs to. Raises InvalidInput when it was stopped."""
    return checked(frame.sparkSession)


def checked(session: object) -> Session:
    """The session, if it is one and runs."""
    module = sys.modules.get("pyspark.sql")
    # Connect's session class is unrelated to the classic one.
    is_one = module is not None and (
        isinstance(session, module.SparkSession) or (is_connect(session) and type(session).__name__ == "SparkSession")
    )
    if not is_one:
        raise InvalidInput(
            f"spark must be a SparkSession, not {type(session).__name__}", advice="frazil.spark() makes one"
        )
    spark: Any = session
    # stop() takes a context's handle away.
    stopped = spark.is_stopped if is_connect(spark) else spark.sparkContext._jsc is None
    if stopped:
        raise InvalidInput(
            "The Spark session was stopped", advice="Start another one, for instance with frazil.spark()"
        )
    return spark


def is_connect(session: Session) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def estimated_bytes(frame: Frame) -> float:
    """The optimizer's estimate of the frame's size; infinite if it is unknown.

    Also where the frame counts rows for its user (``observe``), whose figures are those of the first run of it.
    """
    if is_connect(frame.sparkSession) or frame.isStreaming:
        return math.inf
    # An internal API that may change; errors of the frame are reported by the job that writes it.
    with contextlib.suppress(Exception):
        plan = frame._jdf.queryExecution().optimizedPlan()
        if "CollectMetrics" not in plan.toString():
            return int(str(plan.stats().sizeInBytes()))
    return math.inf


def setting(session: Session, key: str, default: str = "") -> str:
    # Spark would check the default as if it were set.
    found = session.conf.get(key, None)
    return default if found is None else str(found)


def app_name(session: Session) -> str | None:
    """The name of the session's application; None: it has none."""
    return short(setting(session, "spark.app.name")) or None


def materialised(frame: Frame) -> tuple[Frame, int]:
    """The frame's rows, evaluated once and kept on the executors, and their count."""
    from pyspark.sql import Observation, functions

    if is_connect(frame.sparkSession):
        # Connect does not return observed metrics of a checkpoint.
        made = frame.localCheckpoint()
        return made, int(made.count())
    observation = Observation()
    made = frame.observe(observation, functions.count(functions.lit(1)).alias("rows")).localCheckpoint()
    return made, int(observation.get.get("rows") or 0)


# Objects cached per session

_MAX_CACHED = 128
_cached: weakref.WeakKeyDictionary[Session, dict[object, Any]] = weakref.WeakKeyDictionary()


def cached(session: Session, key: object, make: Callable[[], T]) -> T:
    """Cache Columns, which are expressions independent of a frame; creating one is a call to the JVM."""
    known = _cached.setdefault(session, {})
    found: T | None = known.get(key)
    if found is None:
        found = make()
        if len(known) >= _MAX_CACHED:
            known.clear()
        known[key] = found
    return found


# PySpark's recording of source lines

_lock = threading.Lock()
_ORIGINS = "_enable_debugging_cache"
_origins: list[Any] = []
"""The value of the switch when each open block began; the first is the user's."""


@contextlib.contextmanager
def without_column_origins() -> Iterator[None]:
    """Turn off PySpark's recording of the caller's source line for every column, which takes five calls to the JVM.

    A write makes hundreds of columns, and Frazil's source lines do not help users. The switch is global: columns that
    another thread makes concurrently have no source line either.
    """
    module: Any = sys.modules.get("pyspark.errors.utils")
    if not hasattr(module, _ORIGINS):
        yield
        return
    with _lock:
        _origins.append(getattr(module, _ORIGINS))
        setattr(module, _ORIGINS, False)
    try:
        yield
    finally:
        with _lock:
            wanted = _origins[0]
            _origins.pop()
            if not _origins:
                setattr(module, _ORIGINS, wanted)


# Settings that a write needs while it runs

_settings_in_use: dict[tuple[int, str], tuple[int, str | None]] = {}


@contextlib.contextmanager
def with_settings(session: Session, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings during a block. Blocks of several threads may overlap: the last one restores the original values.

    The written files are verified nevertheless, as another thread of the user may change the same settings.
    """
    with _lock:
        for name, value in settings.items():
            count, before = _settings_in_use.get(_key(session, name), (0, None))
            if count == 0:
                before = session.conf.get(name, None)
            _settings_in_use[_key(session, name)] = (count + 1, before)
            session.conf.set(name, value)
    try:
        yield
    finally:
        with _lock:
            for name in settings:
                count, before = _settings_in_use[_key(session, name)]
                if count > 1:
                    _settings_in_use[_key(session, name)] = (count - 1, before)
                    continue
                del _settings_in_use[_key(session, name)]
                # The session may have been stopped.
                with contextlib.suppress(Exception):
                    session.conf.unset(name) if before is None else session.conf.set(name, before)


def _key(session: Session, name: str) -> tuple[int, str]:
    return id(session), name


# Errors of Spark jobs

_MARKED_ERROR = re.compile(r"frazil\[(.*?)\]frazil", re.DOTALL)


def marked_error(text: str) -> str:
    """A message to raise inside a Spark job, marked so that ``translated`` recognises it."""
    return f"frazil[{text}]frazil"


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise Spark's errors as Frazil's, with the first line of Spark's message as evidence."""
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except AnalysisException as error:
        raise InvalidInput(f"Spark cannot run the {what}", evidence=_first_line(error)) from error
    except PySparkException as error:
        ours = _MARKED_ERROR.search(str(error))
        if ours is not None:
            raise SchemaMismatch(ours[1]) from error
        raise SparkFailed(
            f"The Spark job of the {what} failed; nothing was committed", evidence=_first_line(error)
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
