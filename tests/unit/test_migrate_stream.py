"""Objects of a checkpoint travel while others are still being written; what the manifest says of them decides."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.fleet.load import load_fleet
from midstream.hosts.open import Hosts
from midstream.migrate import directory, model, stream
from midstream.migrate.journal import Journal, read_events
from midstream.migrate.move import Move
from midstream.watch.watcher import Watch
from midstream_engine import records
from unit.sample_plan import PLAN

NAME = "step-9-a001"
CONTENTS = {"a": b"first", "b/c": b"second", "late": b"third"}


@pytest.fixture
def move(tmp_path: Path) -> Move:
    file = tmp_path / "fleet.yaml"
    file.write_text("".join(["hosts:\n", *(f'  {n}: {{type: local, root: "{tmp_path}/{n}"}}\n' for n in ("a", "b"))]))
    fleet = load_fleet(file)
    plan = replace(PLAN, migration="m", mode=model.HANDOVER)
    place = directory.create(plan, fleet.text)
    hosts = Hosts(fleet)
    return Move(plan, place, Journal(place.journal_file), fleet, hosts, Watch(fleet, hosts))


def tell(paths: records.RunPaths, state: str, order: int = 0) -> None:
    identity = records.this_process().to_json()
    status = records.Status(state=state, step=9, process=0, heartbeat=0.0, attempt=1, order=order, **identity)
    status.write(paths.attempt(1).status())


def save_slowly(paths: records.RunPaths, target: Path, rewritten: bool, held: bool) -> None:
    """Write the objects, the last one only when the first ones have reached ``target``, but for one that is ``held``
    there; then the manifest."""
    here = Path(paths.checkpoint(NAME))
    (here / "b").mkdir(parents=True)
    for path in ("a", "b/c"):
        (here / path).write_bytes(CONTENTS[path])
    deadline = time.monotonic() + 120
    awaited = ("b/c",) if held else ("a", "b/c")
    while not all((target / path).exists() for path in awaited) and time.monotonic() < deadline:
        time.sleep(0.02)
    contents = {**CONTENTS, "a": b"FIRST"} if rewritten else CONTENTS
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
    move: Move, monkeypatch: pytest.MonkeyPatch, case: str, left: int
):
    monkeypatch.setattr(stream, "WORTHWHILE", 0)
    monkeypatch.setattr(stream, "WORTH_A_LOOK", 0)
    paths, target = move.source_paths, Path(move.target_paths.checkpoint(NAME))
    Path(paths.attempt(1).dir).mkdir(parents=True)
    records.first_fence("a").write(paths.fence)
    tell(paths, records.SAVING)
    saving = threading.Thread(target=save_slowly, args=(paths, target, case == "rewritten", case == "held"))
    saving.start()
    earlier = records.Manifest(records.FORMAT, 1, "r", 4, 1, 1, 0.0, "d", [], EARLIER)
    if case == "held":  # an object that is not trained: the target has it in an older checkpoint
        older = Path(move.target_paths.checkpoint("step-4-a001"))
        frozen = {"path": "a", "size": 5, "sha256": hashlib.sha256(CONTENTS["a"]).hexdigest()}
        earlier = replace(earlier, objects=[frozen, *EARLIER[1:]])
        older.mkdir(parents=True)
        (older / "a").write_bytes(CONTENTS["a"])
        replace(earlier, objects=[frozen]).write(str(older / records.MANIFEST))
    with stream.Streamed() as streamed:
        try:
            answer = stream.stream_until_answered(move, 1, 3, 5, earlier, streamed)
        finally:
            saving.join()
        assert (answer.state, streamed.name) == (records.STOPPED, NAME)
        assert answer.described is not None
        assert streamed.feed is not None
        early = {"b/c"} if case == "held" else {"a", "b/c"}
        assert streamed.sent.keys() - {"late"} == early  # that may have been seen, too
        wait_for(lambda: streamed.feed is not None and streamed.feed.bytes_sent >= sum(len(CONTENTS[p]) for p in early))
        assert not (target / records.MANIFEST).exists(), "what has arrived is no checkpoint yet"
        if case == "killed":  # whoever goes on knows of nothing that was sent
            streamed.drop()
            streamed = stream.Streamed()
        if case in ("killed", "rewritten"):  # parts of objects that were cut on their way
            left_over = target.parent / ".incoming/dead"
            left_over.mkdir(parents=True)
            (left_over / "part").write_bytes(b"first")
        assert stream.complete(move, NAME, streamed) <= left
    here = Path(paths.checkpoint(NAME))
    for path in (*CONTENTS, records.MANIFEST):
        assert (target / path).read_bytes() == (here / path).read_bytes()
    assert sorted(path.name for path in target.iterdir()) == ["a", "b", "late", records.MANIFEST], "nothing temporary"
    assert not (target.parent / ".incoming").exists() or not list((target.parent / ".incoming").iterdir())
    told = [event.message for event in read_events(move.directory.journal_file)]
    assert any("was written anew" in line for line in told) == (case == "rewritten")
    assert any("in another checkpoint" in line for line in told) == (case == "held")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_source_whose_follower_ends_is_asked_in_other_ways(move: Move):
    attempt = move.source_paths.attempt(1)
    Path(attempt.dir).mkdir(parents=True)
    Path(attempt.status()).write_text("no status at all")
    with stream.Streamed() as streamed, pytest.raises(HostError, match=r"follows the save there has ended: .*status"):
        stream.stream_until_answered(move, 1, 3, 5, None, streamed)
