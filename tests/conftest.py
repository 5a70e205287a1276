"""Shared fixtures, and the summary of tests that this machine could not run."""

from __future__ import annotations

import atexit
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.s3_server import S3Server, s3_server
from support.run_directory import RunDirectory

hypothesis.settings.register_profile("untimed", deadline=None)  # the time of an example depends on the machine
hypothesis.settings.load_profile("untimed")

# Where the environment forbids bytecode, each worker and each program that a test starts would compile all modules.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The code under test reads these; a test that needs one sets it.
for name in ("MIDSTREAM_FLEET", "MIDSTREAM_STATE", "MIDSTREAM_ROOT", "RUN_ID", "XLA_FLAGS"):
    os.environ.pop(name, None)

# Fixtures that several tests share run with this state directory. Each test has its own, with the same operator's key.
SHARED_STATE = tempfile.mkdtemp(prefix="midstream-tests-")
os.environ["MIDSTREAM_STATE"] = SHARED_STATE
atexit.register(shutil.rmtree, SHARED_STATE, ignore_errors=True)

SUITE = 1000  # tests at least; who selects fewer gets all of them
DRAWN = 15  # one of so many is drawn: so many commits that follow each other draw about two thirds of them
SCREENS = 4  # `make quick` runs one of so many tests of the terminal UI


def _seed_of_commit() -> int:
    """Return a number of the present commit, 0 without git: a commit draws the same tests on each day."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return int(subprocess.run(git, capture_output=True, text=True, check=True).stdout[:8], 16)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0


# The workers inherit it, so that all draw the same tests, in the same order.
os.environ.setdefault("MIDSTREAM_TEST_SEED", str(_seed_of_commit()))


def pytest_report_header() -> str:
    seed = os.environ["MIDSTREAM_TEST_SEED"]
    return (
        f"MIDSTREAM_TEST_SEED={seed} draws one of {DRAWN} of the longest tests and modules, and the order of modules "
        "and of tests in each"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw tests and modules marked ``drawn``; run the slowest directories first, in a drawn order.

    An order that is always the same hides tests that depend on earlier ones. A module is drawn with all of its tests,
    because its tests share what takes long. No worker is left with the slowest directories at the end.
    """
    if len(items) > SUITE and "not slow" in str(config.option.markexpr):
        groups = {item.nodeid: node.nodeid for item in items for node, _ in item.iter_markers_with_node("drawn")}
        names = sorted(set(groups.values()))
        random.Random("spread").shuffle(names)  # neighbours take similar times
        chosen = set(names[int(os.environ["MIDSTREAM_TEST_SEED"]) % DRAWN :: DRAWN])
        left = {item for item in items if item.nodeid in groups and groups[item.nodeid] not in chosen}
        if "not long" in str(config.option.markexpr):  # `make quick`
            screens = [item for item in items if "tui" in item.path.parts and item not in left]
            left.update(set(screens) - set(screens[int(os.environ["MIDSTREAM_TEST_SEED"]) % SCREENS :: SCREENS]))
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    shuffled = random.Random(int(os.environ["MIDSTREAM_TEST_SEED"]))
    modules = sorted({_module(item) for item in items})
    shuffled.shuffle(modules)
    places = {
        path: (place, random.Random(f"{os.environ['MIDSTREAM_TEST_SEED']} {path}"))
        for place, path in enumerate(modules)
    }
    keys = {item: (places[_module(item)][0], places[_module(item)][1].random()) for item in items}
    items.sort(key=keys.__getitem__)  # the tests of a module stay together, as they share fixtures
    order = {"faults": 0, "integration": 1}
    items.sort(key=lambda item: min((order.get(part, len(order)) for part in item.path.parts), default=len(order)))


def _module(item: pytest.Item) -> str:
    """Return the test's file below the project: the order is the same in every directory."""
    return item.nodeid.partition("::")[0]


def pytest_runtest_setup() -> None:
    """Heed SIGINT and SIGHUP where nohup, or a shell for its background jobs, has them ignored.

    Programs that a test starts would inherit it. Each time, because a library may restore what it has found.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per reason for skipped tests; it names what installs the missing part."""
    reasons: collections.Counter[str] = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, and what would run them")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An empty run directory below ``tmp_path``."""
    return RunDirectory(tmp_path)


@pytest.fixture(autouse=True)
def _closed_bucket_clients() -> Iterator[None]:
    """Close the connections of each test's clients, which the process would keep for a bucket that has ended."""
    yield
    if opened := sys.modules.get("midstream_core.object_store.open_bucket"):
        opened.close_clients()
    if sessions := sys.modules.get("midstream_core.object_store.s3_session"):
        sessions.open_session.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten_services() -> Iterator[None]:
    """Forget what a program has remembered of a SLURM controller, of hosts and of buckets, as its end would."""
    yield
    if streams := sys.modules.get("midstream.transfer.direct_streams"):
        streams.UNREACHABLE.clear()
    if slurm := sys.modules.get("midstream_host.runs.slurm"):
        slurm.forget()
    if buckets := sys.modules.get("midstream_engine.checkpoint.stores.bucket_objects"):
        buckets._warned.clear()


@pytest.fixture
def _same_environment() -> Iterator[None]:
    """Fail a test that leaves its state directory or servers to those after it; take other variables back.

    Libraries set some of their own.
    """
    before = {**os.environ}
    yield
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    os.environ.clear()
    os.environ.update(before)
    left = sorted(name for name in changed if name.startswith("MIDSTREAM_") or name in ("HOME", "PATH", "RUN_ID"))
    assert not left, f"the test leaves other variables: {left}"


@pytest.fixture(autouse=True)
def _private_state_directory(_same_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each test its own state directory, apart from that of the user who runs it."""
    from midstream.ownership import operator_key

    shared = operator_key.made_key_file()
    state = tmp_path_factory.mktemp("state")
    shutil.copy(shared, state / operator_key.FILE)
    with pytest.MonkeyPatch.context() as patch:  # not the test's, which it may undo
        patch.setenv("MIDSTREAM_STATE", str(state))
        yield


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A server with an empty bucket ``runs``, used by all Google clients started during the test."""
    with bucket_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server with an empty bucket ``runs``, used by all S3 clients started during the test."""
    with s3_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone, because journals are shown in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
