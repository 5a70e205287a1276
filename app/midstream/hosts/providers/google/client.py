"""The TPU API's client, and the retries that its reads get.

``MIDSTREAM_TPU_ENDPOINT=127.0.0.1:PORT`` names a server of this machine in the place of Google's: the lab's. It is
spoken to without encryption and without credentials, so no other address is taken.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING

from midstream.errors import UsageError

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.tpu_v2 import TpuClient

ENDPOINT = "MIDSTREAM_TPU_ENDPOINT"
READING = 60.0  # seconds that a read is tried again for
CALL = 30.0  # seconds for one call


def loopback(variable: str) -> str:
    """``HOST:PORT`` of an environment variable, empty where it is not set. UsageError where it is not this machine."""
    address = os.environ.get(variable, "")
    host = address.rpartition(":")[0].strip("[]")
    try:
        good = not address or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"{variable} is {address!r}", "it names a server of this machine, for trying things: 127.0.0.1:PORT"
        )
    return address


def open_client() -> TpuClient:
    """A client with the application default credentials, or of the lab's server. Google's own errors; UsageError."""
    try:
        from google.cloud import tpu_v2
    except ImportError as error:
        raise UsageError(f"google-cloud-tpu cannot be imported: {error}", "install midstream again") from error
    address = loopback(ENDPOINT)
    if not address:
        return tpu_v2.TpuClient()
    import grpc
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(address)))


def patient() -> Retry:
    """For calls that change nothing: what a busy service answers is tried again, ever more slowly."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type

    again = if_exception_type(
        exceptions.ServiceUnavailable,
        exceptions.InternalServerError,
        exceptions.TooManyRequests,
        exceptions.GatewayTimeout,
        exceptions.RetryError,
    )
    return Retry(predicate=again, initial=0.2, maximum=10.0, multiplier=2.0, timeout=READING)
