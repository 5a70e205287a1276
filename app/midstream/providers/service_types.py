"""Types of the client libraries of Google Cloud, which have no complete ones."""

from __future__ import annotations

from typing import Any

Message = Any  # of a service: a resource, a request, or the client that sends it
