"""Objects of a checkpoint travel while others are still being written; what the manifest says of them decides."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.fleet.load import load_fleet
from midstream.hosts.open import Hosts
from midstream.migrate import directory, model, stream
from midstream.migrate.journal import Journal
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


def save_slowly(paths: records.RunPaths, target: Path, rewritten: bool) -> None:
    """Write the objects, the last one only when the first ones have reached ``target``; then the manifest."""
    here = Path(paths.checkpoint(NAME))
    (here / "b").mkdir(parents=True)
    for path in ("a", "b/c"):
        (here / path).write_bytes(CONTENTS[path])
    deadline = time.monotonic() + 120
    while not all((target / path).exists() for path in ("a", "b/c")) and time.monotonic() < deadline:
        time.sleep(0.02)
    contents = {**CONTENTS, "a": b"FIRST"} if rewritten else CONTENTS
    for path, data in contents.items():
        (here / path).write_bytes(data)
    objects = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in contents.items()
    ]
    records.Manifest(records.FORMAT, 1, "r", 9, 1, 1, 0.0, "d", [], objects).write(str(here / records.MANIFEST))
    tell(paths, records.STOPPED, order=3)


@pytest.mark.parametrize(("rewritten", "killed", "left"), [(False, False, 5), (True, False, 10), (False, True, 5)])
def test_what_is_whole_goes_ahead_and_the_manifest_decides(
    move: Move, monkeypatch: pytest.MonkeyPatch, rewritten: bool, killed: bool, left: int
):
    monkeypatch.setattr(stream, "WORTHWHILE", 0)
    paths, target = move.source_paths, Path(move.target_paths.checkpoint(NAME))
    Path(paths.attempt(1).dir).mkdir(parents=True)
    records.first_fence("a").write(paths.fence)
    tell(paths, records.SAVING)
    saving = threading.Thread(target=save_slowly, args=(paths, target, rewritten))
    saving.start()
    with stream.Streamed() as streamed:
        try:
            sizes = {path: len(data) for path, data in CONTENTS.items()}
            answer = stream.stream_until_answered(move, 1, 3, 5, sizes, streamed)
        finally:
            saving.join()
        assert (answer.state, streamed.name) == (records.STOPPED, NAME)
        assert answer.described is not None
        assert streamed.sent.keys() == {"a", "b/c"}
        assert streamed.settle(move) == []
        assert streamed.arrived.keys() == {"a", "b/c"}
        assert not (target / records.MANIFEST).exists(), "what has arrived is no checkpoint yet"
        if killed:  # whoever goes on knows of nothing that was sent
            streamed = stream.Streamed()
        assert stream.complete(move, NAME, streamed) == left
    here = Path(paths.checkpoint(NAME))
    for path in (*CONTENTS, records.MANIFEST):
        assert (target / path).read_bytes() == (here / path).read_bytes()
    assert not list(target.glob(".ahead-*"))
    assert not list(here.glob(".ahead-*"))


@pytest.mark.parametrize("damaged", [False, True])
def test_lots_are_under_way_side_by_side_and_one_that_fails_is_sent_again(move: Move, damaged: bool):
    here, target = Path(move.source_paths.checkpoint(NAME)), Path(move.target_paths.checkpoint(NAME))
    contents = {f"{lot}/{n}": bytes([lot, n]) * 70_000 for lot in range(2) for n in range(3)}
    entries = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in contents.items()
    ]
    for path, data in contents.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(data)
    with stream.Streamed() as streamed:
        streamed.begin(NAME)
        for lot in range(2):
            described = [dict(entry) for entry in entries if entry["path"].startswith(f"{lot}/")]
            if damaged and lot == 1:
                described[0]["sha256"] = "0" * 64  # as if the object had been written anew since
            (here / f".ahead-{lot + 1}.json").write_text(json.dumps({"objects": described}))
            streamed.send(move, f".ahead-{lot + 1}.json", described)
        assert streamed.under_way == 2
        records.Manifest(records.FORMAT, 1, "r", 9, 1, 1, 0.0, "d", [], entries).write(str(here / records.MANIFEST))
        assert stream.complete(move, NAME, streamed) > 0
        assert damaged or streamed.bytes_done == sum(map(len, contents.values()))
    for path in (*contents, records.MANIFEST):
        assert (target / path).read_bytes() == (here / path).read_bytes()
    assert sorted(path.name for path in target.iterdir()) == ["0", "1", records.MANIFEST], "nothing temporary is left"
