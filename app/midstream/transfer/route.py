"""A route between two endpoints: opens the streams of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from midstream.hosts.host import Process
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.copy_settings import CopySettings, ports_of
from midstream.transfer.direct_streams import DirectStreams
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.link import HIGH_LATENCY, SOURCE, TARGET, Link, wait_listening
from midstream.transfer.stream import Events, Stream
from midstream.transfer.stream_transport import start, start_stream
from midstream.transfer.tls_certificates import TlsPeers, make_peers
from midstream_host.bucket import disk_download, disk_upload
from midstream_host.copy import disk_receiver, sender
from midstream_host.copy.requested_items import new_key


class StreamRoute:
    """Route of the streams from ``source`` to ``target``, for one ``kind`` of tree."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        link: Link,
        settings: CopySettings,
        kind: str,
        direct: DirectStreams | None = None,
    ) -> None:
        """Create the route.

        Args:
            source: Endpoint that sends.
            target: Endpoint that receives.
            link: The link between them.
            settings: Those of the copy.
            kind: What the copy may contain (`midstream_host.allowlist`).
            direct: Streams over TLS between this machine and a host, used where the host's port can be reached.
        """
        self._direct = direct
        self.source, self.target, self.link, self._settings, self._kind = source, target, link, settings, kind
        self._peers: TlsPeers | None = None
        if link.kind == "direct":
            called, caller = (target, source) if link.listener == TARGET else (source, target)
            self._peers = make_peers(called.host, caller.host)

    @property
    def streams(self) -> int:
        return self._settings.streams or self.link.streams

    @property
    def favors_streams(self) -> bool:
        """Whether further streams pay off for few bytes: if requested, or at high latency."""
        return bool(self._settings.streams) or self.link.seconds > HIGH_LATENCY

    def open(self, generation: str, events: Events, *, small: bool = False) -> Stream:
        """Open a stream, with the programs of both ends running.

        Args:
            generation: Name of the staging directory of the copy.
            events: Queue for the stream's reports.
            small: The bytes are too few for a connection of their own.

        Raises:
            HostError: A program cannot be started, or does not listen.
            ConnectionLostError: A connection broke.
        """
        if self._direct is not None and (stream := self._direct.open(events)) is not None:
            return stream
        key = new_key()  # the source never receives it
        source, target = self.source.host, self.target.host
        if isinstance(target, BucketHost) and target.runs_on(source):
            both = target.start_own(disk_upload.upload)(
                directory=self.source.directory, url=self.target.directory, kind=self._kind, key=key
            )
            return Stream(self.source, self.target, both, both, events, relayed=False, key=key)
        if isinstance(source, BucketHost) and source.runs_on(target):
            both = source.start_own(disk_download.download)(
                directory=self.target.directory, url=self.source.directory, generation=generation, kind=self._kind,
                key=key,
            )  # fmt: skip
            return Stream(self.source, self.target, both, both, events, relayed=False, key=key)
        receive: dict[str, Any] = {
            "directory": self.target.directory, "generation": generation, "kind": self._kind, "key": key,
        }  # fmt: skip
        send: dict[str, Any] = {"directory": self.source.directory}
        if self._peers is not None:
            return self._open_direct(self._peers, send, receive, events)
        with ThreadPoolExecutor(2) as pool:  # both handshakes concurrently
            if small:
                waiting = self.target.waiting()
                sending = pool.submit(start(source, sender.send), **send)
                receiving = pool.submit(start(target, disk_receiver.receive, waiting=waiting), **receive)
            else:
                sending = pool.submit(start_stream(source, sender.send), **send)
                receiving = pool.submit(start_stream(target, disk_receiver.receive), **receive)
        return self._relayed_stream(sending, receiving, events, key)

    def _open_direct(
        self, peers: TlsPeers, send: Mapping[str, Any], receive: Mapping[str, Any], events: Events
    ) -> Stream:
        programs = {
            SOURCE: (self.source.host, start(self.source.host, sender.send), send),
            TARGET: (self.target.host, start(self.target.host, disk_receiver.receive), receive),
        }
        called = self.link.listener
        host, program, arguments = programs[called]
        listening = wait_listening(program(**arguments, peer=peers.listener(ports_of(host, self._settings))), host)
        host, program, arguments = programs[SOURCE if called == TARGET else TARGET]
        try:
            dialer = peers.dialer([self.link.address], listening.port)
            dialing = program(**arguments, peer=dialer)
        except BaseException:
            listening.process.close()
            raise
        sending, receiving = (dialing, listening.process) if called == TARGET else (listening.process, dialing)
        return Stream(self.source, self.target, sending, receiving, events, relayed=False, key=receive["key"])

    def _relayed_stream(self, sending: Future[Process], receiving: Future[Process], events: Events, key: str) -> Stream:
        failed = [error for end in (sending, receiving) if (error := end.exception()) is not None]
        if failed:
            for end in (sending, receiving):
                if end.exception() is None:
                    end.result().close()
            raise failed[0]
        return Stream(self.source, self.target, sending.result(), receiving.result(), events, relayed=True, key=key)
