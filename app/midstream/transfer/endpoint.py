"""Endpoints of a copy: a directory on a host, or a prefix of a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream.hosts.host import Host, Process
from midstream.stores.bucket_access import Access
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.waiting_interpreters import WaitingInterpreters


@dataclass(frozen=True)
class Endpoint:
    """A directory on a host.

    Attributes:
        host: The host.
        directory: In a bucket the complete URL.
        interpreters: Those of the host that wait for a program of the copy.
    """

    host: Host
    directory: str
    interpreters: WaitingInterpreters | None = field(default=None, compare=False, repr=False)

    @property
    def in_bucket(self) -> bool:
        return isinstance(self.host, BucketHost)

    def prepare(self) -> None:
        """Start what the programs of a copy need; it is done while the copy begins."""
        if isinstance(self.host, BucketHost):
            self.host.prepare()

    def waiting(self) -> Process | None:
        """Return an interpreter of the host that waits for a program, if there is one."""
        return self.interpreters.take() if self.interpreters is not None else None

    def __str__(self) -> str:
        if self.in_bucket:
            return self.directory
        return f"{self.host.name}:{self.directory}"


def bucket_endpoint(url: str, access: Access | None = None, *, via: Host | None = None, python: str = "") -> Endpoint:
    """Return the URL of a bucket, or of a prefix in it, as an endpoint.

    ``via`` and ``python`` are those of `BucketHost`. Raises MidstreamError if ``url`` names no bucket.
    """
    return Endpoint(BucketHost(url, access, via=via, python=python), url.rstrip("/"))
