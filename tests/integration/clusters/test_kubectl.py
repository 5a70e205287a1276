"""Pods as hosts with the real kubectl, against a simulated API of a cluster."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream.errors import ConnectionLostError, HostError
from midstream.fleet.fleet import KubernetesHostConfig, KubernetesTarget
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts import current_context
from midstream.hosts.host_pool import HostPool, open_host
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.pod_job import PodJob
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream_host.machine import checks
from simulators.clusters.kubernetes_api import KubernetesApi
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, write_checkpoint
from support.command_line import SLOWER, TINY, Run, midstream
from support.paths import REPOSITORY

pytestmark = [pytest.mark.drawn, pytest.mark.system]
OWN = REPOSITORY / ".venv" / "kubectl" / "bin"  # make kubectl


def kubectl_directory() -> str:
    """Return the directory of a kubectl that executes over WebSockets (1.31 or newer). Skips the test without one."""
    found = shutil.which("kubectl", path=f"{OWN}{os.pathsep}{os.environ['PATH']}")
    if found is not None:
        done = subprocess.run([found, "version", "--client", "--output=json"], capture_output=True, text=True)
        version = json.loads(done.stdout)["clientVersion"] if done.returncode == 0 else {"major": "0", "minor": "0"}
        if (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 31):
            return os.path.dirname(found)
    pytest.skip("no kubectl 1.31: make kubectl")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    monkeypatch.setenv("PATH", f"{kubectl_directory()}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl caches there what it has discovered
    directory = tmp_path / "cluster"
    directory.mkdir()
    with KubernetesApi(directory) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
        yield server


@pytest.fixture
def host(api: KubernetesApi) -> KubernetesHost:
    api.pod("train-0", namespace="ml", app="train")
    config = KubernetesHostConfig(selector="app=train", namespace="ml", context="lab", python=sys.executable)
    made = KubernetesHost("pod", config)
    made.connect()
    return made


def test_words_bytes_and_exit_code_pass_through_kubectl(host: KubernetesHost, api: KubernetesApi) -> None:
    assert host.pod == "train-0"
    data = random.Random(6).randbytes(3_000_000)
    done = host.run(
        ["sh", "-c", 'cat; printf %s "$1|$2" >&2; exit 7', "sh", "it's $HOME", ""], stdin=data, limit=4 << 20
    )
    assert (done.returncode, done.stderr) == (7, b"it's $HOME|")
    assert done.stdout == data
    assert host.run(["pwd"], env={"A": "b c"}).stdout.decode().strip() == str(api.directory / "train-0")
    assert host.run(["sh", "-c", 'printf %s "$A"'], env={"A": "b c"}).stdout == b"b c"
    facts = host.call(checks.facts)(root=host.root)
    assert facts.root == host.root


def test_other_current_context_is_not_followed(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user looks at another cluster, which has a pod of the same name, while a migration runs."""
    monkeypatch.setattr(current_context, "_found", {})
    (tmp_path / "elsewhere").mkdir()
    with KubernetesApi(tmp_path / "elsewhere") as elsewhere:
        for each, namespace in ((api, "ml"), (elsewhere, "ml"), (api, "default")):
            each.pod("train-0", namespace=namespace, app="train")
        file = api.kubeconfig()
        mine, other = yaml.safe_load(file.read_text()), yaml.safe_load(elsewhere.kubeconfig().read_text())
        mine["contexts"][0]["context"]["namespace"] = "ml"
        mine["clusters"].append({"name": "other", "cluster": other["clusters"][0]["cluster"]})
        mine["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "me", "namespace": "ml"}})
        file.write_text(yaml.safe_dump(mine))
        fleet = parse_fleet(
            f"hosts: {{pod: {{type: kubernetes, pod: train-0, python: {sys.executable}}}}}\n"
            "targets: {cell: {type: kubernetes, pods: 1, worker: {devices: 1}}}\n"
        )
        host = open_host("pod", fleet.hosts["pod"])
        host.connect()
        mine["current-context"] = "other"
        file.write_text(yaml.safe_dump(mine))
        host.close()
        host.connect()
        assert host.run(["sh", "-c", "pwd"]).stdout.decode().strip() == str(api.directory / "train-0")
        assert elsewhere.requested == [], "nothing was sent to the other cluster"
        stored = parse_fleet(current_context.fleet_text(fleet)).hosts
        for name in ("pod", "cell-0"):
            config = stored[name]
            assert isinstance(config, KubernetesHostConfig)
            assert (config.context, config.namespace) == ("lab", "ml")


def test_printed_line_runs_in_the_pod(host: KubernetesHost) -> None:
    line = host.shell_line("printf '%s' \"$HOSTNAME\"")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout == "train-0", done.stderr


def test_lost_pod_is_no_evidence(host: KubernetesHost, api: KubernetesApi) -> None:
    process = host.open(["sh", "-c", "echo begun; sleep 60"])
    assert process.stdout.readline() == b"begun\n"
    api.delete("pods", "ml", "train-0")
    with pytest.raises(ConnectionLostError, match="train-0"):
        host.run(["true"])
    process.close()
    with pytest.raises(HostError, match="no running pods with app=train: there are none"):
        host.connect()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": "other"}, r'context.*"?other"? does not exist'),
        ({"pod": "other", "selector": None}, r'pods "other" not found'),
        ({"pod_container": "third"}, "container third is not valid|container not found|third"),
    ],
)
def test_wrong_entry_is_named_with_kubectl_words(api: KubernetesApi, change: dict[str, Any], message: str) -> None:
    api.pod("train-0", namespace="ml", app="train")
    entry = {"selector": "app=train", "namespace": "ml", **change}
    with pytest.raises(HostError, match=message):
        KubernetesHost("pod", KubernetesHostConfig(**entry)).connect()


def test_copies_pass_through_kubectl(host: KubernetesHost, lab: Lab, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "source", random.Random(8), size=300_000)
    there = lab.host("gpu")
    hosts = HostPool(lab.fleet(gpu=there.config))
    try:
        in_pod = Endpoint(host, str(tmp_path / "in-pod"))
        (tmp_path / "gpu").mkdir()
        shutil.copytree(tmp_path / "source", tmp_path / "gpu" / "tree")
        copy_tree(Endpoint(hosts.get("gpu"), str(tmp_path / "gpu" / "tree")), in_pod)
        assert_same_tree(tmp_path / "in-pod", tmp_path / "source")
    finally:
        hosts.close()


TARGET = """
targets:
  cell: {type: kubernetes, namespace: ml, pods: 2, create: true, image: "jax:25", resources: {nvidia.com/gpu: 8},
         worker: {root: /data/midstream, devices: 1}, kind: KIND}
"""


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_are_created_awaited_and_deleted(kind: str, api: KubernetesApi) -> None:
    target = parse_fleet(TARGET.replace("KIND", kind), "fleet.yaml").targets["cell"]
    assert isinstance(target, KubernetesTarget)
    job, said = PodJob("cell", target), list[str]()
    assert not job.exists()
    api.hold = True
    threading.Timer(1.5, api.ready).start()
    job.create(said.append)
    assert any("is Pending" in line for line in said), said
    assert job.exists()
    [manifest] = api.of(f"{kind}s")
    assert "fieldValidation=Strict" in next(line for line in api.requested if line.startswith("POST"))
    assert manifest["metadata"]["name"] == "cell"
    fleet = parse_fleet(TARGET.replace("KIND", kind), "fleet.yaml")
    for name in ("cell-0", "cell-1"):
        host = KubernetesHost(name, fleet.hosts[name])  # type: ignore[arg-type]
        host.connect()
        assert f"-{name[-1]}-" in host.pod
    job.delete(said.append)
    assert (job.exists(), api.of("pods"), said[-1]) == (False, [], f"{kind}/cell in ml is deleted")
    with pytest.raises(HostError, match=r"(?i)not found"):
        job.delete(said.append)


@pytest.mark.slow
def test_run_migrates_to_created_pod(api: KubernetesApi, lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    gpu, volume = lab.host("gpu", devices=1), tmp_path / "volume"
    fleet = lab.fleet_file(gpu=gpu.config)
    worker = {"root": str(volume), "devices": 2, "python": sys.executable, "env": dict(lab.local("x", 2).env)}
    entry = {"type": "kubernetes", "pods": 1, "create": True, "image": "jax:25", "worker": worker}
    fleet.write_text(fleet.read_text() + f"targets:\n  cell: {json.dumps(entry)}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "20000")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training).code == 0
    source, target = runs(gpu.root, "r"), runs(volume, "r")
    source.wait_step(5)
    flags = ("--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "cell", *flags)
    assert moved.code == 0, moved.stderr
    verdicts = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert (verdicts.pop("continuity"), set(verdicts.values())) == ("not checked", {"verified"})
    assert target.fence.owner == "cell"
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    deleted = midstream("--fleet", fleet, "--delete", "cell", "--yes")
    assert deleted.code == 0, deleted.stderr
    assert api.of("pods") == []
