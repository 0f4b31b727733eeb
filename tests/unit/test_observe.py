"""What an operator sees. In a process of its own: OpenTelemetry's provider is set once for a whole process."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

SCRIPT = """
    import json, logging, sys
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import generate_latest
    import frazil
    from frazil.commit.context import Phase

    if SDK:
        metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
    events = []
    class Keep(logging.Handler):
        def emit(self, record):
            events.append({k: str(v) for k, v in record.__dict__.items()})
    log = logging.getLogger("frazil"); log.addHandler(Keep()); log.setLevel(logging.DEBUG); log.propagate = False

    lake = frazil.connect("memory://"); lake.create_namespace("n")
    t = lake.create_table("n.t", "id bigint, mail string")
    def once(phase, attempt):
        if phase is Phase.PREPARED and attempt == 1:
            t.append([{"id": 2, "mail": "second@example.org"}])
    t.append([{"id": 1, "mail": "first@example.org"}], on_phase=once)
    def drop(phase, attempt):
        if phase is Phase.HEAD_READ and attempt == 1:
            lake.drop_table("n.t"); lake.create_table("n.t", "id bigint")
    try: t.append([{"id": 3}], on_phase=drop, retry=frazil.Retry(tries=2))
    except frazil.ConflictError: pass
    print(json.dumps({"prometheus": generate_latest().decode() if SDK else "", "events": events}))
"""


TOGETHER = """
    from opentelemetry import metrics
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import generate_latest
    from frazil import observe

    if SDK:
        metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
    for size in (1, 3, 5):
        observe.grouped("append", size)
    observe.grouped("upsert", 2)
    for seconds in (0.004, 0.2, 70.0):
        observe.waited(seconds)
    for count in (2, 0, 3):
        observe.returned(count)
    print(generate_latest().decode())
"""
_VALUE = re.compile(r"^(?P<name>frazil_\w+)(?P<labels>\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)


def run(script: str = SCRIPT, *, sdk: bool) -> str:
    script = f"SDK = {sdk}\n" + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_prometheus_gets_the_documented_names() -> None:
    out = run(sdk=True)
    for name in (
        'frazil_commit_attempts_total{operation=\\"append\\",',
        'outcome=\\"committed\\"',
        'outcome=\\"stale\\"',
        "frazil_commit_conflict_total{check=",
        "frazil_commit_retries_total{",
        "frazil_commit_seconds_bucket{",
    ):
        assert name in out, name


def test_without_an_sdk_nothing_happens_and_no_row_is_ever_logged() -> None:
    out = run(sdk=False)
    assert "commit.attempt" in out
    assert "@example.org" not in out


def value(out: str, name: str, **labels: str) -> float:
    """The one value with this name and these labels among others."""
    wanted = [f'{label}="{text}"' for label, text in labels.items()]
    found = [
        float(each["value"])
        for each in _VALUE.finditer(out)
        if each["name"] == name and all(label in (each["labels"] or "") for label in wanted)
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_prometheus_gets_the_sizes_of_groups_by_the_operation_of_who_swapped_them() -> None:
    out = run(TOGETHER, sdk=True)
    assert value(out, "frazil_commit_group_size_count", operation="append") == 3
    assert value(out, "frazil_commit_group_size_sum", operation="append") == 9
    assert value(out, "frazil_commit_group_size_sum", operation="upsert") == 2
    # Alone, a few, more: told apart.
    small = [
        value(out, "frazil_commit_group_size_bucket", operation="append", le=each) for each in ("1.0", "4.0", "8.0")
    ]
    assert small == [1, 2, 3]


def test_prometheus_gets_how_long_tickets_waited_and_how_many_came_back() -> None:
    out = run(TOGETHER, sdk=True)
    assert value(out, "frazil_commit_queue_wait_seconds_count") == 3
    assert value(out, "frazil_commit_queue_wait_seconds_sum") == 70.204
    waits = [
        value(out, "frazil_commit_queue_wait_seconds_bucket", le=each) for each in ("0.005", "0.25", "60.0", "+Inf")
    ]
    assert waits == [1, 2, 2, 3]
    assert value(out, "frazil_commit_returned_total") == 5


def test_without_an_sdk_groups_are_counted_nowhere() -> None:
    assert "frazil_commit" not in run(TOGETHER, sdk=False)
