"""Objects of a checkpoint are sent while others are written.

The manifest decides which of them are valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.report_types import Complete, Named, Object
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.journal import Journal, read_events
from midstream.migrate.modes.registry import WARM
from midstream.migrate.steps import streamed_copy
from midstream.migrate.steps.migration import Migration
from midstream.watch.watcher import Watcher
from midstream_core import records
from support.checkpoints.trees import cell, files
from support.migrations.sample_plan import PLAN, changed

NAME = "step-9-a001"
A, B, LATE = (cell(name) for name in ("a", "b/c", "late"))
CONTENTS = {A: b"first", B: b"second", LATE: b"third"}


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    file = tmp_path / "fleet.yaml"
    file.write_text("".join(["hosts:\n", *(f'  {n}: {{type: local, root: "{tmp_path}/{n}"}}\n' for n in ("a", "b"))]))
    fleet = load_fleet(file)
    plan = changed(PLAN, migration="m", mode=WARM)
    directory = migration_directory.create(plan, fleet.text)
    hosts = HostPool(fleet)
    return Migration(plan, directory, Journal(directory.journal_file), fleet, hosts, Watcher(fleet, hosts))


def write_status(paths: records.RunPaths, state: str, acknowledged: int = 0) -> None:
    identity = records.this_process().to_json()
    status = records.Status(
        state=state, step=9, process=0, heartbeat=0.0, attempt=1, acknowledged=acknowledged, **identity
    )
    status.write(paths.attempt(1).status())


def save_slowly(paths: records.RunPaths, target: Path, rewritten: bool, reused: bool) -> None:
    """Write the objects, then the manifest.

    The last object is written when the first ones have reached ``target``; with ``reused`` the target has one already.
    """
    here = Path(paths.checkpoint(NAME))
    for path in CONTENTS:
        (here / path).parent.mkdir(parents=True)
    for path in (A, B):
        (here / path).write_bytes(CONTENTS[path])
    deadline = time.monotonic() + 120
    awaited = (B,) if reused else (A, B)
    while not all((target / path).exists() for path in awaited) and time.monotonic() < deadline:
        time.sleep(0.02)
    contents = {**CONTENTS, A: b"FIRST"} if rewritten else CONTENTS
    for path, data in contents.items():
        (here / path).write_bytes(data)
    objects = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in contents.items()
    ]
    records.Manifest(records.FORMAT, records.FORMAT_VERSION, "r", 9, 1, 1, 0.0, "d", [], objects).write(
        str(here / records.MANIFEST)
    )
    write_status(paths, records.STOPPED, acknowledged=3)


EARLIER = [{"path": path, "size": len(data), "sha256": "0" * 64} for path, data in CONTENTS.items()]
FIRST = Object(**EARLIER[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "left"),
    [("calm", 5), ("rewritten", 10), ("killed", 5), ("reused", 5)],
)
def test_complete_objects_are_sent_before_the_manifest(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, case: str, left: int
) -> None:
    monkeypatch.setattr(streamed_copy, "MIN_STREAMED_BYTES", 0)
    monkeypatch.setattr(streamed_copy, "MIN_REUSED_BYTES", 0)
    paths, target = migration.source_paths, Path(migration.target_paths.checkpoint(NAME))
    Path(paths.attempt(1).dir).mkdir(parents=True)
    records.first_fence("a").write(paths.fence)
    write_status(paths, records.SAVING)
    saving = threading.Thread(target=save_slowly, args=(paths, target, case == "rewritten", case == "reused"))
    saving.start()
    earlier = records.Manifest(records.FORMAT, records.FORMAT_VERSION, "r", 4, 1, 1, 0.0, "d", [], EARLIER)
    if case == "reused":  # a frozen object: the target has it in an older checkpoint
        older = Path(migration.target_paths.checkpoint("step-4-a001"))
        frozen = {"path": A, "size": 5, "sha256": hashlib.sha256(CONTENTS[A]).hexdigest()}
        earlier = replace(earlier, objects=[frozen, *EARLIER[1:]])
        (older / A).parent.mkdir(parents=True)
        (older / A).write_bytes(CONTENTS[A])
        replace(earlier, objects=[frozen]).write(str(older / records.MANIFEST))
    with streamed_copy.StreamedCopy() as streamed:
        try:
            answer = streamed_copy.stream_until_answered(migration, 1, 3, 5, earlier, streamed)
        finally:
            saving.join()
        assert (answer.state, streamed.name) == (records.STOPPED, NAME)
        assert answer.described is not None
        assert streamed.feed is not None
        early = {B} if case == "reused" else {A, B}
        assert streamed.sent.keys() - {LATE} == early  # LATE may be included
        wait_for(lambda: streamed.feed is not None and streamed.feed.bytes_sent >= sum(len(CONTENTS[p]) for p in early))
        assert not (target / records.MANIFEST).exists(), "without a manifest it is no checkpoint"
        if case == "killed":  # the continuing process has no list of sent objects
            streamed.close()
            streamed = streamed_copy.StreamedCopy()
        if case in ("killed", "rewritten"):  # partial objects of a cut copy
            left_over = target.parent / ".incoming/dead"
            left_over.mkdir(parents=True)
            (left_over / "part").write_bytes(b"first")
        assert streamed_copy.complete(migration, NAME, streamed) <= left
    here = Path(paths.checkpoint(NAME))
    for path in (*CONTENTS, records.MANIFEST):
        assert (target / path).read_bytes() == (here / path).read_bytes()
    assert set(files(target)) == {*CONTENTS, records.MANIFEST}, "no temporary files"
    assert not (target.parent / ".incoming").exists() or not list((target.parent / ".incoming").iterdir())
    messages = [event.message for event in read_events(migration.directory.journal_file)]
    assert any("was rewritten" in line for line in messages) == (case == "rewritten")
    assert any("in another checkpoint" in line for line in messages) == (case == "reused")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_exited_follower_raises_a_host_error(migration: Migration) -> None:
    attempt = migration.source_paths.attempt(1)
    Path(attempt.dir).mkdir(parents=True)
    Path(attempt.status()).write_text("no status at all")
    with (
        streamed_copy.StreamedCopy() as streamed,
        pytest.raises(HostError, match=r"follows the save has exited: .*status"),
    ):
        streamed_copy.stream_until_answered(migration, 1, 3, 5, None, streamed)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (Named("step-4-a001"), "saves step-4-a001; expected is a step from 5 on"),
        (Named("step-9-a002"), "saves step-9-a002"),
        (Complete(NAME, [replace(FIRST, size=6)]), f"{A}, 6 bytes"),
        (Complete(NAME, [replace(FIRST, path=cell("x"))]), cell("x")),
        (Complete(NAME, [replace(FIRST, path="yaml.py")]), "yaml.py"),
    ],
)
def test_reports_about_unrequested_objects_are_refused(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, report: Named | Complete, message: str
) -> None:
    """Only a changed program on the source reports such lines."""
    monkeypatch.setattr(streamed_copy, "MIN_STREAMED_BYTES", 1 << 40)  # so that no stream is opened
    reports = iter([Named(NAME), report] if isinstance(report, Complete) else [report])

    @contextlib.contextmanager
    def following(*_: Any) -> Iterator[streamed_copy.NextReport]:
        yield lambda _: next(reports)

    monkeypatch.setattr(streamed_copy, "_following_save", following)
    earlier = records.Manifest(records.FORMAT, records.FORMAT_VERSION, "r", 4, 1, 1, 0.0, "d", [], EARLIER)
    with streamed_copy.StreamedCopy() as streamed, pytest.raises(MidstreamError, match=re.escape(message)):
        streamed_copy.stream_until_answered(migration, 1, 3, 5, earlier, streamed)
