"""Send an event to a webhook, or to one that is compatible with Slack's."""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from midstream.fleet.notify_config import SLACK, NotifyConfig, is_address
from midstream.printable import printable_values
from midstream_core.json_types import JsonObject

REQUEST_TIMEOUT = 10.0  # seconds
ATTEMPTS = 3  # while the receiver does not answer, or is busy
MAX_PAUSE = 10.0  # seconds between two attempts
MAX_MESSAGE = 3000  # characters of a message; Slack cuts at 4000
BUSY = (408, 425, 429, 500, 502, 503, 504)

_log = logging.getLogger(__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect handler that follows no redirects.

    The event would be sent to a place that the fleet file does not name.
    """

    def redirect_request(self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str) -> None:  # noqa: ARG002
        return None


def send(receiver: NotifyConfig, event: JsonObject) -> bool:
    """Send an event; return whether the receiver accepted it.

    A failure is logged without the address, which may be a secret, and raises nothing: a notification must not stop a
    migration.
    """
    if receiver.kinds and event.get("kind") not in receiver.kinds:
        return False
    url = _resolved(receiver.url)
    if not is_address(url):
        _log.error("notify: the address of a %s receiver is missing or is not https", receiver.type)
        return False
    body = json.dumps(slack_message(event) if receiver.type == SLACK else printable_values(event)).encode()
    where = f"{receiver.type} at {urlsplit(url).hostname}"
    pause = 1.0
    for attempts_left in reversed(range(ATTEMPTS)):
        why, wait = _post(url, body)
        if not why:
            return True
        if wait is None or not attempts_left:
            _log.error("notify: %s: %s", where, why)
            return False
        time.sleep(min(MAX_PAUSE, max(wait, pause)))
        pause *= 2
    return False


def slack_message(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the event as a message of Slack's incoming webhooks.

    Other chats accept it too.
    """
    values = printable_values(event)
    message = str(values.get("message", ""))[:MAX_MESSAGE]
    details = [f"{name} {values[name]}" for name in ("run", "migration") if values.get(name)]
    text = f"midstream: {values.get('kind', 'event')}: {message}" + (f" ({', '.join(details)})" if details else "")
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escaped)  # otherwise <!channel> of a message would notify a channel
    return {"text": text}


def _resolved(url: str) -> str:
    """Return the address; empty if its variable or file is missing."""
    source, _, name = url.partition(":")
    if source == "env":
        return os.environ.get(name, "").strip()
    if source == "file":
        try:
            return Path(name).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""
    return url


def _post(url: str, body: bytes) -> tuple[str, float | None]:
    """Send a body once; return why it was refused and when to try again.

    The reason is empty if it was accepted; the time is the seconds until another attempt.
    """
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "midstream"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=REQUEST_TIMEOUT) as answer:
            answer.read(1000)
            return "", None
    except urllib.error.HTTPError as error:
        if error.code not in BUSY:
            return f"it answered {error.code}", None
        after = error.headers.get("Retry-After", "")
        return f"it answered {error.code}", float(after) if after.isdecimal() else 0.0
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer ({type(error).__name__})", 0.0
