"""Damaged records: commands that act on the run refuse and name host and file.

Other runs are not affected, and ``--repair`` restores what the evidence determines.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from support.local_fleet import CONFIG, ENDED, Fleet, stopped_run
from support.run_directory import RunDirectory, dead_process

pytestmark = pytest.mark.drawn


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    return Fleet(tmp_path, capsys, "here", "there")


@pytest.fixture
def run(fleet: Fleet) -> RunDirectory:
    """Create a run that stopped at step 8, with a checkpoint of step 8."""
    return stopped_run(fleet.roots["here"])


def damage(path: str, content: bytes = b'{"epoch": 1, "hol') -> bytes:
    """Damage a file; return its content."""
    held = Path(path).read_bytes()
    Path(path).write_bytes(content)
    return held


FILES: dict[str, Callable[[records.RunPaths], str]] = {
    "fence.json": lambda paths: paths.fence,
    "lineage.json": lambda paths: paths.lineage,
    "attempts/001/status-0.json": lambda paths: paths.attempt(1).status(),
}


def test_fence_of_a_newer_midstream_is_not_repaired(fleet: Fleet, run: RunDirectory) -> None:
    newer = {**records.read_json(run.paths.fence), "format": 2}
    records.write_json(run.paths.fence, newer)
    stopped_run(fleet.roots["there"])  # its fence can be read, and would determine the other one
    assert "fence.json: format 2 is newer than this midstream reads (1): update midstream" in fleet.refused(
        "--stop", "solo"
    )
    line = fleet.refused("--repair", "solo", "--on", "here", "--yes")
    assert "fence.json: a newer midstream wrote it: update midstream" in line
    assert records.read_json(run.paths.fence) == newer


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("fence.json", b'{"epoch": 1, "hol'),
        ("attempts/001/status-0.json", b""),
        ("lineage.json", b'{"run_id": "solo", "attempts": [null]}'),
    ],
)
def test_commands_refuse_unreadable_run_until_repaired(
    fleet: Fleet, run: RunDirectory, tmp_path: Path, file: str, content: bytes
) -> None:
    path = FILES[file](run.paths)
    held = damage(path, content)
    config = tmp_path / "tiny.yaml"
    config.write_text(CONFIG)
    commands = (
        ("--migrate", "solo", "--to", "there", "--yes"),
        ("--launch", str(config), "--on", "there", "--run-id", "solo"),
        ("--launch", str(config), "--on", "here", "--run-id", "solo"),
        ("--stop", "solo"),
        ("--clean", "solo", "--yes"),
    )
    for command in commands:
        line = fleet.refused(*command)
        assert "here: " in line, line
        assert f"{file}: " in line, line
        assert "midstream --repair solo --on here" in line, line
    assert not (fleet.roots["there"] / "runs").exists(), "a second lineage was begun"

    # The command of the printed hint shows the repair, and writes nothing.
    before = fleet.tree()
    code, out, err = fleet("--repair", "solo", "--on", "here")
    assert code == 0, err
    assert f"here: solo/{file}: " in out
    assert "evidence: " in out
    assert fleet.tree() == before
    hint = re.search(r"midstream (--repair solo --on here --yes) writes it", err)
    assert hint is not None, err
    code, out, err = fleet(*hint[1].split())
    assert code == 0, err
    backups = [name for name in os.listdir(Path(path).parent) if name.startswith(f"{Path(path).name}.damaged-")]
    assert len(backups) == 1
    assert (Path(path).parent / backups[0]).read_bytes() == content
    if file in ("fence.json", "lineage.json"):
        assert json.loads(Path(path).read_bytes()) == json.loads(held)
    if file.endswith("status-0.json"):
        status = records.Status.read(path)
        assert (status.state, status.step, status.epoch, status.checkpoint) == (ENDED, 8, 1, "step-8-a001")

    code, _, err = fleet("--stop", "solo")
    assert "is not running (stopped on here)" in err
    code, _, err = fleet("--migrate", "solo", "--to", "there", "--mode", "cold", "--dry-run")
    assert "damaged" not in err
    assert "has never started" not in err
    assert fleet("--repair", "solo")[1].strip() == "no record of solo is damaged"


def test_missing_fence_of_run_with_attempts_is_repaired(fleet: Fleet, run: RunDirectory) -> None:
    held = Path(run.paths.fence).read_bytes()
    Path(run.paths.fence).unlink()
    [line] = fleet.repaired("solo")
    assert (line["file"], line["wrong"]) == ("fence.json", "it is missing, and the run has attempts")
    assert json.loads(Path(run.paths.fence).read_bytes()) == json.loads(held)


# ------------------------------------------------------------------------------------------------------- the fence


def moved(fleet: Fleet) -> tuple[RunDirectory, RunDirectory]:
    """Create a run that was migrated at step 8, and trained on to step 12."""
    source = stopped_run(fleet.roots["here"])
    source.fence(2, "there", 8, [{"epoch": 1, "step": 8, "alone": False}])
    target = RunDirectory(fleet.roots["there"], "solo")
    Path(target.paths.config).write_text(CONFIG)
    target.fence(2, "there", 8, [{"epoch": 1, "step": 8, "alone": False}])
    target.lineage(
        {"attempt": 1, "epoch": 1, "last_step": 8},
        {"attempt": 2, "epoch": 2, "target": "there", "first_step": 8, "migration": "m-1", "checkpoint": "step-8-a001"},
    )
    target.checkpoint(12, 2, 2)
    for each in (source, target):
        records.MigrationLock("m-1", 2, "there", 0.0).write(each.paths.migration_lock)
    return source, target


@pytest.mark.parametrize("where", ["here", "there"])
def test_fence_is_repaired_from_other_host(fleet: Fleet, where: str) -> None:
    for run in moved(fleet):
        if str(fleet.roots[where]) in run.paths.dir:
            held = damage(run.paths.fence)
            [line] = fleet.repaired("solo")
            assert any("fence.json: ownership 2, owner there" in each for each in line["evidence"])
            assert json.loads(Path(run.paths.fence).read_bytes()) == json.loads(held)


def test_fence_lost_on_both_hosts_is_repaired_from_lineage(fleet: Fleet) -> None:
    source, target = moved(fleet)
    held = damage(source.paths.fence)
    Path(source.paths.fence).unlink()  # the source's other files may be lost, too
    for path in (source.paths.attempts, source.paths.checkpoints):
        os.rename(path, path + "-lost")
    damage(target.paths.fence)
    fleet.repaired("solo", "--on", "there")
    assert json.loads(Path(target.paths.fence).read_bytes()) == json.loads(held)


def test_fence_repair_refuses_while_host_is_unreachable(fleet: Fleet, run: RunDirectory) -> None:
    damage(run.paths.fence)
    fleet.file.write_text(fleet.file.read_text() + "  far: {type: ssh, address: 127.0.0.1, port: 1, user: nobody}\n")
    line = fleet.refused("--repair", "solo", "--yes")
    assert "not answering, and may have a higher ownership: far (" in line


def test_fence_repair_refuses_checkpoint_of_higher_epoch(fleet: Fleet) -> None:
    _, target = moved(fleet)
    damage(target.paths.fence)
    target.checkpoint(20, 3, 3)
    line = fleet.refused("--repair", "solo", "--yes")
    assert "there: step-20-a003 is of ownership 3, and no copy of its fence can be read" in line


def test_fence_repair_refuses_run_that_may_be_sealed(fleet: Fleet, run: RunDirectory) -> None:
    damage(run.paths.fence)
    records.MigrationLock("m-2", 2, "there", 0.0).write(run.paths.migration_lock)
    line = fleet.refused("--repair", "solo", "--yes")
    assert "migration m-2 has the run on here, and may have sealed it for ownership 2 (owner there)" in line


def test_fence_of_sealed_run_is_repaired_from_command(fleet: Fleet, run: RunDirectory) -> None:
    damage(run.paths.fence)
    records.MigrationLock("m-2", 2, "there", 0.0).write(run.paths.migration_lock)
    records.Command(records.STOP, epoch=2, owner="there", migration="m-2", sequence=4).write(
        run.attempt(1).command_file
    )
    value = records.Status.read(run.attempt(1).status()).to_json()
    records.write_json(run.attempt(1).status(), {**value, "acknowledged": 4})
    fleet.repaired("solo")
    fence = records.Fence.read(run.paths.fence)
    assert (fence.epoch, fence.owner, fence.sealed_step) == (2, "there", 8)
    assert fence.seals == [{"epoch": 1, "step": 8, "alone": False}]


def test_lineage_is_repaired_from_other_host_and_attempt(fleet: Fleet) -> None:
    _, target = moved(fleet)
    target.status(2, ENDED, 12, dead_process())
    value = records.Status.read(target.attempt(2).status()).to_json()
    records.write_json(target.attempt(2).status(), {**value, "epoch": 2, "devices": [{"kind": "cpu"}]})
    target.rows(2, 8, 9, 10, 11)
    digest = "d" * 64
    records.Restore("step-8-a001", 8, digest, digest, [], [], 0.0, "b", "b").write(target.attempt(2).restore)
    command = records.Command(records.RESTORE, epoch=2, checkpoint="step-8-a001", migration="m-1")
    command.write(target.attempt(2).command_file)
    held = json.loads(damage(target.paths.lineage))
    fleet.repaired("solo")
    attempts = records.Lineage.read(target.paths.lineage).entries
    assert [entry.attempt for entry in attempts] == [1, 2]
    assert attempts[0].to_json() == held["attempts"][0]
    assert (attempts[1].target, attempts[1].first_step, attempts[1].last_step) == ("there", 8, 12)
    assert (attempts[1].checkpoint, attempts[1].migration) == ("step-8-a001", "m-1")


def test_obsolete_damaged_record_is_set_aside(fleet: Fleet, run: RunDirectory) -> None:
    damage(run.attempt(1).exit())
    assert "attempts/001/exit-0.json: not JSON" in fleet.refused("--stop", "solo")
    [line] = fleet.repaired("solo")
    assert line["value"] is None
    assert not Path(run.attempt(1).exit()).exists()
    assert Path(run.attempt(1).dir, line["kept"]).exists()


def test_empty_status_is_repaired_from_metrics(fleet: Fleet, run: RunDirectory) -> None:
    Path(run.attempt(1).exit()).unlink()
    damage(run.attempt(1).status(), b"")
    fleet.repaired("solo")
    status = records.Status.read(run.attempt(1).status())
    assert (status.state, status.step) == (records.TRAINING, 8)
    _, out, _ = fleet("--status")
    assert "lost" in out


def test_status_of_a_standby_that_was_to_take_over_is_repaired(fleet: Fleet) -> None:
    """A power cut of the target damaged it; on the old code nothing determined it, and the rollback waited for ever."""
    _, target = moved(fleet)
    records.Command(records.RESTORE, 3, "step-12-a002", migration="m-2").write(target.attempt(3).command_file)
    records.write_json(target.attempt(3).launched(), {**dead_process().to_json(), "argv": []})
    Path(target.attempt(3).status()).write_bytes(b"")
    fleet.repaired("solo", "--on", "there")
    status = records.Status.read(target.attempt(3).status())
    assert (status.epoch, status.step, status.checkpoint) == (3, 0, None)


def test_damaged_checkpoint_is_neither_used_nor_deleted(fleet: Fleet, run: RunDirectory) -> None:
    name = run.checkpoint(20)
    manifest = Path(run.paths.checkpoint(name), records.MANIFEST)
    damage(str(manifest), b"[" * 100_000)
    os.utime(run.paths.checkpoint(name), (0, 0))
    code, out, err = fleet("--clean", "solo", "--yes")
    assert code == 0, err
    assert manifest.exists()
    line = fleet.refused("--migrate", "solo", "--to", "there", "--mode", "cold", "--yes")
    assert f"here: checkpoint {name} of solo is damaged: manifest.json: " in line
    assert "--checkpoint 8 continues from the newest complete one" in line
    _, out, _ = fleet("--checkpoints", "solo")
    assert "damaged" in out


# ---------------------------------------------------------------------------------------------------- one odd file


def _text(content: bytes) -> Callable[[str], None]:
    return lambda path: _write(path, content)


def _write(path: str, content: bytes) -> None:
    _remove(path)
    Path(path).write_bytes(content)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _fifo(path: str) -> None:
    _remove(path)
    os.mkfifo(path)


def _directory(path: str) -> None:
    _remove(path)
    os.mkdir(path)


def _huge(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(10 * 10**9)  # sparse


def _link(path: str) -> None:
    _remove(path)
    os.symlink("/dev/zero", path)


ODD: dict[str, Callable[[str], None]] = {
    "null": _text(b"null"),
    "list": _text(b"[]"),
    "text": _text(b'"x"'),
    "deep": _text(b"[" * 200_000),
    "binary": _text(os.urandom(1000)),
    "numbers": _text(json.dumps({"epoch": "7", "step": "5", "state": 3, "owner": None}).encode()),
    "negative": _text(
        json.dumps({"epoch": -7, "owner": "h", "step": -5, "state": "training", "process": 0, "boot_id": "", "pid": 1,
                    "start_ticks": 1, "heartbeat": 1, "run_id": "solo", "attempts": -1}).encode()
    ),
    "seals": _text(json.dumps({"epoch": 2, "owner": "h", "seals": [1, None], "attempts": [None, 3]}).encode()),
    "escapes": _text(json.dumps({"epoch": 1, "owner": "\x1b]52;c;aGk=\x07", "run_id": "\x1b[2J"}).encode()),
    "fifo": _fifo,
    "directory": _directory,
    "huge": _huge,
    "link": _link,
}  # fmt: skip
PLACES: dict[str, Callable[[RunDirectory], str]] = {
    "fence.json": lambda run: run.paths.fence,
    "lineage.json": lambda run: run.paths.lineage,
    "store.json": lambda run: run.paths.store_file,
    "migration_lock.json": lambda run: run.paths.migration_lock,
    "status": lambda run: run.attempt(1).status(),
    "launch.json": lambda run: run.attempt(1).launched(),
    "command.json": lambda run: run.attempt(1).command_file,
    "exit": lambda run: run.attempt(1).exit(),
    "restore.json": lambda run: run.attempt(1).restore,
    "metrics": lambda run: run.attempt(1).metrics,
    "log": lambda run: run.attempt(1).log(),
    "manifest": lambda run: f"{run.paths.checkpoint('step-8-a001')}/{records.MANIFEST}",
    "pin": lambda run: f"{run.paths.pins}/m-1.json",
    "run.yaml": lambda run: run.paths.config,
}


def test_odd_file_affects_one_run_alone(fleet: Fleet) -> None:
    """Status lists each of 56 runs with one odd file, and the sound run."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    sound = stopped_run(fleet.roots["here"], "sound")
    odd: dict[str, tuple[str, str]] = {}
    for place in PLACES:
        for kind in draw.sample(sorted(ODD), 4):
            run_id = f"odd-{len(odd):03d}"
            ODD[kind](PLACES[place](stopped_run(fleet.roots["here"], run_id)))
            odd[run_id] = (place, kind)
    runs = fleet.roots["here"] / "runs"
    for name in ("\x1b[2Jx", "a\nb", "..x", "-x", "x" * 200, "\udcff"):
        (runs / name / "attempts" / "001").mkdir(parents=True)
    code, out, err = fleet("--status", "--json")
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    hosts = {line["name"]: line["link"] for line in lines if line["event"] == "host"}
    assert hosts == {"here": "live", "there": "live"}
    rows = {line["run"]: line for line in lines if line["event"] == "run"}
    assert set(rows) == {"sound", *odd}
    assert rows["sound"]["problem"] == ""
    assert rows["sound"]["step"] == 8
    for run_id, (place, kind) in odd.items():
        problem = rows[run_id]["problem"]
        quiet = place in ("run.yaml", "manifest") or (place in ("metrics", "log") and kind not in ("fifo", "directory"))
        quiet = quiet or (place, kind) == ("launch.json", "negative")  # it has a sound process in it
        assert quiet or problem, (run_id, place, kind)
        assert "\x1b" not in problem
    code, out, err = fleet("--metrics", "sound", "--json")
    assert (code, len(out.splitlines())) == (0, 8), err
    assert records.Status.read(sound.attempt(1).status()).step == 8
