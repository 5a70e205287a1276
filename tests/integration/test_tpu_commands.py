"""The command line and a slice of the lab: asked for, reached over SSH with pinned keys, checked, deleted."""

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

from midstream.cli import main
from midstream.errors import Exit, HostError
from midstream.flags import parse
from midstream.fleet.fleet import Fleet, TpuTarget
from midstream.fleet.fleet_file import load_fleet
from midstream.headless.tpu_slices import made_in_vain
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import fleet_slices, interface
from midstream.hosts.providers.google import login
from midstream.hosts.providers.interface import ProviderError
from midstream.output import Output
from midstream_engine import records
from simulators.slice import Slice, target_text
from simulators.sshd import Lab
from simulators.tpu_api import Fault, TpuServer, tpu_server
from simulators.tpu_nodes import Outcome
from support.command_line import TINY, Ended, refused
from support.run_directory import RunDirectory

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
# What gcloud's tunnel does: bytes of stdin go to the instance's port, what comes back goes to stdout.
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
    """The command, in this process: what it imports is imported once."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(list(map(str, arguments)))
    lines = stdout.getvalue().splitlines()
    return Ended(
        code, [json.loads(line) for line in lines if line.startswith("{")], stdout.getvalue(), stderr.getvalue()
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at a creation follow each other as quickly as the lab's service gets on with it."""
    monkeypatch.setattr(interface, "FIRST", 0.01)
    monkeypatch.setattr(interface, "LONGEST", 0.1)


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


def found(file: Path, said: list[str] | None = None) -> Fleet:
    return fleet_slices.found(load_fleet(file), (said if said is not None else []).append)


def test_a_slice_is_asked_for_reached_checked_shown_and_deleted(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    line = refused(midstream("--fleet", file, "--launch", TINY, "--on", "pod"), 3, "pod is not there", "say --yes")
    assert "spot: cheaper, and taken back whenever the provider needs it" in line
    assert tpu_server.created == [], "nothing is made before somebody agreed"
    refused(midstream("--fleet", file, "--check", "pod"), 2, "lab/here-a/n is not there", "--yes")
    refused(midstream("--fleet", file, "--migrate", "none", "--to", "pod", "--yes"), 2, "no run 'none'")
    assert tpu_server.created == [], "nor for a run that does not exist"

    launched = midstream("--fleet", file, "--launch", lab.directory / "no.yaml", "--on", "pod", "--yes")
    assert launched.code == 2, "nor for a config that does not exist"
    assert tpu_server.created == []
    fleet_slices.provider(load_fleet(file).targets["pod"]).create("pod", load_fleet(file).targets["pod"], print)

    shown = midstream("--fleet", file, "--status", "--json")
    (told,) = shown.of("slice")
    words = [told[key] for key in ("place", "target", "state", "price_class")]
    assert words == ["lab/here-a/n", "pod", "READY", "spot"]
    assert len(told["workers"]) == 2
    assert [host["link"] for host in shown.of("host")] == ["down", "down"], "a look lets no key in"
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
    refused(midstream("--fleet", file, "--delete", "pid", "--yes"), 2, "'pid' is no target of type tpu")
    deleted = midstream("--fleet", file, "--delete", "pod", "--yes", "--json")
    assert (deleted.code, deleted.result["deleted"]) == (0, "lab/here-a/n")
    assert tpu_server.nodes == {}


def test_a_creation_that_fails_ends_the_command_and_leaves_nothing(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, queued="true", valid_until="20m")
    tpu_server.outcomes.append(Outcome())
    ended = midstream("--fleet", file, "--launch", TINY, "--on", "pod", "--yes", "--json")
    refused(ended, 1, "There is no more capacity", "what was begun is deleted, nothing costs money")
    assert ended.of("price")[0]["class"] == "spot"
    assert "waits in the queue for 20m at most" in ended.of("price")[0]["text"]
    assert (tpu_server.nodes, tpu_server.queued) == ({}, {})


def test_a_host_key_that_is_not_the_services_word_is_refused(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    tpu_server.workers["n"][1] = replace(pod.workers[1], host_keys=pod.workers[0].host_keys)
    file = fleet_file(lab, pod)
    target = load_fleet(file).targets["pod"]
    fleet_slices.provider(target).create("pod", target, print)
    said: list[str] = []
    hosts = Hosts(found(file, said))
    try:
        assert hosts.get("pod-0").root == str(pod.roots[0])
        with pytest.raises(HostError, match=r"host key of tpu\.1\.n-1 has CHANGED"):
            hosts.get("pod-1")
    finally:
        hosts.close()
    assert said[-1].endswith("lets root in") or "lets" in said[-1]
    directory = Path(os.environ["MIDSTREAM_STATE"], "slices/lab/here-a/n")
    assert stat.S_IMODE((directory / "known_hosts").stat().st_mode) == 0o600
    by_hand = subprocess.run(
        ["ssh", "-F", str(directory / "ssh_config"), "-o", "BatchMode=yes", "pod-0", "echo hello from $HOME"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert by_hand.stdout.strip() == f"hello from {pod.servers[0].directory}", by_hand.stderr


def test_keys_of_others_stay_when_they_are_written_at_the_same_time(
    lab: Lab, tpu_server: TpuServer, pod: Slice
) -> None:
    file = fleet_file(lab, pod)
    target = load_fleet(file).targets["pod"]
    fleet_slices.provider(target).create("pod", target, print)
    tpu_server.nodes[NODE].metadata["ssh-keys"] = "ann:ssh-ed25519 AAAA ann"
    tpu_server.metadata_refusals = 2
    tpu_server.faults.append(Fault("UpdateNode", grpc.StatusCode.UNAVAILABLE))
    found(file)
    lines = tpu_server.nodes[NODE].metadata["ssh-keys"].splitlines()
    assert lines[0] == "ann:ssh-ed25519 AAAA ann"
    assert len(lines) == 2


def test_the_way_through_iap_is_gclouds_own(
    lab: Lab, tpu_server: TpuServer, pod: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for gcloud's tunnel: it knows instances by name, as IAP does."""
    bin_ = lab.directory / "bin"
    bin_.mkdir()
    ways = {worker.hostname: worker.internal for worker in pod.workers}
    (bin_ / "gcloud").write_text(TUNNEL.format(python=sys.executable, ways=ways, log=str(lab.directory / "tunnels")))
    (bin_ / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    file = fleet_file(lab, pod, reach="iap")
    target = load_fleet(file).targets["pod"]
    fleet_slices.provider(target).create("pod", target, print)
    assert not tpu_server.nodes[NODE].network_config.enable_external_ips
    hosts = Hosts(found(file))
    try:
        assert hosts.get("pod-1").root == str(pod.roots[1])
    finally:
        hosts.close()
    assert (lab.directory / "tunnels").read_text().split("\n")[0] == (
        f"compute start-iap-tunnel t1v-n-lab-w-1 {pod.port} --listen-on-stdin --project=lab --zone=here-a "
        "--verbosity=warning"
    )


def test_os_login_gives_the_key_to_the_account_and_takes_its_name(
    lab: Lab, tpu_server: TpuServer, pod: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict]] = []
    refusals: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            names = [{"username": "other"}, {"username": "ann_example_com", "primary": True}]
            body = {"error": {"message": refusals[0]}} if refusals else {"loginProfile": {"posixAccounts": names}}
            text = json.dumps(body).encode()
            self.send_response(403 if refusals else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv(login.ENDPOINT, f"127.0.0.1:{server.server_address[1]}")
    try:
        file = fleet_file(lab, pod, os_login="ann@example.com")
        target = load_fleet(file).targets["pod"]
        assert isinstance(target, TpuTarget)
        fleet_slices.provider(target).create("pod", target, print)
        fleet = found(file)
        assert asked[0][0] == "/v1/users/ann%40example.com:importSshPublicKey?projectId=lab"
        assert asked[0][1]["key"].startswith("ssh-ed25519 ")
        config = Path(os.environ["MIDSTREAM_STATE"], "slices/lab/here-a/n/ssh_config").read_text()
        assert "User ann_example_com" in config
        assert fleet.target("pod").hosts == ("pod-0", "pod-1")
        assert not tpu_server.called("UpdateNode"), "no key in the metadata"
        refusals.append("Insufficient Permission")
        with pytest.raises(ProviderError, match=r"Insufficient Permission \(roles/compute.osLogin"):
            login.import_key("ann@example.com", "ssh-ed25519 AAAA", "lab")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_leftovers_are_named_and_only_what_runs_nothing_is_removed(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    target = load_fleet(file).targets["pod"]
    for name in ("n", "dead", "living"):
        fleet_slices.provider(target).create("pod", replace(target, name=name), print)
    tpu_server.preempt("dead")
    named = midstream("--fleet", file, "--clean", "--json")
    left = {each["place"]: each for each in named.of("leftover")}
    assert set(left) == {"lab/here-a/dead", "lab/here-a/living"}, "what a target names is no leftover"
    assert left["lab/here-a/living"]["kept"].startswith("it is READY, and may be in use")
    assert named.result["removable"] == 1
    assert len(tpu_server.nodes) == 3
    cleaned = midstream("--fleet", file, "--clean", "--yes", "--json")
    assert cleaned.code == 0
    assert sorted(each.rpartition("/")[2] for each in tpu_server.nodes) == ["living", "n"]


def waiting_run(lab: Lab, file: Path, batch: int) -> Path:
    """A run that was stopped on host ``gpu`` of the fleet file, at step 20."""
    run = RunDirectory(lab.directory / "gpu", "r")
    Path(run.paths.config).write_text(f"trainer: {{train_batch_size: {batch}, num_train_steps: 100}}\n")
    run.status(1, records.STOPPED, 20, records.ProcessIdentity("no such boot", 1, 1))
    run.fence(1, "gpu")
    name = run.checkpoint(20)
    Path(run.paths.checkpoint(name), records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    file.write_text(file.read_text().replace("hosts: {}", f"hosts: {{gpu: {{type: local, root: {run.paths.root}}}}}"))
    return file


@pytest.mark.parametrize(
    ("batch", "flags", "words"),
    [
        (48, (), "a batch of 48 cannot be divided over 32 data-parallel devices"),
        (64, ("--checkpoint", "7"), "no complete checkpoint at step 7"),
        (64, ("--mode", "jump"), "mode 'jump' is not known"),
    ],
)
def test_a_move_that_is_refused_anyway_has_nothing_made(
    lab: Lab, tpu_server: TpuServer, pod: Slice, batch: int, flags: tuple[str, ...], words: str
) -> None:
    file = waiting_run(lab, fleet_file(lab, pod, worker="{}"), batch)
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", *flags)
    assert ended.code in (1, 2, 3)
    assert words in ended.stderr.splitlines()[-1]
    assert tpu_server.created == []


def test_a_slice_whose_move_is_refused_is_given_back(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = waiting_run(lab, fleet_file(lab, pod, worker="{devices: 1, python: /no/such/python}"), 64)
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", "--json")
    assert ended.code == 3, ended.stderr
    assert len(tpu_server.created) == 1
    assert tpu_server.nodes == {}
    assert ended.of("deleted")[0]["slice"] == "lab/here-a/n"
    assert "lab/here-a/n is deleted, it costs nothing any more" in ended.stderr
    assert "preflight refused" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "code", "denied"),
    [(["--keep-slice"], Exit.REFUSED, False), ([], Exit.FAILED, False), ([], Exit.REFUSED, True)],
    ids=["it is to stay", "more than a refusal", "it cannot be"],
)
def test_a_slice_that_is_not_given_back_is_said_to_cost_money(
    lab: Lab,
    tpu_server: TpuServer,
    pod: Slice,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    code: Exit,
    denied: bool,
) -> None:
    fleet = load_fleet(fleet_file(lab, pod))
    fleet_slices.provider(fleet.targets["pod"]).create("pod", fleet.targets["pod"], print)
    if denied:
        tpu_server.faults.append(Fault("DeleteNode", grpc.StatusCode.PERMISSION_DENIED, times=99))
    options, _ = parse(["--migrate", "r", "--to", "pod", *flags])
    options.made = "pod"
    made_in_vain(fleet, options, code, Output(False))
    assert NODE in tpu_server.nodes
    assert "it is kept, and costs money until midstream --delete pod" in capsys.readouterr().err


def test_workers_are_reached_at_their_internal_addresses(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    tpu_server.workers["n"] = [replace(worker, external="") for worker in pod.workers]
    file = fleet_file(lab, pod, reach="internal")
    target = load_fleet(file).targets["pod"]
    fleet_slices.provider(target).create("pod", target, print)
    assert not tpu_server.nodes[NODE].network_config.enable_external_ips, "none is paid for"
    hosts = Hosts(found(file))
    assert [hosts.get(f"pod-{index}").root for index in range(2)] == [str(root) for root in pod.roots]
    hosts.close()
    outside = fleet_file(lab, pod)
    assert "reach: internal, from within its network" in str(found(outside).absent["pod"])


def test_a_slice_that_was_made_in_vain_is_told(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod, worker="{devices: 1, python: /no/such/python}")
    ended = midstream("--fleet", file, "--launch", TINY, "--on", "pod", "--yes", "--json")
    assert ended.code == 1
    assert "pod was made for this; it is kept, and costs money until midstream --delete pod" in ended.stderr
    assert ended.of("kept")
    assert NODE in tpu_server.nodes
