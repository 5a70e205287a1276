"""Pods as hosts, by a stand-in for kubectl over processes of this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError, HostError, UsageError
from midstream.fleet.fleet import KubernetesHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.shell import shell_command
from midstream.hosts.shell_line import shell_line
from midstream.remote.machine import checks
from midstream.remote.runs import run_state
from midstream.transfer.streams.link import probe
from simulators.kubectl import Cluster
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{made.program}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def host(cluster: Cluster) -> KubernetesHost:
    cluster.pod("train-0", namespace="ml", app="train")
    config = KubernetesHostConfig(selector="app=train", namespace="ml", context="lab", python=sys.executable)
    made = KubernetesHost("pod", config)
    made.connect()
    return made


def test_commands_run_in_the_pod_with_exact_words_and_exit_code(host: KubernetesHost, cluster: Cluster) -> None:
    assert (host.pod, host.root) == ("train-0", str(cluster.state / "train-0" / ".midstream"))
    done = host.run(["sh", "-c", 'printf "%s|" "$@"; printf warning >&2; exit 3', "sh", "it's", "$HOME", "a b", ""])
    assert (done.returncode, done.stdout) == (3, b"it's|$HOME|a b||")
    assert done.stderr.startswith(b"warning")
    assert b"exit" not in done.stderr.partition(b"\n")[0]
    assert host.run(["cat"], stdin=bytes(range(256)) * 4000).stdout == bytes(range(256)) * 4000
    assert host.run(["printenv", "A"], env={"A": "x y"}).stdout == b"x y\n"
    assert host.run(["no-such-program"]).returncode == 127
    assert host.run(["sh", "-c", "kill -9 $$"]).returncode == 137


def test_functions_and_programs_run_in_the_pod(host: KubernetesHost) -> None:
    assert host.call(run_state.claim_attempt)(root=host.root, run_id="r") == 1
    assert host.call(run_state.list_runs)(root=host.root) == ["r"]
    process = start_program(host, checks.clock)()
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert float(process.stdout.readline()) > 1e9
    process.close()


def test_broken_connection_is_no_evidence_of_an_exit(host: KubernetesHost, cluster: Cluster) -> None:
    process = host.open(["sh", "-c", "echo begun; sleep 60"])
    assert process.stdout.readline() == b"begun\n"
    cluster.set_flag("cut")
    with pytest.raises(ConnectionLostError, match="pod: lost contact: error: unexpected EOF"):
        process.wait(30)
    process.close()
    cluster.set_flag("cut", on=False)
    cluster.set_flag("down")
    with pytest.raises(ConnectionLostError, match="lost contact: Unable to connect to the server"):
        host.run(["true"])
    with pytest.raises(HostError, match="Unable to connect to the server"):
        host.connect()
    cluster.set_flag("down", on=False)
    host.connect()
    assert host.run(["true"]).returncode == 0


def test_pod_that_was_replaced_is_found_by_its_labels(host: KubernetesHost, cluster: Cluster) -> None:
    cluster.pod("train-0", namespace="ml", phase="Failed", app="train")
    with pytest.raises(ConnectionLostError, match="current phase is Failed"):
        host.run(["true"])
    with pytest.raises(HostError, match=r"no running pods with app=train: train-0 is Failed .*kubectl describe pod"):
        host.connect()
    cluster.pod("train-0-b", namespace="ml", app="train")
    host.connect()
    assert host.pod == "train-0-b"
    cluster.pod("train-1", namespace="ml", app="train")
    host.close()
    with pytest.raises(HostError, match=r"2 pods with app=train run: train-0-b, train-1 .*a host is one pod"):
        host.connect()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "other"}, 'context "other" does not exist'),
        ({"namespace": "x", "pod": "train-0", "selector": ""}, r'pods "train-0" not found'),
        ({"pod_container": "wrong"}, "container wrong is not valid"),
    ],
)
def test_wrong_entry_is_named_with_kubectl_words(host: KubernetesHost, change: dict[str, str], message: str) -> None:
    with pytest.raises(HostError, match=message):
        KubernetesHost("pod", dataclasses.replace(host.config, **change)).connect()


def test_printed_lines_run_in_the_pod(host: KubernetesHost) -> None:
    line = shell_line("pod", host.config, "echo $HOME")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == host.root.removesuffix("/.midstream")
    words = shell_command("pod", host.config)
    assert words is not None
    done = subprocess.run(words, input="pwd; exit 5\n", capture_output=True, text=True)
    assert host.root.removesuffix("/.midstream") in done.stdout
    assert done.returncode == 5, done.stderr


def test_copies_pass_through_kubectl(host: KubernetesHost, lab: Lab) -> None:
    from midstream.hosts.host_pool import HostPool

    fleet = lab.fleet(here=lab.local("here"))
    hosts = HostPool(fleet)
    try:
        link = probe(hosts.get("here"), host)
    finally:
        hosts.close()
    assert (link.kind, link.transport) == ("ssh", "kubectl")
    assert link.text("here", "pod").startswith("here -> pod over kubectl exec (")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("namespace: x", r"hosts.a needs pod: or selector:"),
        ("pod: x, selector: app=x", r"hosts.a needs pod: or selector:"),
        ("pod: --help", "hosts.a.pod begins with a dash"),
        ("pod: x, container: {image: y}", "hosts.a is a pod with a container: of its own .*pod_container"),
        ("pods: x", "hosts.a.pods is unknown"),
    ],
)
def test_wrong_pod_is_refused_with_hint(entry: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_fleet(f"hosts: {{a: {{type: kubernetes, {entry}}}}}", "fleet.yaml")


@pytest.mark.slow
def test_run_migrates_to_pod_and_back(cluster: Cluster, lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    home = cluster.pod("train-0", namespace="ml", app="train")
    gpu = lab.host("gpu", devices=1)
    fleet = lab.fleet_file(gpu=gpu.config)
    entry = {"type": "kubernetes", "selector": "app=train", "namespace": "ml", "devices": 2, "python": sys.executable,
             "root": str(tmp_path / "volume"), "env": dict(lab.local("x", 2).env)}  # fmt: skip
    fleet.write_text(fleet.read_text() + f"  pod: {json.dumps(entry)}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "20000")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training).code == 0
    source, target = runs(gpu.root, "r"), runs(tmp_path / "volume", "r")
    source.wait_step(5)
    flags = ("--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "pod", *flags)
    assert moved.code == 0, moved.stderr
    verdicts = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert (verdicts.pop("continuity"), set(verdicts.values())) == ("not checked", {"verified"})
    assert target.fence.owner == "pod"
    assert home.exists()
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "gpu", *flags)
    assert moved.code == 0, moved.stderr
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
