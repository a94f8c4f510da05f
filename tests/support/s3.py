"""An S3 server in this process, for programs that read and write objects by the real protocol.

Its libraries are imported by who uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import s3fs


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server on a free port of 127.0.0.1; give its address, and the environment that clients read."""
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    # Clients are kept, with the address of the server before.
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        yield (
            address,
            {
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": address,
                "AWS_CONFIG_FILE": "/dev/null",
                "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "NO_PROXY": "127.0.0.1",
            },
        )
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server for the tests of this module, and the environment that clients find it by."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as (address, environment):
        for name, value in environment.items():
            patch.setenv(name, value)
        yield address


@pytest.fixture
def bucket(server: str) -> Iterator[s3fs.S3FileSystem]:
    """A client of the server, and an empty bucket "snapshots"."""
    import s3fs

    assert server
    client = s3fs.S3FileSystem(skip_instance_cache=True)
    client.mkdir("snapshots")
    yield client
    client.rm("snapshots", recursive=True)
