"""Metrics of a TPU's runtime while a program uses it: gRPC on localhost:8431.

The service is ``tpu.monitoring.runtime.RuntimeMetricService`` of libtpu; its messages (tpu_metric_service.proto of
AI-Hypercomputer/cloud-accelerator-diagnostics): request {1: name}, answer {1: {3: repeated {1: {2: {3: device}},
3: {1: double | 2: int64}}}}. A host where nothing is installed has no gRPC: one unary call over HTTP/2 (RFC 9113) needs
five kinds of frame and no compression of headers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Dict, Iterator, List, Tuple

from midstream_core.json_types import JsonValue

METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
TIMEOUT = 2.0  # seconds
MAX_ANSWER = 1 << 20  # bytes of an answer

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class NoAnswerError(Exception):
    """The metrics service does not answer, or its answer is malformed."""


def read(names: List[str], address: Tuple[str, int] = ("127.0.0.1", 8431)) -> Dict[str, Dict[int, float]]:
    """Read metrics: name -> device -> value. Names without an answer are left out."""
    gauges: Dict[str, Dict[int, float]] = {}
    for name in names:
        with contextlib.suppress(NoAnswerError):
            gauges[name] = parse(call(address, METHOD, b"\x0a" + _varint(len(name)) + name.encode()))
        if name not in gauges:
            break  # no service: do not wait for each name
    return gauges


def call(address: Tuple[str, int], method: str, message: bytes) -> bytes:
    """Make one unary gRPC call without TLS; return its message. Raises NoAnswerError."""
    try:
        with socket.create_connection(address, TIMEOUT) as sock:
            sock.settimeout(TIMEOUT)
            headers = (
                (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
                ("te", "trailers"), ("content-type", "application/grpc"),
            )  # fmt: skip
            block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
            sock.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                + _frame(SETTINGS, 0, 0, b"")
                + _frame(HEADERS, END_HEADERS, 1, block)
                + _frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message)
            )
            return _answer(sock)
    except (OSError, EOFError, struct.error) as error:
        raise NoAnswerError(str(error)) from error


def _answer(sock: socket.socket) -> bytes:
    data = b""
    while len(data) <= MAX_ANSWER:
        size, kind, flags, stream = struct.unpack(">IBBI", b"\0" + _exactly(sock, 9))
        if size > MAX_ANSWER:
            break
        payload = _exactly(sock, size)
        if kind == SETTINGS and not flags & ACK:
            sock.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            sock.sendall(_frame(PING, ACK, 0, payload))
        elif kind in (RST_STREAM, GOAWAY):
            break
        elif stream == 1 and kind in (DATA, HEADERS):
            if kind == DATA:
                data += payload
            if flags & END_STREAM:
                length = struct.unpack(">I", data[1:5])[0]
                if data[:1] == b"\0" and len(data) == length + 5:
                    return data[5:]
                break
    raise NoAnswerError("the call was refused")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError("closed")
        data += more
    return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """Encode an uncompressed HPACK string of fewer than 127 bytes."""
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


def parse(message: bytes) -> Dict[int, float]:
    """Parse an answer: device -> value. Malformed fields are left out."""
    values: Dict[int, float] = {}
    for metric in _all(message, 1):
        for place, point in enumerate(_all(metric, 3)):
            device = _first(_first(_first(point, 1, b""), 2, b""), 3, place)
            gauge = _first(point, 3, b"")
            value = _first(gauge, 1, _first(gauge, 2, None))
            if isinstance(device, int) and isinstance(value, (int, float)):
                values[device] = float(value)
    return values


def _all(message: JsonValue, number: int) -> List[JsonValue]:
    return [value for field_number, value in _fields(message) if field_number == number]


def _first(message: JsonValue, number: int, otherwise: JsonValue) -> JsonValue:
    return next(iter(_all(message, number)), otherwise)


def _fields(message: JsonValue) -> Iterator[Tuple[int, JsonValue]]:
    """Yield (field number, value) of a protobuf message until its bytes are malformed."""
    at = 0
    while isinstance(message, bytes) and at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(message, at)
            yield tag >> 3, value - (1 << 64) if value >> 63 else value
        elif kind == 1 and at + 8 <= len(message):
            yield tag >> 3, struct.unpack_from("<d", message, at)[0]
            at += 8
        elif kind == 2:
            size, at = _read_varint(message, at)
            if at + size > len(message):
                return
            yield tag >> 3, message[at : at + size]
            at += size
        elif kind == 5 and at + 4 <= len(message):
            at += 4
        else:
            return


def _read_varint(message: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            break
    return value & ((1 << 64) - 1), at


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])
