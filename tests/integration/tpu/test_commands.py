"""Commands with a TPU slice of the lab: create, check, status, delete."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from midstream.check.fleet_leftovers import CHANGED, SliceLeftover
from midstream.cli import main
from midstream.compare.compiler import engine_and_packages
from midstream.compare.estimate import Memory, StepEstimate, cache_file, store
from midstream.compare.subject import Subject, of_config, of_import
from midstream.errors import Exit, HostError
from midstream.flags import parse
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.fleet.fleet_file import load_fleet
from midstream.fleet.tpu_target import TpuTarget
from midstream.headless.target_creation import settle_unused
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.operations.create_target import creatable_slice
from midstream.output import Output
from midstream.providers import fleet_slices, os_login
from midstream.providers.provider import ProviderError
from midstream.tui.actions import Actions
from midstream_core import records
from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import Fault, TpuServer, fast_polling, tpu_server
from simulators.google.tpu_nodes import Outcome, State
from simulators.sshd import Lab
from support.command_line import TINY, Ended, refused
from support.paths import FIXTURES
from support.run_directory import RunDirectory

__all__ = ["fast_polling", "tpu_server"]
pytestmark = [pytest.mark.drawn, pytest.mark.system, pytest.mark.usefixtures("fast_polling")]
# Like gcloud's tunnel: stdin goes to the instance's port, its answer to stdout.
TUNNEL = """#!{python} -ES
import os, select, socket, sys
words = sys.argv[1:]
if words[:2] != ["compute", "start-iap-tunnel"]: sys.exit(2)
open({log!r}, "a").write(" ".join(words) + "\\n")
there = socket.create_connection(({ways}[words[2]], int(words[3])))
while True:
    for each in select.select([0, there], [], [])[0]:
        data = os.read(0, 65536) if each == 0 else there.recv(65536)
        if not data: sys.exit()
        there.sendall(data) if each == 0 else os.write(1, data)
"""
NODE = "projects/lab/locations/here-a/nodes/n"


def midstream(*arguments: str | Path) -> Ended:
    """Run the command in this process, which imports its modules once."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as ended:  # invalid flags
            code = int(ended.code or 0)
    lines = stdout.getvalue().splitlines()
    return Ended(
        code, [json.loads(line) for line in lines if line.startswith("{")], stdout.getvalue(), stderr.getvalue()
    )


@pytest.fixture
def pod(lab: Lab, tpu_server: TpuServer) -> Slice:
    node = Slice(lab, "n", 2)
    tpu_server.workers["n"] = node.workers
    return node


def fleet_file(lab: Lab, node: Slice, **more: str) -> Path:
    worker = f"{{devices: 1, python: {sys.executable}}}"
    words = {"create": "true", "spot": "true", "worker": worker, **more}
    file = lab.directory / "fleet.yaml"
    file.write_text("hosts: {}\ntargets:\n" + target_text("pod", node, lab.directory / "key", **words))
    return file


def found(file: Path, messages: list[str] | None = None) -> Fleet:
    return fleet_slices.with_slices(load_fleet(file), (messages if messages is not None else []).append)


def test_slice_is_created_checked_shown_and_deleted(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    line = refused(
        midstream("--fleet", file, "--launch", TINY, "--on", "pod"), 3, "pod does not exist", "--yes creates it"
    )
    assert "spot: cheaper, and preempted whenever the provider needs it" in line
    assert tpu_server.created == [], "nothing is created without consent"
    refused(midstream("--fleet", file, "--check", "pod"), 2, "lab/here-a/n does not exist", "--yes")
    refused(midstream("--fleet", file, "--migrate", "none", "--to", "pod", "--yes"), 2, "no run 'none'")
    assert tpu_server.created == [], "nor for a run that does not exist"

    launched = midstream("--fleet", file, "--launch", lab.directory / "no.yaml", "--on", "pod", "--yes")
    assert launched.code == 2, "nor for a config that does not exist"
    assert tpu_server.created == []
    fleet_slices.provider_of(load_fleet(file).slices["pod"]).create("pod", load_fleet(file).slices["pod"], print)

    shown = midstream("--fleet", file, "--status", "--json")
    (row,) = shown.of("slice")
    words = [row[key] for key in ("path", "target", "state", "price_class")]
    assert words == ["lab/here-a/n", "pod", "READY", "spot"]
    assert len(row["workers"]) == 2
    assert [host["link"] for host in shown.of("host")] == ["down", "down"], "status installs no key"
    assert "ssh-keys" not in tpu_server.nodes[NODE].metadata

    checked = midstream("--fleet", file, "--check", "pod", "--json")
    assert checked.code == 0, (checked.stdout, checked.stderr)
    checks = {(check["name"], check.get("host", "")): check for check in checked.of("check")}
    assert checks["answers", "pod-1"]["detail"] == f"{pod.roots[1]}/"
    assert checks["shared file system", ""]["detail"].startswith("none under")
    rows = [row.split() for row in midstream("--fleet", file, "--status").stdout.splitlines()]
    assert [row[:2] for row in rows if row[:1] == ["pod-0"]] == [["pod-0", "live"]]
    assert ["lab/here-a/n", "pod", "READY", "v3-32"] in [row[:4] for row in rows]

    refused(midstream("--fleet", file, "--delete", "pod"), 3, "lab/here-a/n would be deleted", "--yes")
    refused(midstream("--fleet", file, "--delete", "pid", "--yes"), 2, "'pid' is not a target of type tpu")
    deleted = midstream("--fleet", file, "--delete", "pod", "--yes", "--json")
    assert (deleted.code, deleted.result["deleted"]) == (0, "lab/here-a/n")
    assert tpu_server.nodes == {}


def test_failed_creation_ends_command_and_leaves_nothing(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, queued="true", valid_until="20m")
    tpu_server.outcomes.append(Outcome())
    ended = midstream("--fleet", file, "--launch", TINY, "--on", "pod", "--yes", "--json")
    refused(ended, 1, "There is no more capacity", "what was created is deleted, nothing costs money")
    assert ended.of("price")[0]["class"] == "spot"
    assert "waits in the queue for 20m at most" in ended.of("price")[0]["text"]
    assert (tpu_server.nodes, tpu_server.queued) == ({}, {})


def test_host_key_other_than_the_services_is_refused(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    tpu_server.workers["n"][1] = replace(pod.workers[1], host_keys=pod.workers[0].host_keys)
    file = fleet_file(lab, pod)
    target = load_fleet(file).slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, print)
    messages: list[str] = []
    hosts = HostPool(found(file, messages))
    try:
        assert hosts.get("pod-0").root == str(pod.roots[0])
        with pytest.raises(HostError, match=r"host key of tpu\.1\.n-1 has CHANGED"):
            hosts.get("pod-1")
    finally:
        hosts.close()
    assert "key of" in messages[-1]
    directory = Path(os.environ["MIDSTREAM_STATE"], "slices/lab/here-a/n")
    assert stat.S_IMODE((directory / "known_hosts").stat().st_mode) == 0o600
    by_hand = subprocess.run(
        ["ssh", "-F", str(directory / "ssh_config"), "-o", "BatchMode=yes", "pod-0", "echo hello from $HOME"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert by_hand.stdout.strip() == f"hello from {pod.servers[0].directory}", by_hand.stderr


def test_ssh_keys_of_other_users_are_kept(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    target = load_fleet(file).slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, print)
    tpu_server.nodes[NODE].metadata["ssh-keys"] = "ann:ssh-ed25519 AAAA ann"
    tpu_server.metadata_refusals = 2
    tpu_server.faults.append(Fault("UpdateNode", grpc.StatusCode.UNAVAILABLE))
    found(file)
    lines = tpu_server.nodes[NODE].metadata["ssh-keys"].splitlines()
    assert lines[0] == "ann:ssh-ed25519 AAAA ann"
    assert len(lines) == 2


def test_iap_uses_gcloud_tunnel(lab: Lab, tpu_server: TpuServer, pod: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for gcloud's tunnel addresses instances by name, as IAP does."""
    bin_ = lab.directory / "bin"
    bin_.mkdir()
    ways = {worker.hostname: worker.internal for worker in pod.workers}
    (bin_ / "gcloud").write_text(TUNNEL.format(python=sys.executable, ways=ways, log=str(lab.directory / "tunnels")))
    (bin_ / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    file = fleet_file(lab, pod, reach="iap")
    target = load_fleet(file).slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, print)
    assert not tpu_server.nodes[NODE].network_config.enable_external_ips
    hosts = HostPool(found(file))
    try:
        assert hosts.get("pod-1").root == str(pod.roots[1])
    finally:
        hosts.close()
    assert (lab.directory / "tunnels").read_text().split("\n")[0] == (
        f"compute start-iap-tunnel t1v-n-lab-w-1 {pod.port} --listen-on-stdin --project=lab --zone=here-a "
        "--verbosity=warning"
    )


def test_os_login_imports_key_and_uses_account_name(
    lab: Lab, tpu_server: TpuServer, pod: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[tuple[str, dict]] = []
    refusals: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            names = [{"username": "other"}, {"username": "ann_example_com", "primary": True}]
            body = {"error": {"message": refusals[0]}} if refusals else {"loginProfile": {"posixAccounts": names}}
            text = json.dumps(body).encode()
            self.send_response(403 if refusals else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv(os_login.ENDPOINT, f"127.0.0.1:{server.server_address[1]}")
    try:
        file = fleet_file(lab, pod, os_login="ann@example.com")
        target = load_fleet(file).slices["pod"]
        assert isinstance(target, TpuTarget)
        fleet_slices.provider_of(target).create("pod", target, print)
        fleet = found(file)
        assert received[0][0] == "/v1/users/ann%40example.com:importSshPublicKey?projectId=lab"
        assert received[0][1]["key"].startswith("ssh-ed25519 ")
        config = Path(os.environ["MIDSTREAM_STATE"], "slices/lab/here-a/n/ssh_config").read_text()
        assert "User ann_example_com" in config
        assert fleet.target("pod").hosts == ("pod-0", "pod-1")
        assert not tpu_server.called("UpdateNode"), "no key in the metadata"
        refusals.append("Insufficient Permission")
        with pytest.raises(ProviderError, match=r"Insufficient Permission \(roles/compute.osLogin"):
            os_login.import_key("ann@example.com", "ssh-ed25519 AAAA", "lab")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_clean_removes_idle_leftover_slices_alone(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    target = load_fleet(file).slices["pod"]
    for name in ("n", "preempted", "ready", "stopped"):
        fleet_slices.provider_of(target).create("pod", replace(target, name=name), print)
    tpu_server.preempt("preempted")
    tpu_server.nodes["projects/lab/locations/here-a/nodes/stopped"].state = State.STOPPED
    named = midstream("--fleet", file, "--clean", "--json")
    left = {each["path"]: each for each in named.of("leftover")}
    assert {each.rpartition("/")[2] for each in left} == {"preempted", "ready", "stopped"}, "a target names the other"
    assert left["lab/here-a/ready"]["kept"].startswith("it is READY, and may be in use")
    assert (named.result["leftovers"], named.result["removable"]) == (3, 1)
    fleet = load_fleet(file)
    actions = Actions(fleet, HostPool(fleet))
    shown = actions.leftovers(print)
    kept = {each.slice.path: each.kept for each in shown if isinstance(each, SliceLeftover)}
    assert kept == {path: each["kept"] for path, each in left.items()}, "the terminal UI lists the same"
    listed = [each for each in shown if isinstance(each, SliceLeftover) and not each.kept]
    earlier = [replace(each, slice=replace(each.slice, identity="of an earlier slice")) for each in listed]
    stays = [each.kept for each in actions.leftovers(print, earlier) if isinstance(each, SliceLeftover)]
    assert sum(each == CHANGED for each in stays) == 1, "a later slice of that name was not agreed to"
    assert len(tpu_server.nodes) == 4
    cleaned = midstream("--fleet", file, "--clean", "--yes", "--json")
    assert cleaned.code == 0
    assert sorted(each.rpartition("/")[2] for each in tpu_server.nodes) == ["n", "ready", "stopped"]


def store_estimate(file: Path, config: Path, flags: tuple[str, ...], largest: int | None) -> None:
    """Store what compiling a config for the pod would find: four examples at a time do not fit."""
    store_for(file, of_config(config, flags), largest)


def store_for(file: Path, subject: Subject, largest: int | None) -> None:
    target = load_fleet(file).targets["pod"]
    assert isinstance(target, TpuTarget)
    accelerators = target.accelerators
    assert accelerators is not None
    store(
        cache_file(engine_and_packages(), subject.config, subject.overrides, accelerators),
        StepEstimate(
            "estimate", accelerators.name, largest is not None, False, 4, largest, 20 << 30, 1.0, 8, "TPU v5 lite",
            16 << 30, 1, 1, 32, 1024, 10, largest, 4, Memory(8 << 30, 1, 1), 1.0, 0.8, 1.3,
        ),
    )  # fmt: skip


def test_no_slice_is_created_for_a_step_that_cannot_fit(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker=f"{{python: {sys.executable}}}", accelerator_type="v5litepod-8")
    launch = ("--fleet", file, "--launch", TINY, "--on", "pod", "--yes")
    store_estimate(file, TINY, (), None)
    refused(midstream(*launch), 3, "pod is not created: a step with one example at a time needs 21.5 GB a device")
    other = ("--run-id", "mine", "--", "--trainer.id", "other")
    refused(midstream(*launch, *other), 2, "--run-id mine and --trainer.id other name different runs")
    store_estimate(file, TINY, ("--trainer.seed", "1"), 2)
    refused(
        midstream(*launch, "--", "--trainer.seed", "1"), 3, "4 examples at a time needs 21.5 GB a device of 17.2 GB",
        "-- --trainer.per_device_parallelism 2 fits",
    )  # fmt: skip
    assert tpu_server.created == []
    # The check of a slice that does not exist says the same, and rehearses nowhere.
    checked = midstream("--fleet", file, "--check", "pod", "--rehearse", TINY, "--json")
    assert checked.code == 3
    assert [(check["name"], check["state"]) for check in checked.of("check")] == [("fit", "fail")]
    assert checked.of("candidate")[0]["fits"] is False


def test_fit_that_is_not_known_is_said_and_asks_for_the_price(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker=f"{{python: {sys.executable}}}")  # v3, for which no compiler exists any more
    ended = midstream("--fleet", file, "--launch", TINY, "--on", "pod")
    assert "whether a step fits pod is not known before it exists: v3-32 is not in the table" in ended.stderr
    refused(ended, 3, "pod does not exist", "--yes creates it")
    assert tpu_server.created == []


def add_stopped_run(lab: Lab, file: Path, batch: int) -> Path:
    """Add host ``gpu`` with a run that was stopped at step 20 to the fleet file."""
    run = RunDirectory(lab.directory / "gpu", "r")
    Path(run.paths.config).write_text(f"trainer: {{train_batch_size: {batch}, num_train_steps: 100}}\n")
    run.status(1, records.STOPPED, 20, records.ProcessIdentity("no such boot", 1, 1))
    run.fence(1, "gpu")
    name = run.checkpoint(20)
    Path(run.paths.checkpoint(name), records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    file.write_text(file.read_text().replace("hosts: {}", f"hosts: {{gpu: {{type: local, root: {run.paths.root}}}}}"))
    return file


def test_dry_run_says_whether_a_slice_that_does_not_exist_fits(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker=f"{{python: {sys.executable}}}", accelerator_type="v5litepod-8", create="false")
    add_stopped_run(lab, file, 64)
    config = Path(records.RunPaths(str(lab.directory / "gpu"), "r").config)
    config.write_text("data: {tokenizer: bytes, train_urls: [a]}\ntrainer: {train_batch_size: 64}\n")
    copy = lab.directory / "r.yaml"
    copy.write_text(config.read_text())
    store_estimate(file, copy, (), None)
    dry = ("--fleet", file, "--migrate", "r", "--to", "pod", "--dry-run")
    refused(midstream(*dry), 3, "pod is not created: a step with one example at a time needs 21.5 GB a device")
    assert tpu_server.created == []


def test_no_slice_is_created_for_an_import_that_cannot_fit(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker=f"{{python: {sys.executable}}}", accelerator_type="v5litepod-8")
    root = f"{lab.directory}/gpu"
    file.write_text(file.read_text().replace("hosts: {}", f"hosts: {{gpu: {{type: local, root: {root}}}}}"))
    checkpoint = FIXTURES / "neox" / "pythia-fp32-z1-dp2"
    source = LocalHost("gpu", LocalHostConfig(root=root))
    store_for(file, of_import(Fleet(), source, str(checkpoint), "", ()), None)
    move = ("--fleet", file, "--to", "pod", "--yes", "--migrate")
    line = "pod is not created: a step with one example at a time needs 21.5 GB a device"
    refused(midstream(*move, f"gpu:{checkpoint}"), 3, line)
    refused(midstream(*move, f"gpu:{lab.directory}"), 3, "not a checkpoint of GPT-NeoX, Levanter, MaxText, torch")
    other = (*move, f"gpu:{checkpoint}", "--", "--trainer.id", "other")
    refused(midstream(*other), 2, "--trainer.id other: run pythia-fp32-z1-dp2 keeps its id", "leave --trainer.id out")
    assert tpu_server.created == []


@pytest.mark.parametrize(
    ("batch", "flags", "words"),
    [
        (48, (), "a batch of 48 cannot be divided over 32 data-parallel devices"),
        (64, ("--checkpoint", "7"), "no complete checkpoint at step 7"),
        (64, ("--mode", "jump"), "'jump' is none of warm, cold and live"),
        (64, ("--", "--trainer.id", "other"), "--trainer.id other: run r keeps its id"),
        (64, ("--", "--trainer.root", "/other"), "--trainer.root /other: midstream would not find the run there"),
    ],
)
def test_refused_migration_creates_no_slice(
    lab: Lab, tpu_server: TpuServer, pod: Slice, batch: int, flags: tuple[str, ...], words: str
) -> None:
    file = add_stopped_run(lab, fleet_file(lab, pod, worker="{}"), batch)
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", *flags)
    assert ended.code in (1, 2, 3)
    assert words in ended.stderr.splitlines()[-1]
    assert tpu_server.created == []


def test_slice_of_refused_migration_is_deleted(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = add_stopped_run(lab, fleet_file(lab, pod, worker="{devices: 1, python: /no/such/python}"), 64)
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", "--json")
    assert ended.code == 3, ended.stderr
    assert len(tpu_server.created) == 1
    assert tpu_server.nodes == {}
    assert ended.of("deleted")[0]["slice"] == "lab/here-a/n"
    assert "lab/here-a/n is deleted and costs nothing more" in ended.stderr
    assert "preflight refused" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "code", "denied"),
    [(["--keep-slice"], Exit.REFUSED, False), ([], Exit.FAILED, False), ([], Exit.REFUSED, True)],
    ids=["keep-slice", "failure", "deletion denied"],
)
def test_slice_that_remains_is_reported_with_its_cost(
    lab: Lab,
    tpu_server: TpuServer,
    pod: Slice,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    code: Exit,
    denied: bool,
) -> None:
    fleet = load_fleet(fleet_file(lab, pod))
    fleet_slices.provider_of(fleet.slices["pod"]).create("pod", fleet.slices["pod"], print)
    if denied:
        tpu_server.faults.append(Fault("DeleteNode", grpc.StatusCode.PERMISSION_DENIED, times=99))
    options, _ = parse(["--migrate", "r", "--to", "pod", *flags])
    options.created = creatable_slice(fleet, "pod")
    settle_unused(fleet, options, code, Output(False))
    assert NODE in tpu_server.nodes
    assert "pod was created for this command and costs money until midstream --delete pod" in capsys.readouterr().err


def test_workers_are_reached_at_internal_addresses(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    tpu_server.workers["n"] = [replace(worker, external="") for worker in pod.workers]
    file = fleet_file(lab, pod, reach="internal")
    target = load_fleet(file).slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, print)
    assert not tpu_server.nodes[NODE].network_config.enable_external_ips, "no external address costs money"
    hosts = HostPool(found(file))
    assert [hosts.get(f"pod-{index}").root for index in range(2)] == [str(root) for root in pod.roots]
    hosts.close()
    outside = fleet_file(lab, pod)
    assert "reach: internal, from within its network" in str(found(outside).unavailable["pod"])


def test_slice_of_a_failed_launch_is_reported(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker="{devices: 1, python: /no/such/python}")
    ended = midstream("--fleet", file, "--launch", TINY, "--on", "pod", "--yes", "--json")
    assert ended.code == 1
    assert "pod was created for this command and costs money until midstream --delete pod" in ended.stderr
    assert ended.of("kept")
    assert NODE in tpu_server.nodes
