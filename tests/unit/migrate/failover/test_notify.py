"""Webhooks of the fleet file's notify:, plain and compatible with Slack."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.notify_config import NotifyConfig
from midstream.migrate import webhook
from midstream.migrate.notify import notify_all
from support.loopback import Loopback, Quiet
from support.module_time import replace_time

NOT_HTTP, BUSY = 0, 503
EVENT = {"event": "guard", "kind": "lost", "run": "webtext", "message": "gpu1 <!channel> & \x1b[31mlost"}


class Receiver(Loopback):
    def __init__(self, *statuses: int) -> None:
        super().__init__(_Handler, "webhook")
        self.statuses, self.bodies = list(statuses), []
        self.paths: list[str] = []

    bodies: list[Any]


class _Handler(Quiet):
    def do_POST(self) -> None:
        server: Receiver = self.server_of
        server.paths.append(self.path)
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status = server.statuses.pop(0) if server.statuses else 200
        if status == NOT_HTTP:
            self.wfile.write(b"who is there?\r\n\r\n")
            return
        self.send_response(status)
        if status == BUSY:
            self.send_header("Retry-After", "\xb2")  # a digit by Unicode, which no number can be made of
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_time(monkeypatch, webhook, sleep=lambda seconds: None)


def test_events_reach_command_and_receivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as plain, Receiver() as slack:
        monkeypatch.setenv("HOOK", f"{plain.url}/secret")
        (tmp_path / "slack").write_text(f"{slack.url}/services/T/B/secret\n")
        fleet = parse_fleet(
            f"hosts: {{here: {{type: local}}}}\non_event: cat > {tmp_path}/event\n"
            f"notify: [{{url: env:HOOK}}, {{type: slack, url: 'file:{tmp_path}/slack', kinds: [lost, needs you]}}]"
        )
        notify_all(fleet, EVENT)
        notify_all(fleet, {**EVENT, "kind": "finished"})
    assert [body["kind"] for body in plain.bodies] == ["lost", "finished"]
    assert plain.bodies[0]["run"] == "webtext"
    assert "\x1b" not in plain.bodies[0]["message"]
    (message,) = slack.bodies
    assert message["text"].startswith("midstream: lost: gpu1 &lt;!channel&gt; &amp; ")
    assert message["text"].endswith("(run webtext)")
    assert json.loads((tmp_path / "event").read_text())["kind"] == "finished"


@pytest.mark.parametrize(
    ("statuses", "accepted", "calls"),
    [
        ((500, 429, 200), True, 3), ((404,), False, 1), ((503, 503, 503), False, 3), ((302,), False, 1),
        ((NOT_HTTP, 200), True, 2),
    ],
    ids=["busy", "refused", "down", "redirect", "not http"],
)  # fmt: skip
def test_receiver_is_tried_again_while_busy(
    caplog: pytest.LogCaptureFixture, statuses: tuple[int, ...], accepted: bool, calls: int
) -> None:
    with Receiver(*statuses) as server, caplog.at_level(logging.ERROR):
        assert webhook.send(NotifyConfig(url=f"{server.url}/secret"), EVENT) is accepted
    assert server.paths == ["/secret"] * calls, "no redirect is followed"
    assert "secret" not in caplog.text, "the address may be a secret"
    assert bool(caplog.text) is not accepted


def test_missing_address_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    assert not webhook.send(NotifyConfig(url="env:NO_SUCH_HOOK"), EVENT)
    assert "the address of a webhook receiver is missing or is not https" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notify: {url: x}", "notify is no list of receivers"),
        (
            "notify: [{url: 'http://example.com/secret'}]",
            "notify[0].url is neither env:NAME nor file:PATH nor an https",
        ),
        ("notify: [{url: env:X, type: slak}]", "did you mean slack"),
        ("notify: [{url: env:X, kinds: [lots]}]", "did you mean lost"),
        ("notify: [{adress: env:X}]", "notify[0].adress is unknown"),
    ],
    ids=lambda value: "",
)
def test_invalid_receiver_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(text, "fleet.yaml")
    assert message in str(caught.value)
    assert "/secret" not in str(caught.value)
