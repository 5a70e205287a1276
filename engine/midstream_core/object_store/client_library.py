"""Values of the client libraries of buckets, which have no complete types."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Union

Client = Any  # of a service: requests are its methods
Session = Any  # of botocore: makes clients
Request = Any  # of botocore, before it is signed
Signer = Any  # of botocore
Response = Any  # of urllib3, or of a library around it
ServiceError = Any  # the answer of a service that refused, as an exception
Answer = Dict[str, Any]  # of botocore, whose models are data
Blob = Any  # an object in Google Cloud Storage
Credentials = Any  # of google-auth
Retry = Any  # of google-api-core
Data = Union[bytes, bytearray, memoryview]


def library(name: str) -> Any:
    """Import a module that has no types, or incomplete ones. Raises ImportError."""
    return importlib.import_module(name)
