"""Notices of AWS and Azure: in the process beside an engine, and on a host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from midstream_core import aws_metadata, azure_metadata, cloud_notices, google_metadata, records
from midstream_host import preemption_watch as preemption_notices
from midstream_host.machine import preemption_notices as host_notices
from simulators.cloud_metadata import AwsMetadata, AzureMetadata

ENGINE = """
import os, signal, sys, time
from midstream_core import records
state, path = sys.argv[1:]
me = records.this_process()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
records.Status(state, 3, 0, me.boot_id, me.pid, me.start_ticks, time.time(), attempt=1).write(path)
time.sleep(60)
"""
TERMINATE = {"action": "terminate", "time": "2026-11-25T08:22:00Z"}


def supervise(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    files = records.AttemptPaths(str(directory))
    argv = [sys.executable, "-m", "midstream_host.supervise", "--attempt", files.dir, "--process", "0", "--"]
    return subprocess.run(
        [*argv, sys.executable, "-c", ENGINE, records.TRAINING, files.status(0)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_aws_notice_makes_training_engine_save(tmp_path: Path) -> None:
    with AwsMetadata() as server:
        server.action = TERMINATE
        ended = supervise(tmp_path, **{aws_metadata.VARIABLE: server.url})
    assert (ended.returncode, "spot terminate at 2026-11-25T08:22:00Z" in ended.stdout) == (7, True), ended


def test_azure_notice_makes_training_engine_save(tmp_path: Path) -> None:
    with AzureMetadata() as server:
        server.event("Preempt", "vm_3")
        ended = supervise(tmp_path, **{azure_metadata.VARIABLE: server.url})
    assert (ended.returncode, "preempt not before Wed, 25 Nov 2026" in ended.stdout) == (7, True), ended


def test_firmware_with_other_bytes_names_no_cloud(tmp_path: Path) -> None:
    """An error would end the supervisor, and the engine with it, at each start."""
    firmware = tmp_path / "firmware"
    firmware.write_bytes(b"To be filled by O.E.M.\xff\xfe\n")
    assert google_metadata.metadata_server(str(firmware)) == ""
    assert aws_metadata.metadata_address(str(firmware)) == ""
    assert azure_metadata.metadata_address(str(firmware)) == ""


def test_aws_notice_needs_an_action() -> None:
    with AwsMetadata() as server:
        assert aws_metadata.notices(server.url) == []
        server.action = TERMINATE
        assert aws_metadata.notices(server.url) == ["spot terminate at 2026-11-25T08:22:00Z"]
        for broken in ("<html>", '{"action": "dance"}', "[1]"):
            server.action = broken
            assert aws_metadata.notices(server.url) is None, "an answer that cannot be read proves nothing"
    assert aws_metadata.notices(server.url) is None, "nor does silence"


def test_azure_notice_names_this_machine() -> None:
    with AzureMetadata() as server:
        assert azure_metadata.notices(server.url) == []
        server.event("Preempt", "vm_4")
        server.event("Freeze", "vm_3")
        assert azure_metadata.notices(server.url) == [], "another machine of the scale set, and a pause of seconds"
        server.event("Terminate", "VM_3", when="")
        assert azure_metadata.notices(server.url) == ["terminate now"]
        server.failing = 503
        assert azure_metadata.notices(server.url) is None


def test_answer_that_is_not_http_proves_nothing() -> None:
    """A poller that ended with an error would not see the notice that follows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            for _ in range(4):
                caller, _ = listener.accept()
                with caller:
                    caller.recv(1 << 16)
                    caller.sendall(b"who is there?\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert google_metadata.notices(address) is None
        assert aws_metadata.notices(f"http://{address}") is None
        assert azure_metadata.notices(f"http://{address}") is None
        thread.join()


def test_requests_go_to_the_own_cloud_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        aws_metadata.metadata_address(str(tmp_path / "none")),
        azure_metadata.metadata_address(str(tmp_path / "none")),
    ) == ("", "")
    (tmp_path / "vendor").write_text("Amazon EC2\n")
    (tmp_path / "tag").write_text(f"{azure_metadata.AZURE_TAG}\n")
    assert aws_metadata.metadata_address(str(tmp_path / "vendor")) == aws_metadata.ADDRESS
    assert azure_metadata.metadata_address(str(tmp_path / "tag")) == azure_metadata.ADDRESS
    monkeypatch.setenv(aws_metadata.DISABLED, "true")
    assert aws_metadata.metadata_address(str(tmp_path / "vendor")) == ""
    monkeypatch.delenv(aws_metadata.DISABLED)
    monkeypatch.setenv(aws_metadata.VARIABLE, "http://127.0.0.1:1/")
    assert list(cloud_notices.sources(str(tmp_path / "none"))) == ["aws"]


def test_host_reports_notice_to_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AwsMetadata() as aws, AzureMetadata() as azure:
        monkeypatch.setenv(aws_metadata.VARIABLE, aws.url)
        monkeypatch.setenv(azure_metadata.VARIABLE, azure.url)
        read = lambda: host_notices.read(str(tmp_path / "scheduled"), str(tmp_path / "product"))  # noqa: E731
        assert read() is None
        azure.event("Redeploy", "vm_3")
        assert read() == host_notices.Notice(
            "preempted", "the provider ends this machine: redeploy not before Wed, 25 Nov 2026 18:29:47 GMT"
        )
        azure.events.clear()
        aws.action = TERMINATE
        found = read()
        assert found is not None
        assert found.message == "the provider ends this machine: spot terminate at 2026-11-25T08:22:00Z"


def test_unreadable_answer_withdraws_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[str] | None] = [["a"], None, ["a"], [], ["a", "b"]]
    done = threading.Event()

    def read() -> list[str] | None:
        if not answers:
            done.set()
            return None
        return answers.pop(0)

    monkeypatch.setattr(preemption_notices, "sources", lambda product: {"aws": read})
    notices = preemption_notices.PreemptionNotices(interval=0.001)
    notices.start()
    assert done.wait(60)
    assert [notices.take() for _ in range(4)] == ["a", "a", "b", ""], "again only after it was withdrawn"
