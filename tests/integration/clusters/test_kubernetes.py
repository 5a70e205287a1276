"""Pods as hosts, by a stand-in for kubectl over processes of this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.errors import ConnectionLostError, Exit, HostError, MidstreamError, UsageError
from midstream.flags import parse
from midstream.fleet.fleet import KubernetesHostConfig, KubernetesTarget
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.fleet.job_pods import WAIT, job_manifest
from midstream.headless.target_creation import settle_unused
from midstream.hosts import kubernetes_host, pod_job
from midstream.hosts.host_pool import HostPool
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.pod_job import PodJob
from midstream.hosts.rpc.remote_call import start_program
from midstream.migrate.failover import guard_pods
from midstream.migrate.failover.guard import LOST, Guard
from midstream.migrate.failover.run_verdict import TERMINATING, UNREACHABLE, Verdict, judge
from midstream.migrate.journal.request import Request
from midstream.operations.create_target import creatable_target, create_target
from midstream.output import Output
from midstream.providers import fleet_slices
from midstream.transfer.link import probe
from midstream.tui.actions import Actions
from midstream.tui.target_choice import TargetMissingError
from midstream.watch.snapshot import DOWN, LIVE, HostView, RunView, Snapshot
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from midstream_host.machine import checks
from midstream_host.runs import run_state
from pages.json_lines import problem_of
from simulators.clusters.kubectl import Cluster, parse_manifest
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream, refused, start_midstream
from support.run_directory import RunDirectory, dead_process

pytestmark = [pytest.mark.drawn, pytest.mark.system]


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


def test_printed_lines_run_in_the_pod(host: KubernetesHost, monkeypatch: pytest.MonkeyPatch) -> None:
    line = host.shell_line("echo $HOME")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == host.root.removesuffix("/.midstream")
    words: list[str] = []
    monkeypatch.setattr(kubernetes_host, "run_shell", words.extend)
    host.open_shell()
    done = subprocess.run(words, input="pwd; exit 5\n", capture_output=True, text=True)
    assert host.root.removesuffix("/.midstream") in done.stdout
    assert done.returncode == 5, done.stderr


def test_copies_pass_through_kubectl(host: KubernetesHost, lab: Lab) -> None:
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


# ------------------------------------------------------------------------------------------ targets


TARGET = """
targets:
  cell:
    type: kubernetes
    namespace: ml
    pods: 2
    create: true
    image: registry.example.org/jax:25
    resources: {nvidia.com/gpu: 8}
    volume_claim: runs
    node_selector: {pool: h100}
    worker: {root: /data/midstream, devices: 1}
"""


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_of_target_are_hosts_of_created_job(kind: str, cluster: Cluster) -> None:
    fleet = parse_fleet(TARGET + f"    kind: {kind}\n", "fleet.yaml")
    target = fleet.targets["cell"]
    assert isinstance(target, KubernetesTarget)
    assert fleet.target("cell").hosts == ("cell-0", "cell-1")
    job = PodJob("cell", target)
    assert not job.exists()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "is Pending" in line:
            cluster.ready()

    cluster.set_flag("hold")
    job.create(say)
    assert any("is Pending" in line for line in said), said
    assert job.exists()
    [manifest] = cluster.applied()
    spec = manifest["spec"] if kind == "job" else manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["completions"], spec["completionMode"], spec["backoffLimit"]) == (2, "Indexed", 0)
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "root", "mountPath": "/data/midstream"}]
    assert (pod["restartPolicy"], pod["nodeSelector"]) == ("Never", {"pool": "h100"})
    for name in ("cell-0", "cell-1"):
        host = KubernetesHost(name, fleet.hosts[name])  # type: ignore[arg-type]
        host.connect()
        assert f"-{name[-1]}-" in host.pod
        assert host.root == "/data/midstream"
    job.delete(said.append)
    assert not job.exists()


def test_command_in_the_manifest_waits_and_ends_with_the_pod(cluster: Cluster) -> None:
    target = parse_fleet(TARGET, "fleet.yaml").targets["cell"]
    assert isinstance(target, KubernetesTarget)
    [manifest] = parse_manifest(job_manifest("cell", target))
    command = manifest["spec"]["template"]["spec"]["containers"][0]["command"]
    with subprocess.Popen(command, start_new_session=True) as waiting:
        try:
            children = ["ps", "-o", "pid=", "--ppid", str(waiting.pid)]
            while not subprocess.run(children, capture_output=True).stdout:  # before its first child it heeds no signal
                assert waiting.poll() is None
            waiting.terminate()
            assert waiting.wait(60) == 0
        finally:
            os.killpg(waiting.pid, signal.SIGKILL)


def test_pod_that_is_evicted_lets_its_engine_save(tmp_path: Path) -> None:
    """The kubelet sends SIGTERM to process 1, and kills the others with its end."""
    new = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() or subprocess.run([*new, "true"], capture_output=True).returncode:
        pytest.skip("a process namespace needs root")
    engine = f"trap 'sleep 2; touch {tmp_path}/saved; exit' TERM; touch {tmp_path}/begun; while :; do sleep 0.1; done"
    with subprocess.Popen([*new, "sh", "-c", WAIT]) as pod:
        try:
            words = ["ps", "-o", "pid=", "--ppid", str(pod.pid)]
            while not (first := subprocess.run(words, capture_output=True, text=True).stdout.strip()):
                assert pod.poll() is None
            inside = ["nsenter", f"--target={first}", "--pid", "--mount"]
            with subprocess.Popen([*inside, "sh", "-c", engine, "midstream_host.supervise"]) as running:
                while not (tmp_path / "begun").exists():
                    assert running.poll() is None
                os.kill(int(first), signal.SIGTERM)
                assert pod.wait(60) == 0
        finally:
            pod.kill()
    assert (tmp_path / "saved").exists()


def test_run_of_a_pod_that_has_ended_is_lost(cluster: Cluster) -> None:
    text = TARGET + "hosts:\n  other: {type: kubernetes, namespace: ml, selector: app=train}\n"
    never = "".join(
        f"  {name}: {{type: kubernetes, pods: 1{where}}}\n"
        for name, where in (("unseen", ""), ("placed", ", context: lab"))
    )
    fleet = parse_fleet(text.replace("hosts:\n", never + "hosts:\n", 1))
    target = fleet.targets["cell"]
    assert isinstance(target, KubernetesTarget)
    PodJob("cell", target).create(lambda _: None)
    [pod] = [path for path in (cluster.state / "pods").iterdir() if path.name.startswith("cell-0-")]
    before = json.loads(pod.read_text())

    def verdict(host: str, link: str = DOWN) -> tuple[str, str]:
        status = records.Status(records.TRAINING, 7, 0, "boot", os.getpid(), 1, 0.0, attempt=1)
        run = RunView("r", host, records.Fence(1, host), None, 1, status, running=True)
        snapshot = Snapshot(1, 0.0, (HostView(host, "kubernetes", link, error="timed out"),), (run,))
        _, found = judge(snapshot, "r", "", fleet_slices.host_slice_status(fleet, host))
        return found.kind, found.reason

    assert verdict("cell-0")[0] == UNREACHABLE, "it runs"
    before["metadata"]["deletionTimestamp"] = "2026-11-26T10:00:00Z"
    pod.write_text(json.dumps(before))
    assert (verdict("cell-0")[0], verdict("cell-0", LIVE)[0]) == (UNREACHABLE, TERMINATING)
    before["status"]["phase"] = before["metadata"].pop("deletionTimestamp") and "Failed"
    pod.write_text(json.dumps(before))
    assert verdict("cell-0") == (
        LOST, "cell-0 does not answer, and pod cell-0-x7k2p is Failed, according to its cluster",
    )  # fmt: skip
    pod.unlink()
    assert verdict("cell-0") == (
        LOST,
        "cell-0 does not answer, and pod cell-0 no longer exists, according to its cluster",
    )
    cluster.set_flag("down")
    assert verdict("cell-0")[0] == UNREACHABLE, "an unreachable cluster is no evidence"
    cluster.set_flag("down", on=False)
    assert verdict("other")[0] == UNREACHABLE, "a pod that a controller replaces comes again"
    assert verdict("unseen-0")[0] == UNREACHABLE, "the current context may be of another cluster"
    assert verdict("placed-0")[0] == LOST


def test_failed_pod_deletes_what_was_created(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_fleet(TARGET, "fleet.yaml").targets["cell"]
    assert isinstance(target, KubernetesTarget)
    job = PodJob("cell", target)
    cluster.set_flag("hold")

    def fail(_: str) -> None:
        for path in (cluster.state / "pods").glob("cell-1-*.json"):
            path.write_text(path.read_text().replace('"Pending"', '"Failed"'))

    with pytest.raises(HostError, match=r"job/cell in ml: cell-1-x7k2p is Failed .*kubectl describe job/cell"):
        job.create(fail)
    assert cluster.applied() == [], "nothing is left"


def test_pods_keep_their_place_while_cluster_does_not_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_job, "POLL_INTERVAL", 0.05)
    target = parse_fleet(TARGET, "fleet.yaml").targets["cell"]
    assert isinstance(target, KubernetesTarget)
    job, lines = PodJob("cell", target), list[str]()
    cluster.set_flag("hold")

    def say(line: str) -> None:
        lines.append(line)
        if "no answer (" in line:
            cluster.set_flag("down", on=False)
            cluster.ready()
        elif "is Pending" in line:
            cluster.set_flag("down")

    job.create(say)
    assert len(cluster.applied()) == 1
    assert any("Unable to connect to the server" in line for line in lines), lines
    monkeypatch.setattr(pod_job, "ANSWER_TIMEOUT", 0.0)
    cluster.set_flag("hold")
    job.delete(lines.append)

    def end(line: str) -> None:
        cluster.set_flag("down", on="is Pending" in line)

    with pytest.raises(HostError, match=r"Unable to connect .*; its pods MAY STILL RUN \(.*midstream --delete cell"):
        job.create(end)


def test_own_manifest_gets_names_and_has_to_have_the_job(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    text = TARGET.replace("image: registry.example.org/jax:25", f"manifest: {file}\n    image: jax:25")
    target = parse_fleet(text, "fleet.yaml").targets["cell"]
    assert isinstance(target, KubernetesTarget)
    file.write_text("kind: Job\nmetadata: {name: $name}\nspec: {completions: $pods, image: '$image', keep: '$(X)'}\n")
    [manifest] = parse_manifest(job_manifest("cell", target))
    assert manifest == {
        "kind": "Job", "metadata": {"name": "cell"}, "spec": {"completions": 2, "image": "jax:25", "keep": "$(X)"},
    }  # fmt: skip
    file.write_text(
        "kind: Service\nmetadata: {name: $name-peers}\n---\nkind: Job\nmetadata: {name: $name}\n"
        "spec: {completions: $pods, parallelism: $pods, completionMode: Indexed,\n"
        "       template: {metadata: {}, spec: {containers: [{name: main}]}}}\n"
    )
    job = PodJob("cell", target)
    job.create(lambda line: None)
    assert sorted(each["kind"] for each in cluster.applied()) == ["Job", "Service"]
    job.delete(lambda line: None)
    assert cluster.applied() == [], "with all that the file has"
    file.write_text("kind: Job\nmetadata: {name: other}\n")
    with pytest.raises(UsageError, match=r"has no Job of the name cell .*\$name"):
        job_manifest("cell", target)


def test_pods_created_for_refused_launch_are_deleted(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(TARGET.replace("/data/midstream", str(tmp_path / "volume")))
    refusal = midstream("--fleet", fleet, "--launch", TINY, "--on", "cell", "--run-id", "r")
    refused(refusal, 3, "cell does not exist", "--yes creates it")
    assert "kind: Job" in refusal.stderr
    assert cluster.applied() == []
    wrong = midstream("--fleet", fleet, "--launch", TINY, "--on", "cell", "--run-id", "../r", "--yes", "--json")
    assert wrong.code == 2, wrong.stderr
    assert [event["event"] for event in wrong.events] == ["result"], "refused before anything is created"
    assert cluster.applied() == []
    known, (options, _) = load_fleet(fleet), parse(["--launch", str(TINY), "--on", "cell"])
    options.created = creatable_target(known, "cell")
    assert options.created is not None
    create_target(known, options.created, print)
    assert [each["kind"] for each in cluster.applied()] == ["Job"]
    settle_unused(known, options, Exit.REFUSED, Output(False))
    assert "created for this refused command (--keep-slice keeps it)" in capsys.readouterr().err
    assert cluster.applied() == []
    again = midstream("--fleet", fleet, "--delete", "cell", "--yes")
    refused(again, 1, "not found")


def guard_of(
    file: Path, monkeypatch: pytest.MonkeyPatch, *, agreed: bool, refusal: str = "no room"
) -> tuple[Guard, list[dict[str, Any]]]:
    """Return a guard of a run to ``cell`` whose plans are refused, and its events."""
    fleet, events = load_fleet(file), list[dict[str, Any]]()
    watch: Any = SimpleNamespace(snapshot=lambda: None, wait_for=lambda *_: None)
    found = Guard(fleet, HostPool(fleet), watch, "r", ["cell"], 1, events.append, agreed)

    def refuse(*_: object) -> None:
        raise MidstreamError(refusal)

    monkeypatch.setattr(found, "_plan", refuse)
    return found, events


def lost_run() -> tuple[RunView, Verdict]:
    return RunView("r", "elsewhere", records.Fence(1, "elsewhere"), None, 1, None, False), Verdict(LOST, "it is lost")


def test_guard_deletes_pods_of_a_refused_plan(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(TARGET)
    guard, events = guard_of(file, monkeypatch, agreed=False)
    with pytest.raises(MidstreamError, match=r"cell: it does not exist, .* job/cell in ml .*--guard with --yes"):
        guard._migrate(*lost_run())
    assert cluster.applied() == []
    guard, events = guard_of(file, monkeypatch, agreed=True)
    with pytest.raises(MidstreamError, match="cell: no room"):
        guard._migrate(*lost_run())
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("creating", ["deleted", "needs you"]), events
    assert "job/cell in ml, 2 pods of registry.example.org/jax:25, nvidia.com/gpu: 8 each" in events[0]["message"]
    assert not [problem for event in events if (problem := problem_of(event))]
    assert cluster.applied() == []


def test_guard_does_not_wait_for_pods_without_end(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(TARGET)
    cluster.set_flag("hold")
    monkeypatch.setattr(guard_pods, "START_TIMEOUT", 0.0)
    guard, _ = guard_of(file, monkeypatch, agreed=True)
    with pytest.raises(MidstreamError, match=r"cell: job/cell in ml: cell-0-x7k2p is Pending, .* after 0 s"):
        guard._migrate(*lost_run())
    assert cluster.applied() == []


def test_screen_creates_pods_once_migration_is_possible(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    run = RunDirectory(tmp_path / "gpu", "r")
    Path(run.paths.config).write_text("trainer: {train_batch_size: 8, num_train_steps: 100}\n")
    run.status(1, records.STOPPED, 20, dead_process())
    run.checkpoint(20)
    run.fence(1, "gpu")
    file.write_text(f"hosts: {{gpu: {{type: local, root: {tmp_path}/gpu, devices: 1}}}}\n{TARGET}")
    fleet = load_fleet(file)
    hosts = HostPool(fleet)
    try:
        actions = Actions(fleet, hosts)
        snapshot = take_snapshot(hosts)
        with pytest.raises(UsageError, match="no run 's'"):
            actions.make_plan(snapshot, Request("s", "cell"))
        with pytest.raises(TargetMissingError, match="cell does not exist") as caught:
            actions.make_plan(snapshot, Request("r", "cell"))
        assert (
            caught.value.missing.price
            == "job/cell in ml, 2 pods of registry.example.org/jax:25, nvidia.com/gpu: 8 each"
        )
        assert cluster.applied() == [], "a plan creates nothing"
        actions.create(caught.value.missing, "r")
        assert [each["kind"] for each in cluster.applied()] == ["Job"]
        with pytest.raises(MidstreamError) as refusal:
            actions.make_plan(snapshot, Request("r", "cell"))
        assert not isinstance(refusal.value, TargetMissingError), "the pods are there"
    finally:
        hosts.close()


@pytest.mark.slow
def test_guard_creates_pods_and_migrates_to_them(
    cluster: Cluster, lab: Lab, runs: Callable[..., Run], tmp_path: Path
) -> None:
    gpu, volume = lab.host("gpu", devices=2), tmp_path / "volume"
    fleet = lab.fleet_file(gpu=gpu.config)
    worker = {"root": str(volume), "devices": 1, "python": sys.executable, "env": dict(lab.local("x", 1).env)}
    entry = {"type": "kubernetes", "pods": 1, "create": True, "image": "jax:25", "worker": worker}
    fleet.write_text(fleet.read_text() + f"targets:\n  cell: {json.dumps(entry)}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 10}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training).code == 0
    source, target = runs(gpu.root, "r"), runs(volume, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "cell", "--tries", "1", "--yes", "--json")
    try:
        assert guard.stderr is not None
        assert guard.stdout is not None
        assert any("guarding r on gpu" in line for line in guard.stderr)
        assert cluster.applied() == [], "nothing is created before it is needed"
        source.kill()
        events: list[dict[str, Any]] = []
        for line in guard.stdout:
            events.append(json.loads(line))
            if events[-1]["kind"] in ("finished", "needs you"):
                break
        assert events[-1]["kind"] == "finished", events
        assert midstream("--fleet", fleet, "--stop", "r").code == 0
        _, errors = guard.communicate(timeout=120)
    finally:
        guard.kill()
    assert guard.returncode == 0, (errors, events)
    kinds = [event["kind"] for event in events]
    assert (kinds[:2], kinds[-2:]) == (["lost", "creating"], ["migrating", "finished"]), (errors, events)
    assert (target.fence.owner, target.fence.epoch) == ("cell", 2)
    assert [each["metadata"]["name"] for each in cluster.applied()] == ["cell"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("kind: jobs", "kind: jobs"), r"targets.cell.kind is 'jobs'"),
        (("pods: 2", "pods: 0"), r"targets.cell.pods is 0"),
        (("image: registry.example.org/jax:25", "image: ''"), r"create: true and no image"),
        (("root: /data/midstream, ", ""), r"has a volume_claim and no root to mount it at .*root: /data"),
        (("devices: 1", "device: 1"), r"targets.cell.worker.device is unknown .*devices"),
        (("namespace: ml", "namespace: ml\n    name: Upper"), r"'Upper' is no name of a Job"),
    ],
)
def test_wrong_pods_target_is_refused_with_hint(change: tuple[str, str], message: str) -> None:
    text = TARGET.replace(*change) if change[0] != change[1] else TARGET + f"    {change[0]}\n"
    with pytest.raises(UsageError, match=message):
        parse_fleet(text, "fleet.yaml")
