"""Client of the TPU API, and its retries.

``MIDSTREAM_TPU_ENDPOINT=127.0.0.1:PORT`` names a simulated service on this machine. Requests to it have neither
encryption nor credentials, so only loopback addresses are accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.errors import UsageError
from midstream.providers.google_rest import loopback

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.tpu_v2 import TpuClient

ENDPOINT = "MIDSTREAM_TPU_ENDPOINT"
REST_ENDPOINT = "MIDSTREAM_TPU_REST_ENDPOINT"  # the same for requests that Google's library does not have
RETRY_TIMEOUT = 60.0  # seconds during which a read is retried


def open_client() -> TpuClient:
    """Open a client with application default credentials or of the simulated service.

    Raises UsageError, and Google's own errors.
    """
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


def read_retry() -> Retry:
    """Return the retry policy of calls that change nothing."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type

    transient = if_exception_type(
        exceptions.ServiceUnavailable,
        exceptions.InternalServerError,
        exceptions.TooManyRequests,
        exceptions.GatewayTimeout,
        exceptions.RetryError,
    )
    return Retry(predicate=transient, initial=0.2, maximum=10.0, multiplier=2.0, timeout=RETRY_TIMEOUT)
