"""What an operator sees. In a process of its own: OpenTelemetry's provider is set once for a whole process."""

from __future__ import annotations

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
    from frazil.commit.loop import Phase

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


def run(*, sdk: bool) -> str:
    script = f"SDK = {sdk}\n" + textwrap.dedent(SCRIPT)
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
