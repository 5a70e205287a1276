"""``--check`` and ``--doctor`` on real hosts: text, JSON and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.doctor import doctor
from midstream.check.host_checks import check_host
from midstream.check.target_checks import check_one_root, check_target, clock_skew
from midstream.compare.compiler import engine_and_packages
from midstream.compare.estimate import Memory, StepEstimate, cache_file, store
from midstream.compare.subject import of_config
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig, SshHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.watch.known_devices import devices_file
from midstream_core.accelerator_types import parse
from midstream_host.machine import checks, inventory
from simulators.object_stores.s3_server import s3_server
from simulators.sshd import Lab, environment
from support import recorded_outputs as recorded
from support.command_line import TINY, midstream, refused

pytestmark = pytest.mark.drawn

system = pytest.mark.system


def by_name(found: list[Check], host: str = "") -> dict[str, Check]:
    return {check.name: check for check in found if check.host == host}


@system
def test_check_of_host_pair_compares_accelerators(lab: Lab) -> None:
    a, b = lab.host("a", devices=2), lab.host("b", devices=2)
    pair = {"pair": HostsTarget(["a", "b"])}
    for devices, state in ((2, PASS), (4, FAIL)):
        fleet = Fleet({"a": a.config, "b": replace(b.config, devices=devices)}, pair)
        hosts = HostPool(fleet)
        found = list(check_target(hosts, fleet.target("pair")))
        assert abs(clock_skew(hosts.get("a"))) < 0.5, "the same machine has the same clock"
        hosts.close()
        shared = by_name(found)
        assert shared["same accelerators"].state == state, found
        assert shared["ports between hosts"].detail.startswith("all 2 links are open")
        assert shared["shared file system"].detail.startswith("none under ")
        for name in ("a", "b"):
            own = by_name(found, name)
            for each in ("answers", "python", "glibc", "root", "clock", "accelerators are free", "outlives the login"):
                assert own[each].state == PASS, own[each]
        failed = [check for check in found if check.state == FAIL]
        assert [check.name for check in failed] == ([] if state == PASS else ["same accelerators"])
        assert all(check.hint for check in found if check.state != PASS), "each failure has a hint"
        assert not list(lab.directory.glob("*/root/.tokens")), "nothing is left behind"


@system
def test_check_prints_hint_for_each_failure(lab: Lab) -> None:
    a = lab.host("a", devices=2)
    fleet = lab.fleet_file(
        a=replace(a.config, python="/no/such/python", devices=2), unreachable=SshHostConfig(address="127.0.0.1:9")
    )
    text = fleet.read_text() + "targets: {pair: {type: hosts, hosts: [a, unreachable]}}\n"
    fleet.write_text(text)
    ended = midstream("--fleet", fleet, "--check", "pair", "--json")
    assert ended.code == 3, ended.stderr
    result = ended.result
    assert (result["ok"], result["exit_code"], result["target"]) == (False, 3, "pair")
    assert result["fail"] == 2
    found = {(check["host"], check["name"]): check for check in ended.of("check")}
    assert found["unreachable", "answers"]["state"] == "fail"
    assert found["a", "python"]["state"] == "fail"
    assert "/no/such/python" in found["a", "python"]["detail"]
    assert all(check["hint"] for check in ended.of("check") if check["state"] != "pass")
    shown = midstream("--fleet", fleet, "--check", "pair")
    assert shown.code == 3
    assert "FAIL  unreachable: answers: " in shown.stdout
    assert "      -> " in shown.stdout
    refused(midstream("--fleet", fleet, "--check", "pear"), 2, "did you mean pair")


@system
def test_step_is_compiled_for_target_that_is_busy_or_unreachable(lab: Lab, tmp_path: Path) -> None:
    values = dict(zip(recorded.FIELDS, recorded.GPUS["H100"][0].splitlines()[0].split(", "), strict=True))
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in\n--query-gpu=*) echo '{', '.join(values.values())}' ;;\n"
        f"--query-compute-apps=*) echo '{values['uuid']}, {os.getpid()}, python' ;;\nesac\n"
    )
    program.chmod(0o755)
    server = lab.host("gpu1", sshd=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    fleet = lab.fleet_file(gpu1=server.config)
    accelerators = parse("h100x1")
    assert accelerators is not None
    subject = of_config(TINY, ())
    store(
        cache_file(engine_and_packages(), subject.config, subject.overrides, accelerators),
        StepEstimate(
            "estimate", accelerators.name, True, False, 8, 2, 90 << 30, 1.0, 1, "H100", 80 << 30, 1, 1, 32, 1024, 10,
            2, 16, Memory(50 << 30, 1, 1), 1.0, 0.8, 1.3,
        ),
    )  # fmt: skip
    ended = midstream("--fleet", fleet, "--check", "gpu1", "--rehearse", TINY, "--json")
    assert ended.code == 3
    found = {check["name"]: check for check in ended.of("check")}
    assert found["accelerators are free"]["state"] == "fail"
    assert "rehearsal" not in found, "nothing is started beside the other program"
    needs = "a step with 8 examples at a time needs 96.6 GB a device of 85.9 GB; an estimate by the compiler for h100x1"
    assert found["fit"]["detail"] == needs
    assert found["fit"]["hint"] == "-- --trainer.per_device_parallelism 2 fits"
    assert [row["candidate"] for row in ended.of("candidate")] == ["gpu1"]
    # The accelerators that were seen are those of the host when it does not answer any more.
    server.stop()
    unreachable = midstream("--fleet", fleet, "--check", "gpu1", "--rehearse", TINY, "--json")
    assert unreachable.code == 3
    found = {check["name"]: check for check in unreachable.of("check")}
    assert found["answers"]["state"] == "fail"
    assert found["fit"]["detail"].startswith(f"{needs}, as it was seen on 20")
    devices_file().unlink()
    unknown = midstream("--fleet", fleet, "--check", "gpu1", "--rehearse", TINY, "--json")
    (fit,) = (check for check in unknown.of("check") if check["name"] == "fit")
    assert fit["state"] == "warn"
    assert "gpu1 does not answer, so that its accelerators are not known" in fit["detail"]
    assert fit["hint"].startswith(f"midstream --compare {TINY} --with h100x8 ")


@system
def test_rehearsal_compiles_on_target_and_leaves_no_run(lab: Lab) -> None:
    a = lab.host("a", devices=2)
    fleet = lab.fleet_file(a=a.config)
    flags = ("--trainer.jax_compilation_cache_dir", str(lab.directory / "compiled"))
    ended = midstream("--fleet", fleet, "--check", "a", "--rehearse", TINY, "--json", "--", *flags)
    assert ended.code == 0, (ended.stdout, ended.stderr)
    rehearsal = next(check for check in ended.of("check") if check["name"] == "rehearsal")
    assert rehearsal["state"] == "pass"
    assert "parameters on 2 x cpu: compiled in" in rehearsal["detail"]
    assert not (a.root / "runs").exists()
    assert not list(a.root.glob(".rehearsal-*"))
    assert (a.root / "engines").is_dir()
    wrong = ("--trainer.train_batch_size", "3")
    ended = midstream("--fleet", fleet, "--check", "a", "--rehearse", TINY, "--json", "--", *wrong)
    assert ended.code == 3
    rehearsal = next(check for check in ended.of("check") if check["name"] == "rehearsal")
    assert rehearsal["state"] == "fail"
    assert "batch" in rehearsal["detail"]


def survey(tmp_path: Path) -> checks.Survey:
    return checks.survey(str(tmp_path))


def test_host_checks_name_obstacles_with_hints(tmp_path: Path) -> None:
    """Each survey of a host has one obstacle."""
    host, config = LocalHost("tpu", LocalHostConfig(root=str(tmp_path))), LocalHostConfig(root=str(tmp_path))
    clean = survey(tmp_path)
    lock = checks.LockFile("/tmp/libtpu_lockfile", "ann", True, [])
    stale = by_name(list(check_host(host, config, replace(clean, locks=[lock]), 0.0)), "tpu")["stale lock"]
    assert stale.state == FAIL
    assert stale.hint.startswith("sudo rm /tmp/libtpu_lockfile on tpu")
    held = replace(clean, locks=[lock], accelerator_users=[inventory.AcceleratorProcess(77, "ann", "python train.py")])
    found = by_name(list(check_host(host, config, held, 0.0)), "tpu")
    assert found["accelerators are free"].state == FAIL
    assert found["accelerators are free"].detail == "process 77 of ann uses them: python train.py"
    assert "kill 77 on tpu" in found["accelerators are free"].hint
    assert "stale lock" not in found, "it belongs to the process that is named"
    busy = replace(clean, engines=[checks.RunningEngine("mine", 2)])
    assert by_name(list(check_host(host, config, busy, 0.0)), "tpu")["nothing trains there"].state == WARN
    busy = replace(held, engines=busy.engines, kills_left_behind=True)
    states = {check.state for check in check_host(host, config, busy, 0.0, login_node=True)}
    assert FAIL not in states, "SLURM allocates other machines"
    assert by_name(list(check_host(host, config, clean, 9.0)), "tpu")["clock"].state == FAIL
    killer = replace(clean, kills_left_behind=True, scope=False)
    outlives = by_name(list(check_host(host, config, killer, 0.0)), "tpu")["outlives the login"]
    assert (outlives.state, "loginctl enable-linger on tpu" in outlives.hint) == (FAIL, True)
    bare = replace(clean, accelerators=replace(clean.accelerators, gpus=[], tpus=[]))
    states = {
        login: by_name(list(check_host(host, config, bare, 0.0, login_node=login)), "tpu")["accelerators"].state
        for login in (False, True)
    }
    assert states == {False: WARN, True: PASS}
    old = replace(clean, facts=replace(clean.facts, libc="glibc 2.17"))
    assert by_name(list(check_host(host, config, old, 0.0)), "tpu")["glibc"].state == FAIL
    gpus = replace(clean.accelerators, gpus=["A100"] * 8, driver="470.1", cuda="11.4")
    found = by_name(
        list(check_host(host, LocalHostConfig(root=str(tmp_path)), replace(clean, accelerators=gpus), 0.0)), "tpu"
    )
    assert found["packages"].detail == "the driver 470.1 of A100 is too old: jax needs 525 or newer"
    assert found["accelerators"].detail == "8 x A100, driver 470.1, CUDA 11.4"
    chosen = replace(config, env={"CUDA_VISIBLE_DEVICES": "MIG-a,7"})
    other = inventory.AcceleratorProcess(78, "ann", "python train.py")
    part = replace(clean, accelerators=replace(gpus, missing=1, driver="550.1"), unattributed=[other])
    found = by_name(list(check_host(host, chosen, part, 0.0)), "tpu")
    assert (found["devices"].state, found["devices"].detail) == (FAIL, "it has no GPU 7, which the fleet file names")
    shared = found["accelerators are free"]
    assert (shared.state, "kill" in shared.hint) == (WARN, False), "it may be on another part of the GPU"
    port = inventory.Port("mlx5_0", 1, "down", 200.0, "InfiniBand")
    found = by_name(list(check_host(host, config, replace(clean, infiniband=[port]), 0.0)), "tpu")
    assert found["InfiniBand"].detail == "port 1 of mlx5_0 is down"


def test_check_lists_the_bucket_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for url, state, detail in (
            ("s3://runs/ours", PASS, "this machine can list s3://runs/ours"),
            ("s3://rusn/ours", WARN, "this machine cannot list s3://rusn/ours: there is no bucket rusn"),
        ):
            fleet = parse_fleet(f"hosts:\n  here: {{type: local, root: {tmp_path}, store: '{url}'}}\n")
            found = by_name(list(check_target(HostPool(fleet), fleet.target("here"))), "here")["bucket"]
            assert (found.state, found.detail) == (state, detail)


def test_lock_file_in_use_is_not_stale(tmp_path: Path) -> None:
    lock = tmp_path / "lockfile"
    assert checks.locks([str(lock)]) == []
    lock.touch()
    (found,) = checks.locks([str(lock)])
    assert found.pids == []
    with lock.open() as file:
        assert file
        assert os.getpid() in checks.locks([str(lock)])[0].pids


def test_doctor_checks_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts: {here: {type: local, secrets: {TOKEN: 'env:NO_SUCH_TOKEN_HERE'}}}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = midstream("--fleet", fleet, "--doctor", "--json")
    found = {check["name"]: check for check in ended.of("check")}
    assert ended.code == 0, ended.stdout
    assert found["fleet file"]["state"] == "warn"
    assert found["fleet file"]["hint"] == "export NO_SUCH_TOKEN_HERE=..."
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "lab.key").touch(0o600)
    (tmp_path / ".ssh" / "config").write_text(f"Host lab\n  IdentityFile {tmp_path}/lab.key\n")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert Check("keys", PASS, "1 of ~/.ssh/config") in doctor(str(fleet))
    key = tmp_path / ".ssh" / "id_ed25519"
    key.touch()
    key.chmod(0o644)
    fleet.write_text("hosts: {here: {type: loocal}}\n")
    ended = midstream("--fleet", fleet, "--doctor", "--json")
    found = {check["name"]: check for check in ended.of("check")}
    assert ended.code == 3
    assert "loocal" in found["fleet file"]["detail"]
    assert found["keys"]["hint"] == f"chmod 600 {key}"


def test_rehearse_requires_check() -> None:
    refused(midstream("--rehearse"), 2, "--rehearse goes with --check TARGET")
    done = subprocess.run([sys.executable, "-m", "midstream", "--check"], capture_output=True, text=True)
    assert done.returncode == 2


def test_second_entry_of_one_root_is_a_warning(tmp_path: Path) -> None:
    fleet = parse_fleet(
        f"hosts:\n  a: {{type: local, root: {tmp_path}/r}}\n  b: {{type: local, root: {tmp_path}/r/}}\n"
        f"  c: {{type: local, root: {tmp_path}/s}}\n  d: {{type: ssh, address: me@lab, root: {tmp_path}/r}}\n"
        f"  e: {{type: ssh, address: me@lab, port: 23, root: {tmp_path}/r}}\n"
    )
    [found] = check_one_root(fleet, "a")
    assert (found.name, found.state, found.host) == ("one root", WARN, "a")
    assert found.detail.startswith("b is the same machine with the same root")
    assert [list(check_one_root(fleet, name)) for name in ("c", "d", "e")] == [[], [], []]
