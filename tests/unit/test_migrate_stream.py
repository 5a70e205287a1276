"""Objects of a checkpoint travel while others are still being written; what the manifest says of them decides."""

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
from midstream.hosts.host_pool import Hosts
from midstream.migrate import model
from midstream.migrate.execution import migration_directory
from midstream.migrate.execution.journal import Journal, read_events
from midstream.migrate.execution.migration import Migration
from midstream.migrate.phases import streamed_copy
from midstream.watch.watcher import Watch
from midstream_engine import records
from support.trees import cell, files
from unit.sample_plan import PLAN

NAME = "step-9-a001"
A, B, LATE = (cell(name) for name in ("a", "b/c", "late"))
CONTENTS = {A: b"first", B: b"second", LATE: b"third"}


@pytest.fixture
def move(tmp_path: Path) -> Migration:
    file = tmp_path / "fleet.yaml"
    file.write_text("".join(["hosts:\n", *(f'  {n}: {{type: local, root: "{tmp_path}/{n}"}}\n' for n in ("a", "b"))]))
    fleet = load_fleet(file)
    plan = replace(PLAN, migration="m", mode=model.WARM)
    place = migration_directory.create(plan, fleet.text)
    hosts = Hosts(fleet)
    return Migration(plan, place, Journal(place.journal_file), fleet, hosts, Watch(fleet, hosts))


def tell(paths: records.RunPaths, state: str, order: int = 0) -> None:
    identity = records.this_process().to_json()
    status = records.Status(state=state, step=9, process=0, heartbeat=0.0, attempt=1, acknowledged=order, **identity)
    status.write(paths.attempt(1).status())


def save_slowly(paths: records.RunPaths, target: Path, rewritten: bool, held: bool) -> None:
    """Write the objects, the last one only when the first ones have reached ``target``, but for one that is ``held``
    there; then the manifest."""
    here = Path(paths.checkpoint(NAME))
    for path in CONTENTS:
        (here / path).parent.mkdir(parents=True)
    for path in (A, B):
        (here / path).write_bytes(CONTENTS[path])
    deadline = time.monotonic() + 120
    awaited = (B,) if held else (A, B)
    while not all((target / path).exists() for path in awaited) and time.monotonic() < deadline:
        time.sleep(0.02)
    contents = {**CONTENTS, A: b"FIRST"} if rewritten else CONTENTS
    for path, data in contents.items():
        (here / path).write_bytes(data)
    objects = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in contents.items()
    ]
    records.Manifest(records.FORMAT, 1, "r", 9, 1, 1, 0.0, "d", [], objects).write(str(here / records.MANIFEST))
    tell(paths, records.STOPPED, order=3)


EARLIER = [{"path": path, "size": len(data), "sha256": "0" * 64} for path, data in CONTENTS.items()]


@pytest.mark.parametrize(
    ("case", "left"),
    [("calm", 5), ("rewritten", 10), ("killed", 5), ("held", 5)],
)
def test_what_is_whole_goes_ahead_and_the_manifest_decides(
    move: Migration, monkeypatch: pytest.MonkeyPatch, case: str, left: int
):
    monkeypatch.setattr(streamed_copy, "WORTHWHILE", 0)
    monkeypatch.setattr(streamed_copy, "WORTH_A_LOOK", 0)
    paths, target = move.source_paths, Path(move.target_paths.checkpoint(NAME))
    Path(paths.attempt(1).dir).mkdir(parents=True)
    records.first_fence("a").write(paths.fence)
    tell(paths, records.SAVING)
    saving = threading.Thread(target=save_slowly, args=(paths, target, case == "rewritten", case == "held"))
    saving.start()
    earlier = records.Manifest(records.FORMAT, 1, "r", 4, 1, 1, 0.0, "d", [], EARLIER)
    if case == "held":  # an object that is not trained: the target has it in an older checkpoint
        older = Path(move.target_paths.checkpoint("step-4-a001"))
        frozen = {"path": A, "size": 5, "sha256": hashlib.sha256(CONTENTS[A]).hexdigest()}
        earlier = replace(earlier, objects=[frozen, *EARLIER[1:]])
        (older / A).parent.mkdir(parents=True)
        (older / A).write_bytes(CONTENTS[A])
        replace(earlier, objects=[frozen]).write(str(older / records.MANIFEST))
    with streamed_copy.Streamed() as streamed:
        try:
            answer = streamed_copy.stream_until_answered(move, 1, 3, 5, earlier, streamed)
        finally:
            saving.join()
        assert (answer.state, streamed.name) == (records.STOPPED, NAME)
        assert answer.described is not None
        assert streamed.feed is not None
        early = {B} if case == "held" else {A, B}
        assert streamed.sent.keys() - {LATE} == early  # that may have been seen, too
        wait_for(lambda: streamed.feed is not None and streamed.feed.bytes_sent >= sum(len(CONTENTS[p]) for p in early))
        assert not (target / records.MANIFEST).exists(), "what has arrived is no checkpoint yet"
        if case == "killed":  # whoever goes on knows of nothing that was sent
            streamed.drop()
            streamed = streamed_copy.Streamed()
        if case in ("killed", "rewritten"):  # parts of objects that were cut on their way
            left_over = target.parent / ".incoming/dead"
            left_over.mkdir(parents=True)
            (left_over / "part").write_bytes(b"first")
        assert streamed_copy.complete(move, NAME, streamed) <= left
    here = Path(paths.checkpoint(NAME))
    for path in (*CONTENTS, records.MANIFEST):
        assert (target / path).read_bytes() == (here / path).read_bytes()
    assert set(files(target)) == {*CONTENTS, records.MANIFEST}, "nothing temporary"
    assert not (target.parent / ".incoming").exists() or not list((target.parent / ".incoming").iterdir())
    told = [event.message for event in read_events(move.directory.journal_file)]
    assert any("was written anew" in line for line in told) == (case == "rewritten")
    assert any("in another checkpoint" in line for line in told) == (case == "held")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_source_whose_follower_ends_is_asked_in_other_ways(move: Migration):
    attempt = move.source_paths.attempt(1)
    Path(attempt.dir).mkdir(parents=True)
    Path(attempt.status()).write_text("no status at all")
    with (
        streamed_copy.Streamed() as streamed,
        pytest.raises(HostError, match=r"follows the save there has ended: .*status"),
    ):
        streamed_copy.stream_until_answered(move, 1, 3, 5, None, streamed)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"event": "named", "name": "step-4-a001"}, "saves step-4-a001, and waits for a step from 5 on"),
        ({"event": "named", "name": "step-9-a002"}, "saves step-9-a002"),
        ({"event": "whole", "name": NAME, "objects": [{**EARLIER[0], "size": 6}]}, f"{A}, 6 bytes"),
        ({"event": "whole", "name": NAME, "objects": [{**EARLIER[0], "path": cell("x")}]}, cell("x")),
        ({"event": "whole", "name": NAME, "objects": [{**EARLIER[0], "path": "yaml.py"}]}, "yaml.py"),
    ],
)
def test_a_source_names_only_what_was_asked_for_of_the_checkpoint_that_it_saves(
    move: Migration, monkeypatch: pytest.MonkeyPatch, line: dict[str, Any], said: str
):
    """Its own program would not say so: these are the lines of another one."""
    monkeypatch.setattr(
        streamed_copy, "WORTHWHILE", 1 << 40
    )  # what is asked for is known, and nothing is opened for it
    lines = iter([{"event": "named", "name": NAME}, line] if line["event"] == "whole" else [line])

    @contextlib.contextmanager
    def following(*_: Any) -> Iterator[streamed_copy.News]:
        yield lambda seconds: next(lines)

    monkeypatch.setattr(streamed_copy, "_following", following)
    earlier = records.Manifest(records.FORMAT, 1, "r", 4, 1, 1, 0.0, "d", [], EARLIER)
    with streamed_copy.Streamed() as streamed, pytest.raises(MidstreamError, match=re.escape(said)):
        streamed_copy.stream_until_answered(move, 1, 3, 5, earlier, streamed)
