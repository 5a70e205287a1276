"""Services of buckets that nobody here wrote, as processes on loopback: moto (S3) and gcp-storage-emulator."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from simulators.object_stores.bucket import bucket_server
from simulators.object_stores.s3_server import s3_server
from support.loopback import free_port

EMULATOR = "from gcp_storage_emulator.__main__ import main; main()"


@contextlib.contextmanager
def program(*argv: str) -> Iterator[int]:
    """Context with a running Python program; yields the port on which it serves (``{port}`` in ``argv``)."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *(part.format(port=port) for part in argv)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, f"{argv} ended"
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def moto(bucket: str) -> Iterator[dict[str, str]]:
    """Context with moto's S3; yields the environment of its clients."""
    with program("-m", "moto.server", "-p", "{port}") as port:
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=30).close()
        with s3_server() as unused:
            yield {**unused.environment, "AWS_ENDPOINT_URL_S3": endpoint}


@contextlib.contextmanager
def gcs_emulator(bucket: str) -> Iterator[dict[str, str]]:
    """Context with gcp-storage-emulator; yields the environment of its clients."""
    options = ("start", "--host=127.0.0.1", "--port={port}", "--in-memory", f"--default-bucket={bucket}")
    with program("-c", EMULATOR, *options) as port, bucket_server() as unused:
        url = f"http://127.0.0.1:{port}"
        yield {**unused.environment, "STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url}
