"""Processes for a test to kill: everything is imported when they begin."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.support.inbox_coroutines", "tests.support.inbox_worker", "tests.support.outbox_coroutines",
        "tests.support.sql_outbox_worker", "tests.support.transaction_worker",
    ]
)  # fmt: skip
