"""What all tests share: the closing count of tests that this machine could not run."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator

import hypothesis
import pytest

from simulators.bucket import BucketServer, bucket_server

hypothesis.settings.register_profile("untimed", deadline=None)  # how long an example takes is the machine's affair
hypothesis.settings.load_profile("untimed")

# Work under test reads these; a test that wants one sets it.
for name in ("MIDSTREAM_FLEET", "MIDSTREAM_STATE", "MIDSTREAM_ROOT", "RUN_ID", "XLA_FLAGS"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rooms whose tests take longest go first, so that no process is left alone with them at the end."""
    rooms = ("faults", "integration")
    items.sort(key=lambda item: next((n for n, room in enumerate(rooms) if f"/{room}/" in str(item.path)), len(rooms)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for every reason that tests were skipped for; the reason names what installs the missing part."""
    reasons: collections.Counter[str] = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, and what would run them")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the migrations of the person who runs it."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A server with an empty bucket ``runs``, which all clients of Google's that start meanwhile talk to."""
    with bucket_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
