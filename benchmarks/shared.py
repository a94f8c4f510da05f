"""ClaimGatekeeper in a shared Redis beside a plain pipeline of ``SET NX``, as one writes it by hand.

So many IDs, all new, in batches. ``plain`` is one pipeline of ``SET key 1 NX PX window`` a batch. ``claims`` is
`RedisStore.claim`; ``completed`` claims and completes each batch. The server is that of ``$DEDUP_BENCH_REDIS``, an
URL; without it the installed ``redis-server`` is started, without persistence.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from benchmarks.measure import cpu_seconds
from benchmarks.rounds import orders
from dedup_adapters.redis import RedisStore
from dedup_sdk.shared import ClaimKind
from dedup_sdk.testing import free_port

SERVER: Final = "DEDUP_BENCH_REDIS"
CONTENDERS: Final = ("plain", "claims", "completed")
BATCH_IDS: Final = 1_000
LEASE_MS: Final = 60_000
WINDOW_MS: Final = 7 * 86_400_000
_PATIENCE_S: Final = 30.0


def rounds_of(records: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round of each contender."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        url = os.environ.get(SERVER) or _start(stack)
        with Redis.from_url(url) as client:
            for order in orders(CONTENDERS, rounds):
                for name in order:
                    prefix = f"bench-{uuid.uuid4()}:"
                    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                        found[name].append(pool.submit(contend, name, url, prefix, records).result())
                    for keys in _batches(list(client.scan_iter(f"{prefix}*", count=10_000))):
                        client.unlink(*keys)
    return found


def contend(name: str, url: str, prefix: str, records: int) -> dict[str, float]:
    """Claim so many IDs, and return the figures."""
    batches = _batches([secrets.token_bytes(16) for _ in range(records)])
    store, plain = RedisStore(url, prefix=prefix, timeout=_PATIENCE_S), Redis.from_url(url)
    plain.ping()
    store.claim([bytes(16)], "warm", 1, timestamps_ms=[0], window_ms=1)
    tag = prefix.encode()
    first = 0
    began, cpu_began = time.perf_counter(), cpu_seconds()
    for ids in batches:
        if name == "plain":
            pipeline = plain.pipeline(transaction=False)
            for key in ids:
                pipeline.set(tag + key, 1, nx=True, px=WINDOW_MS)
            first += sum(map(bool, pipeline.execute()))
            continue
        timestamps_ms = [0] * len(ids)
        claims = store.claim(ids, "bench", LEASE_MS, timestamps_ms=timestamps_ms, window_ms=WINDOW_MS)
        first += sum(claim.kind is ClaimKind.FRESH for claim in claims)
        if name == "completed":
            tokens = [claim.token for claim in claims]
            assert all(store.complete(ids, tokens, "bench", timestamps_ms=timestamps_ms, window_ms=WINDOW_MS))
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu_began
    store.close()
    plain.close()
    assert first == records, f"{name} called {first} IDs first, of {records}"
    return {"records_per_second": records / seconds, "cpu_us_per_record": cpu / records * 1e6}


def _batches(ids: list[bytes]) -> list[list[bytes]]:
    return [ids[begin : begin + BATCH_IDS] for begin in range(0, len(ids), BATCH_IDS)]


def _start(stack: ExitStack) -> str:
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit(
            f"redis-server is not installed; install it, or name a server: {SERVER}=redis://localhost:6379/0"
        )
    port = free_port()
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    url = f"redis://127.0.0.1:{port}/0"
    until = time.monotonic() + _PATIENCE_S
    with Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except RedisError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return url
