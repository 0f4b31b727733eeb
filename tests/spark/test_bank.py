"""Spark SQL reads several tables at one instant while processes transfer between them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import frazil
from concurrency.bank import campaign
from concurrency.bank.tables import CONSTANT, LEDGER, LEFT, RIGHT, START, open_lake
from concurrency.writers import Address

SECONDS = 20.0
_SIDE = "SELECT '{0}' AS side, id, balance FROM {0}"
AUDIT = f"""
WITH accounts AS ({_SIDE.format(LEFT)} UNION ALL {_SIDE.format(RIGHT)}),
     moves AS (
       SELECT source AS side, from_id AS id, -amount AS amount FROM {LEDGER}
       UNION ALL
       SELECT CASE source WHEN '{LEFT}' THEN '{RIGHT}' ELSE '{LEFT}' END, to_id, amount FROM {LEDGER}),
     totals AS (SELECT side, id, sum(amount) AS moved FROM moves GROUP BY side, id)
SELECT sum(a.balance) AS total, count_if(a.balance <> {START} + coalesce(t.moved, 0)) AS unexplained
FROM accounts a LEFT JOIN totals t ON a.side = t.side AND a.id = t.id
"""


@pytest.mark.timeout(600)
def test_p40_every_join_of_the_banks_tables_adds_up(spark: Any, tmp_path: Path) -> None:
    address = Address(f"sqlite:///{tmp_path}/catalog.db", "", f"file://{tmp_path}/warehouse")
    plan = campaign.Plan(address, tmp_path / "acks", SECONDS, writers=4, auditors=1, kills_per_s=0.2)
    audits: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(campaign.run_apart, plan)
        while not running.done():
            try:
                with open_lake(address) as lake:
                    audits.append(tuple(lake.sql(AUDIT, spark).collect()[0]))
            except (frazil.InvalidInput, frazil.NoSuchTable):
                # The lake and its tables are still being created.
                continue
        report = running.result()
    assert report.violations == []
    assert report.transfers > 0
    assert audits
    assert set(audits) == {(CONSTANT, 0)}
