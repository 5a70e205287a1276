"""paramiko's transport with keep-alives that need an answer and bounded memory."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, cast

import paramiko
from paramiko.buffered_pipe import PipeTimeout
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_OPEN_SUCCESS,
    MSG_NEWKEYS,
    MSG_REQUEST_FAILURE,
    MSG_REQUEST_SUCCESS,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_WINDOW_ADJUST,
    cMSG_GLOBAL_REQUEST,
)
from paramiko.message import Message

from midstream.hosts.ssh.host_certificate import SUFFIX
from midstream.hosts.ssh.packetizer import CONNECT_TIMEOUT, BoundedPacketizer
from midstream.hosts.ssh.untyped_library import untyped
from midstream_core.json_types import JsonValue

CHANNEL_TIMEOUT = 15.0
WINDOW = 2 << 20  # bytes that a server may send ahead of the reader; they are buffered in memory
BULK_WINDOW = 64 << 20  # bytes, for copies: 2 MiB would limit them to 40 MB/s at 50 ms
WINDOW_SLACK = 64 << 10  # bytes past a window that are tolerated: the two ends count packets slightly differently
KEEPALIVE_INTERVAL = 3  # seconds without data after which a keep-alive is sent
MAX_UNANSWERED = 4  # keep-alives without an answer until the connection is closed
IDLE_POLL_INTERVAL = 1.0  # seconds; paramiko's 0.1 s keeps a core busy with a large fleet
# AES-GCM first: on hosts with AES instructions it is the fastest by far.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


OPTIONS = {  # of ssh_config(5) -> paramiko's attribute
    "KexAlgorithms": "_preferred_kex",
    "Ciphers": "_preferred_ciphers",
    "MACs": "_preferred_macs",
    "PubkeyAcceptedAlgorithms": "_preferred_pubkeys",
}
MAX_OFFER = 300  # characters of a message

P = ParamSpec("P")
R = TypeVar("R")


class UnsupportedAlgorithmsError(paramiko.SSHException):
    """The server, or the SSH configuration, allows nothing that paramiko supports.

    ``supported`` are the names that paramiko supports.
    """

    def __init__(self, message: str, supported: Iterable[str]) -> None:
        super().__init__(message)
        self.supported = tuple(supported)


class ChannelBuffer(Protocol):
    """Bytes of a channel that have arrived."""

    def read(self, nbytes: int, timeout: float | None = None) -> bytes: ...


class OrderedChannel(paramiko.Channel):
    """A channel that sends nothing after its CLOSE.

    paramiko builds a message, releases the channel's lock, and sends the message. If the server ends the channel in
    between, the thread that reads sends CLOSE first. OpenSSH then closes the connection with all its channels
    ("packet referred to nonexistent channel"), or gives the number to another channel, which would get the message.
    """

    def before_close(self, send: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``send``, and hold a CLOSE of this channel until it returns."""
        closes: _Closes = untyped(self.transport).closes
        closes.hold(self.remote_chanid)
        try:
            return send(*args, **kwargs)
        finally:
            message = closes.release(self.remote_chanid)
            if message is not None:
                untyped(self.transport)._send_user_message(message)

    def send(self, s: Any) -> int:
        return self.before_close(super().send, s)

    def recv(self, nbytes: int) -> bytes:
        return self._received(untyped(self).in_buffer, nbytes)

    def recv_stderr(self, nbytes: int) -> bytes:
        return self._received(untyped(self).in_stderr_buffer, nbytes)

    def _received(self, buffer: ChannelBuffer, size: int) -> bytes:
        """Return what has arrived.

        paramiko drops it if the connection is lost while the window is adjusted.
        """
        try:
            data = buffer.read(size, self.timeout)
        except PipeTimeout:
            raise TimeoutError from None
        with contextlib.suppress(EOFError):
            self.before_close(self._adjust_window, len(data))
        return data

    def _adjust_window(self, size: int) -> None:
        inner = untyped(self)
        more = inner._check_add_window(size)
        if more > 0:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self.remote_chanid)
            message.add_int(more)
            inner.transport._send_user_message(message)

    def _unlink(self) -> None:
        """Close the channel because the connection has ended.

        The exit status may arrive before the end of the output. Without that end it is unknown what the command did.
        """
        if not self.closed and not self.eof_received:
            self.exit_status = -1
        untyped(super())._unlink()

    def close(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the connection is lost, and this channel with it
            super().close()

    def shutdown(self, how: int) -> None:
        self.before_close(super().shutdown, how)

    def resize_pty(self, width: int = 80, height: int = 24, width_pixels: int = 0, height_pixels: int = 0) -> None:
        self.before_close(super().resize_pty, width, height, width_pixels, height_pixels)


class _Closes:
    """CLOSE messages that wait until other threads have sent what they built before.

    Channels are identified by the server's number, which no other channel gets before CLOSE. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: collections.Counter[int] = collections.Counter()
        self._waiting: dict[int, Message] = {}

    def hold(self, number: int) -> None:
        with self._lock:
            self._senders[number] += 1

    def release(self, number: int) -> Message | None:
        """Return the CLOSE to send now: the caller was the last sender."""
        with self._lock:
            self._senders[number] -= 1
            if self._senders[number]:
                return None
            del self._senders[number]
            return self._waiting.pop(number, None)

    def wait(self, number: int, message: Message) -> bool:
        """Store the CLOSE for the last sender; False if none is sending."""
        with self._lock:
            if number not in self._senders:
                return False
            self._waiting[number] = message
            return True


class _Events(dict[int, threading.Event]):
    """The events of channels that are being opened.

    paramiko reads them at the end of a connection, while other threads may add some: its thread would fail.
    """

    def values(self) -> Any:
        return list(super().values())


def _within_window(handle: Any) -> Any:
    """Wrap a channel's data handler to disconnect a server that exceeds the window."""

    def checked(channel: paramiko.Channel, message: Message) -> None:
        waiting = len(channel.in_buffer) + len(channel.in_stderr_buffer) + len(message.get_remainder())
        if waiting > channel.in_window_size + WINDOW_SLACK:
            raise paramiko.SSHException("it sent more than the channel's window allows")
        handle(channel, message)

    return checked


class Transport(paramiko.Transport):
    """paramiko's transport with keep-alives that need an answer, and enforced windows."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **untyped(paramiko.Transport)._channel_handler_table,
        **{
            kind: _within_window(untyped(paramiko.Transport)._channel_handler_table[kind])
            for kind in (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA)
        },
    }

    def __init__(
        self, sock: Any, timeout: float = CONNECT_TIMEOUT, algorithms: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Prepare a session over ``sock``.

        Args:
            sock: A connected socket.
            timeout: Seconds until the server's greeting has to end.
            algorithms: What the SSH configuration allows, by its option in lower case.

        Raises:
            HostError: An option allows nothing that paramiko supports.
        """
        super().__init__(sock, default_window_size=WINDOW, packetizer_class=BoundedPacketizer)
        self.auth_timeout = CONNECT_TIMEOUT
        self.banner_timeout = cast(BoundedPacketizer, self.packetizer).greeting_timeout = timeout
        self.channel_timeout = CHANNEL_TIMEOUT
        self.closes = _Closes()
        untyped(self).channel_events = _Events()
        self._unanswered = 0
        self._after_new_keys: list[Any] = []  # messages of the thread that reads
        handlers = untyped(self)._handler_table
        for kind in (MSG_REQUEST_SUCCESS, MSG_REQUEST_FAILURE, MSG_NEWKEYS):
            handlers[kind] = self._answered(handlers[kind])
        handlers[MSG_CHANNEL_OPEN_SUCCESS] = self._opened
        self.prefers_certificates = False  # True if known_hosts has an authority for the host
        security = self.get_security_options()
        security.ciphers = (*CIPHERS, *(cipher for cipher in security.ciphers if cipher not in CIPHERS))
        allowed = algorithms or {}
        self._host_key_kinds: tuple[str, ...] = allowed.get("hostkeyalgorithms", tuple(super().preferred_keys))
        for option, attribute in OPTIONS.items():
            supported = cast("tuple[str, ...]", getattr(self, attribute))
            names = allowed.get(option.lower(), supported)
            common = tuple(
                algorithm for algorithm in supported if algorithm in names or f"{algorithm}{SUFFIX}" in names
            )
            if not common:
                raise UnsupportedAlgorithmsError(
                    f"none of the {option} of the SSH configuration is supported", supported
                )
            setattr(self, attribute, common)
        if not self.preferred_keys:
            raise UnsupportedAlgorithmsError(
                "none of the HostKeyAlgorithms of the SSH configuration is supported", super().preferred_keys
            )

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Kinds of host key, preferred ones first."""
        kinds = [kind for kind in super().preferred_keys if kind in self._host_key_kinds]
        return tuple(sorted(kinds, key=lambda kind: kind.endswith(SUFFIX) != self.prefers_certificates))

    @property
    def greeting(self) -> str:
        """The lines that the server has sent before, or instead of, its version."""
        return " ".join(cast(BoundedPacketizer, self.packetizer).greeting)

    def _really_parse_kex_init(self, m: Message, ignore_first_byte: bool = False) -> dict[str, JsonValue]:
        """Return what the server offers.

        Raises UnsupportedAlgorithmsError, which names it, where nothing of a kind is common. paramiko's error has no
        names.
        """
        parsed: dict[str, Any] = untyped(super())._really_parse_kex_init(m, ignore_first_byte)
        for what, key, supported in (
            ("key exchange methods", "kex_algo_list", self.preferred_kex),
            ("kinds of host key", "server_key_algo_list", self.preferred_keys),
            ("ciphers", "client_encrypt_algo_list", self.preferred_ciphers),
            ("ciphers", "server_encrypt_algo_list", self.preferred_ciphers),
            ("MACs", "client_mac_algo_list", self.preferred_macs),
            ("MACs", "server_mac_algo_list", self.preferred_macs),
        ):
            if not set(parsed[key]) & set(supported):
                offered = ", ".join(parsed[key])[:MAX_OFFER]
                raise UnsupportedAlgorithmsError(
                    f"it offers none of the {what} that are supported, only {offered}", supported
                )
        return parsed

    def _answered(self, handle: Any) -> object:
        def answered(message: Message) -> None:
            self._unanswered = 0
            handle(message)
            if self.clear_to_send.is_set():
                waiting, self._after_new_keys = self._after_new_keys, []
                for deferred in waiting:
                    self._send_user_message(deferred)

        return answered

    def _opened(self, message: Message) -> None:
        """Pass on that a channel is open.

        The server counts it as a session also if nothing waits for it any more: then it is closed.
        """
        inner, number, servers_number = untyped(self), message.get_int(), message.get_int()
        if inner._channels.get(number) is not None:
            message.rewind()
            inner._parse_channel_open_success(message)
            return
        close = Message()
        close.add_byte(cMSG_CHANNEL_CLOSE)
        close.add_int(servers_number)
        self._send_user_message(close)

    def open_channel(self, *args: Any, **kwargs: Any) -> paramiko.Channel:
        channel = super().open_channel(*args, **kwargs)
        channel.__class__ = OrderedChannel  # paramiko has no setting for the class
        return channel

    def _send_user_message(self, data: Any) -> None:
        if isinstance(data, Message):
            with data.packet.getbuffer() as packet:
                kind, number = packet[0], int.from_bytes(packet[1:5], "big")
            if kind == MSG_CHANNEL_CLOSE and self.closes.wait(number, data):
                return
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            # Keys are exchanged, and this thread reads the server's part: paramiko would wait here for itself.
            self._after_new_keys.append(data)
            return
        try:
            untyped(super())._send_user_message(data)
        except paramiko.SSHException as error:  # the server has not sent its part for 30 s
            self.packetizer.close()
            raise EOFError(str(error)) from error

    def start_keepalives(self) -> None:
        """Send keep-alives from now on."""
        self.packetizer.set_keepalive(KEEPALIVE_INTERVAL, self._keepalive)
        self.sock.settimeout(IDLE_POLL_INTERVAL)

    def _keepalive(self) -> None:
        self._unanswered += 1
        if self._unanswered > MAX_UNANSWERED:
            self.packetizer.close()  # its readers get the end of file
            return
        if not self.clear_to_send.is_set():  # keys are exchanged: its part is the answer
            return
        message = Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        untyped(self)._send_user_message(message)

    def close(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # already closed; or a channel, which has no shutdown
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes its reader
        super().close()
        self.sock.close()  # paramiko closes none of a transport that was not started
