"""Bad input gets one clear line and a documented exit code, and changes nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_core import records
from simulators.disks import small_disk
from simulators.sshd import Lab, free_port
from support.command_line import SLOWER, TINY, Run, midstream, refused, step_of
from support.run_directory import RunDirectory, dead_process
from support.terminals import TerminalProgram

pytestmark = pytest.mark.drawn


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run]]:
    """Launch a run on ``here``; assert after all tests that it still trains."""
    directory = tmp_path_factory.mktemp("bad")
    fleet = directory / "fleet.yaml"
    fleet.write_text(
        f'hosts:\n  here: {{type: local, devices: 2, root: "{directory}/here"}}\n'
        f'  there: {{type: local, devices: 4, root: "{directory}/there"}}\n'
        f'  three: {{type: local, devices: 3, root: "{directory}/three"}}\n'
    )
    flags = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 10}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "here", "--run-id", "nano", "--", *flags)
    assert launched.code == 0, launched.stderr
    run = Run(directory / "here", "nano")
    run.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    yield fleet, run
    status = run.status()
    assert run.attempt == 1
    assert status is not None
    assert run.running, "the source was harmed"
    run.kill()


@pytest.fixture
def still_training(training: tuple[Path, Run]) -> Iterator[tuple[Path, Run]]:
    """Assert after the test that the source makes steps under the same fence."""
    fleet, run = training
    fence = run.fence
    yield fleet, run
    status = run.status()
    assert status is not None
    run.wait_step(status.step + 2)
    assert run.fence == fence
    assert run.running


def test_unknown_run_suggests_nearest_name(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    refused(midstream("--fleet", fleet, "--migrate", "nanno", "--to", "there"), 2, "no run 'nanno'", "nano")
    refused(midstream("--fleet", fleet, "--checkpoints", "nanno"), 2, "no run 'nanno'", "nano")
    refused(midstream("--fleet", fleet, "--stop", "nanno"), 2, "no run 'nanno'", "nano")
    refused(midstream("--fleet", fleet, "--verify", "nanno"), 2, "no run 'nanno'", "nano")


def test_unknown_target_suggests_nearest_name(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    refused(midstream("--fleet", fleet, "--migrate", "nano", "--to", "ther"), 2, "no target 'ther'", "there")
    refused(midstream("--fleet", fleet, "--launch", TINY, "--on", "ther"), 2, "no target 'ther'", "there")


def test_engine_flags_that_name_another_run_are_refused(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    there = fleet.parent / "there" / "runs"
    before = sorted(there.rglob("*"))
    launch = ("--fleet", fleet, "--launch", TINY, "--on", "there", "--run-id", "mine", "--", "--trainer.id", "other")
    refused(midstream(*launch), 2, "--run-id mine and --trainer.id other name different runs", "leave --trainer.id out")
    move = ("--fleet", fleet, "--migrate", "nano", "--to", "there", "--", "--trainer.id", "other")
    refused(midstream(*move), 2, "--trainer.id other: run nano keeps its id", "leave --trainer.id out")
    assert sorted(there.rglob("*")) == before


def test_relative_root_is_refused(still_training: tuple[Path, Run], tmp_path: Path) -> None:
    fleet, _ = still_training
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet.read_text() + "  near: {type: local, devices: 2, root: ./near}\n")
    refused(midstream("--fleet", file, "--migrate", "nano", "--to", "near"), 2, "'./near' of near is not absolute")


def test_migration_to_its_source_is_refused(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    refused(midstream("--fleet", fleet, "--migrate", "nano", "--to", "here"), 2, "is already on here")


def test_indivisible_batch_is_refused_with_device_counts(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    refused(midstream("--fleet", fleet, "--migrate", "nano", "--to", "three"), 3, "32", "device counts that divide it")


def test_unknown_mode_or_checkpoint_is_refused(still_training: tuple[Path, Run]) -> None:
    fleet, _ = still_training
    migrate = ("--fleet", fleet, "--migrate", "nano", "--to", "there")
    refused(midstream(*migrate, "--mode", "teleport"), 2, "teleport", "cold")
    refused(midstream(*migrate, "--checkpoint", "soon"), 2, "soon", "latest")
    refused(midstream(*migrate, "--checkpoint", "9999999"), 2, "no complete checkpoint at step 9999999")


def test_discarding_steps_requires_yes(still_training: tuple[Path, Run]) -> None:
    fleet, run = still_training
    step = step_of(run.checkpoints()[0])
    run.wait_step(step + 3)
    refused(
        midstream("--fleet", fleet, "--migrate", "nano", "--to", "there", "--checkpoint", str(step)),
        3, "would be discarded", "--yes",
    )  # fmt: skip


def test_conflicting_flags_are_refused() -> None:
    refused(midstream("--migrate", "x"), 2, "--to")
    refused(midstream("--launch", "x"), 2, "--on")
    refused(midstream("--status", "--init"), 2, "not allowed with")
    refused(midstream("--nosuchflag"), 2, "--nosuchflag")
    refused(midstream("--status", "--", "--trainer.seed", "1"), 2, "engine")
    refused(midstream("--migrate", "x", "--to", "y", "--healthy-steps", "-1"), 2, "--healthy-steps")
    refused(midstream("--launch", "x", "--on", "y", "--dry-run"), 2, "--dry-run goes with --migrate")
    refused(midstream("--stop", "x", "--yes"), 2, "--yes goes with")


def test_screen_requires_terminal(training: tuple[Path, Run]) -> None:
    fleet, _ = training
    refused(midstream("--fleet", fleet), 2, "needs a terminal", "--status")
    refused(midstream("--demo"), 2, "needs a terminal", "--headless")


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_screen_requires_cursor(training: tuple[Path, Run], kind: str) -> None:
    fleet, _ = training
    code = "import sys; from midstream.cli import main; sys.exit(main(sys.argv[1:]))"
    for words, hint in ((["--fleet", str(fleet)], "--status"), (["--demo"], "--headless")):
        terminal = TerminalProgram(code, *words, env={"TERM": kind})
        terminal.expect("needs a terminal that can move its cursor, and TERM is (dumb|not set)")
        terminal.expect(hint)
        assert terminal.wait() == 2
        assert "\x1b" not in terminal.text


def test_init_never_overwrites_fleet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu1\n  HostName 10.0.0.7\n  User me\n")
    file = tmp_path / "fleet" / "fleet.yaml"
    written = midstream("--init", "--fleet", file, "--json")
    assert written.code == 0, written.stderr
    assert written.of("fleet") == [{"event": "fleet", "path": str(file)}]
    text = file.read_text()
    assert "gpu1" in text
    file.write_text(text + "# mine\n")
    refused(midstream("--init", "--fleet", file), 2, "already exists")
    assert file.read_text() == text + "# mine\n"


def test_init_names_the_file_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")
    file = tmp_path / "occupied" / "fleet.yaml"
    refused(midstream("--init", "--fleet", file), 2, f"{file} cannot be written: ", "--fleet FILE")


def test_doctor_writes_to_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for state, expected in ((tmp_path / "new", "pass"), (Path("/proc/none"), "fail")):
        monkeypatch.setenv("MIDSTREAM_STATE", str(state))
        [found] = [event for event in midstream("--doctor", "--json").of("check") if event["name"] == "state"]
        assert found["state"] == expected, found
    assert "cannot be written" in found["detail"]
    assert not (tmp_path / "new").exists(), "nothing is changed"


def test_unwritable_directory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "file" / "state"))
    demo = midstream("--demo", "--headless", "--json")
    refused(demo, 1, "cannot be written: ", "MIDSTREAM_STATE")
    assert demo.of("result")[-1]["exit_code"] == 1
    monkeypatch.chdir("/proc")  # no process can write there, not even root's
    refused(midstream("--init-run", "."), 2, "/proc/run.yaml cannot be written: ")


def test_status_reports_unreadable_records_of_one_run(still_training: tuple[Path, Run], tmp_path: Path) -> None:
    fleet, run = still_training
    broken = RunDirectory(tmp_path / "broken", "partial")
    broken.status(1, records.STOPPED, 5, dead_process())
    Path(broken.paths.fence).write_text('{"owner": "here"}')
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet.read_text() + f'  broken: {{type: local, devices: 2, root: "{tmp_path}/broken"}}\n')
    status = midstream("--fleet", file, "--status", "--json")
    assert status.code == 0
    problems = {event["run"]: event["problem"] for event in status.of("run")}
    assert "fence.json: lacks epoch" in problems["partial"]
    assert problems["nano"] == ""
    assert "partial on broken: " in midstream("--fleet", file, "--status").stdout
    assert midstream("--fleet", file, "--checkpoints", "--json").code == 0
    verified = midstream("--fleet", file, "--verify", f"here:{run.paths.checkpoint(run.checkpoints()[0])}", "--json")
    assert verified.code == 0, verified.stderr
    assert verified.result["ok"]


def test_missing_fleet_file_hints_at_init(tmp_path: Path) -> None:
    refused(midstream("--fleet", tmp_path / "none.yaml", "--status"), 2, "none.yaml", "midstream --init")


def test_malformed_yaml_reports_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("hosts:\n  here: {type: local\n  there: [\n")
    refused(midstream("--fleet", file, "--status"), 2, f"{file}:3")
    file.write_text("hosts:\n  here: {type: local, devises: 2}\n")
    refused(midstream("--fleet", file, "--status"), 2, "hosts.here.devises", "devices")
    file.write_text(f'hosts:\n  here: {{type: local, devices: 2, root: "{tmp_path}/root"}}\n')
    config = tmp_path / "train.yaml"
    config.write_text("model:\n  type: gpt2\n  hidden_dim: [64\ntrainer: {}\n")
    refused(midstream("--fleet", file, "--launch", config, "--on", "here"), 2, f"{config}:4")
    assert not (tmp_path / "root" / "runs").exists()


def test_unreachable_host_is_named(still_training: tuple[Path, Run], tmp_path: Path) -> None:
    fleet, _ = still_training
    file = tmp_path / "fleet.yaml"
    key = tmp_path / "none"
    key.touch()
    file.write_text(
        fleet.read_text()
        + f'  unreachable: {{type: ssh, address: "me@127.0.0.1:{free_port()}", identity_file: "{key}",'
        + f' ssh_config: "{key}"}}\n'
    )
    refused(
        midstream("--fleet", file, "--migrate", "nano", "--to", "unreachable"), 3, "unreachable", "cannot be reached"
    )
    refused(midstream("--fleet", file, "--launch", TINY, "--on", "unreachable"), 1, "unreachable", "cannot be reached")
    status = midstream("--fleet", file, "--status", "--json")
    assert status.code == 0
    assert {event["name"]: event["link"] for event in status.of("host")} == {
        "here": "live", "there": "live", "three": "live", "unreachable": "down",
    }  # fmt: skip


def test_migration_refuses_unknown_host_key(still_training: tuple[Path, Run], lab: Lab, tmp_path: Path) -> None:
    fleet, _ = still_training
    server = lab.host("gpu", devices=4)
    server.known_hosts.write_text("")
    file = tmp_path / "fleet.yaml"
    entry = lab.fleet_file(gpu=server.config).read_text().splitlines()[1]
    file.write_text(fleet.read_text() + entry + "\n")
    refused(
        midstream("--fleet", file, "--migrate", "nano", "--to", "gpu"), 3, "host key", "is not known", "ssh-keyscan"
    )
    assert not server.root.exists()


def test_migration_refuses_rejected_user_key(still_training: tuple[Path, Run], lab: Lab, tmp_path: Path) -> None:
    fleet, _ = still_training
    server = lab.host("gpu", devices=4)
    (server.directory / "authorized_keys").write_text("")
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet.read_text() + lab.fleet_file(gpu=server.config).read_text().splitlines()[1] + "\n")
    refused(midstream("--fleet", file, "--migrate", "nano", "--to", "gpu"), 3, "accepts none of our keys")


def test_full_target_disk_leaves_source_training(still_training: tuple[Path, Run], tmp_path: Path) -> None:
    fleet, _ = still_training
    small = tmp_path / "small"
    with small_disk(small, "700k") as mounted:
        if not mounted:
            pytest.skip("mounting a tmpfs is not permitted here: run as root with CAP_SYS_ADMIN")
        file = tmp_path / "fleet.yaml"
        file.write_text(fleet.read_text() + f'  full: {{type: local, devices: 4, root: "{small}/root"}}\n')
        refused(midstream("--fleet", file, "--migrate", "nano", "--to", "full"), 3, "disk", "free")


def test_corrupt_checkpoint_fails_before_source_is_stopped(still_training: tuple[Path, Run]) -> None:
    fleet, run = still_training
    name = run.checkpoints()[0]
    directory = Path(run.paths.checkpoint(name))
    victim = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    original = victim.read_bytes()
    try:
        bad = bytearray(original)
        bad[len(bad) // 2] ^= 1
        victim.write_bytes(bytes(bad))
        refused(midstream("--fleet", fleet, "--verify", directory), 1, "damaged")
        found = midstream("--fleet", fleet, "--verify", f"here:{directory}", "--json")
        assert found.code == 1
        assert str(victim.relative_to(directory)) in {problem[0] for problem in found.result["problems"]}
        step = str(step_of(name))
        moved = midstream(
            "--fleet", fleet, "--migrate", "nano", "--to", "there", "--checkpoint", step, "--yes", "--json"
        )
        assert moved.code == 1, (moved.stdout, moved.stderr)
        assert moved.result["outcome"] == "rolled back"
        (failed,) = [event for event in moved.of("phase") if event["state"] == "failed"]
        assert failed["phase"] == "prepare"
        assert victim.name in failed["message"]
        assert "corrupt" in failed["message"]
        there = run.paths.root.replace("/here", "/there")
        assert not Path(records.RunPaths(there, "nano").checkpoint(name), records.MANIFEST).exists()
    finally:
        victim.write_bytes(original)
        shutil.rmtree(records.RunPaths(run.paths.root.replace("/here", "/there"), "nano").dir, ignore_errors=True)


def test_stale_source_copy_is_refused_by_fence(still_training: tuple[Path, Run], tmp_path: Path) -> None:
    """The fence refuses a second operator whose fleet file names only the old host."""
    _, run = still_training
    copy = tmp_path / "copy"
    shutil.copytree(run.paths.root, copy / "old", ignore=shutil.ignore_patterns("compile-cache", "engines", "*.tmp-*"))
    old = records.RunPaths(str(copy / "old"), "nano")
    records.Fence.read(old.fence).sealed(2, "elsewhere", 1).write(old.fence)
    status = records.Status.read(old.attempt(1).status())
    dataclasses.replace(status, state=records.STOPPED, start_ticks=status.start_ticks + 1).write(
        old.attempt(1).status()
    )
    file = tmp_path / "fleet.yaml"
    file.write_text(f'hosts:\n  old: {{type: local, devices: 2, root: "{copy}/old"}}\n'
                    f'  new: {{type: local, devices: 2, root: "{copy}/new"}}\n')  # fmt: skip
    launch = ("--fleet", file, "--launch", TINY, "--on", "old", "--run-id", "nano")
    migrate = ("--fleet", file, "--migrate", "nano", "--to", "new")
    for signed in (launch, migrate):
        refused(midstream(*signed), 2, "nano belongs to here by a signed record (ownership 1)")
    os.unlink(old.ownership)  # a run of an earlier version: its fence alone
    refused(midstream(*launch), 2, "elsewhere")
    refused(midstream(*migrate), 2, "was handed to elsewhere (ownership 2)", "the fleet file does not name")
    # With --source-lost, too, a checkpoint past the seal does not belong to this run.
    past = str(step_of(run.checkpoints()[-1]))
    refused(midstream(*migrate, "--source-lost", "--checkpoint", past), 2, f"no complete checkpoint at step {past}")
    listed = midstream("--fleet", file, "--checkpoints", "nano", "--json").of("checkpoint")
    assert listed
    assert not any(checkpoint["accepted"] for checkpoint in listed)
    assert not Path(records.RunPaths(str(copy / "new"), "nano").dir).exists()
