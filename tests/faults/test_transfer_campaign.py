"""Copies with cut links, killed programs, flipped bits, full disks, many times.

    python tests/faults/test_transfer_campaign.py [--runs 200] [--seed 1] [--results FILE]

A run copies a tree through a link to a real SSH server, from this machine or directly from another host. The fault
happens after a random number of bytes. Afterwards the target is complete and byte-equal, or has no manifest, and each
file with an object's name is that object, unless the fault damaged it. The same copy then resumes: it ends byte-equal,
sends no verified byte again, and leaves no other file.

Results are appended, one line per run: an interrupted campaign continues where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from midstream_host.copy_items import CopyObject
from midstream_host.object_files import INCOMING

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.direct_streams import UNREACHABLE
from midstream.transfer.endpoint import Endpoint
from midstream_core import records
from midstream_host.copy import staging
from simulators.disks import small_disk
from simulators.link import FAR, Link, through
from simulators.sshd import SSHD, Lab
from support.checkpoints.trees import SOURCES, assert_same_tree, files, random_contents, write_tree
from support.loopback import free_port
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/transfer-faults.jsonl"
SAMPLE = 6
MIB = 1 << 20
KINDS = ("cut", "kill far", "kill near", "kill operator", "flip in transit", "flip at rest", "full disk")
DISK = 48 * MIB

OPERATOR = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from midstream.fleet.fleet import LocalHostConfig, SshHostConfig
from midstream.hosts.host_pool import open_host
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.copy_tree import copy_tree
host = open_host("far", SshHostConfig(**json.loads(sys.argv[2])))
host.connect()
source = Endpoint(open_host("here", LocalHostConfig(root=sys.argv[3])), sys.argv[4])
copy_tree(source, Endpoint(host, sys.argv[5]))
"""


class Campaign:
    """Two servers, one of them behind a link, and a tree; all runs use them."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.lab = Lab(room / "lab")
        server = self.lab.host("far")
        self.servers = [server, self.lab.host("near")]
        self.copy_port = free_port("127.0.0.1", FAR)
        # A link that carries SSH alone, and one that carries a port of copies, too.
        self.links = Link(server.port), Link(server.port, copy_port=self.copy_port)
        self.far_configs = [
            through(server, link.port, port).config for link, port in zip(self.links, (0, self.copy_port), strict=True)
        ]
        self.here = LocalHost("here", LocalHostConfig(root=str(room / "here")))
        self.fars = [open_host("far", config) for config in self.far_configs]
        self.near = open_host("near", self.servers[1].config)
        self.near.connect()
        self.disk = room / "disk"
        self.mounts = ExitStack()
        before = children(os.getpid())
        self.mounted = self.mounts.enter_context(small_disk(self.disk, str(DISK)))
        self.keepers = children(os.getpid(), but=before)  # processes of the disk, not of a copy

    def close(self) -> None:
        for host in (*self.fars, self.near):
            host.close()
        for link in self.links:
            link.close()
        self.lab.close()
        self.mounts.close()

    # ---------------------------------------------------------------------------------------------- the faults

    def kill_one(self, rng: random.Random, roots: list[int]) -> None:
        victims = [pid for root in roots for pid in descendants(root)]
        if victims:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(rng.choice(victims), signal.SIGKILL)

    def run(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}-{number}")
        kind = KINDS[number % len(KINDS)]
        direct = kind in ("cut", "kill far", "flip at rest", "full disk") and rng.random() < 0.4
        if kind == "full disk" and not self.mounted:
            kind = "cut"
        room = self.disk if kind == "full disk" else self.room
        source, target = self.room / f"source-{number}", room / f"target-{number}"
        sizes = [rng.randrange(17 * MIB, 26 * MIB), *(rng.randrange(2 * MIB) for _ in range(4)), 0, 1, 70_000]
        contents = random_contents(rng, sizes)
        write_tree(source, contents)
        size = sum(sizes)
        at = rng.randrange(size) if not direct else rng.randrange(20_000, 120_000)
        tls = not direct and number % 2 == 1  # from this machine to a port of the host
        link, far = self.links[tls], self.fars[tls]
        UNREACHABLE.clear()
        route = "direct" if direct else "auto" if tls else "relay"
        settings = CopySettings(route=route, streams=rng.choice([1, 2, 3]))
        filler = self.disk / "other file"
        if kind == "full disk":
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, DISK - rng.randrange(size // 8, size))
        far.connect()
        sending = self.near if direct else self.here
        error = ""
        self.arm(link, rng, kind, at, direct)
        try:
            if kind == "kill operator":
                error = self.killed_operator(tls, at, source, target)
            else:
                copy_tree(Endpoint(sending, str(source)), Endpoint(far, str(target)), settings=settings)
        except MidstreamError as caught:
            error = str(caught)
            assert "\n" not in error
        finally:
            link.after(1 << 60, lambda: None)
        settle(target)
        first = check(target, contents, complete=not error)
        if kind == "flip at rest" and first["there"]:
            first["there"] -= flip(rng, target)
        if kind == "full disk":
            filler.unlink()
        kept, parts = first["there"], chunks_there(target, contents)
        far.connect()
        self.near.connect()
        report = copy_tree(Endpoint(sending, str(source)), Endpoint(far, str(target)), settings=settings)
        assert report.bytes_sent <= size - kept - parts, "a verified byte was sent again"
        assert_same_tree(target, source, "not byte-equal, or another file was left")
        shutil.rmtree(source)
        shutil.rmtree(target)
        return {
            "seed": seed, "run": number, "kind": kind, "direct": direct, "tls": tls, "at": at,
            "streams": settings.streams,
            "bytes": size, "error": error, "named": kept, "parts": parts, "sent_again": report.bytes_sent,
        }  # fmt: skip

    def arm(self, link: Link, rng: random.Random, kind: str, at: int, direct: bool) -> None:
        sshds = [server.process.pid for server in (self.servers if direct else self.servers[:1])]
        actions = {
            "cut": link.cut,
            "flip at rest": link.cut,
            "flip in transit": link.flip,
            "kill far": lambda: self.kill_one(rng, sshds),
            "kill near": lambda: self.kill_one(rng, children(os.getpid(), but=[*sshds, *self.keepers])),
        }
        if kind in actions:
            link.after(at, actions[kind])

    def killed_operator(self, tls: bool, at: int, source: Path, target: Path) -> str:
        argv = [json.dumps(SOURCES), json.dumps(vars(self.far_configs[tls])), str(self.room), str(source), str(target)]
        with subprocess.Popen([sys.executable, "-c", OPERATOR, *argv]) as operator:
            self.links[tls].after(at, operator.kill)
            operator.wait(120)
        return "" if operator.returncode == 0 else f"operator ended with {operator.returncode}"


def children(pid: int, but: list[int] | None = None) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(each) for each in found.stdout.split() if int(each) not in (but or [])]


def descendants(pid: int) -> list[int]:
    """Return all processes below ``pid``; ``pid`` itself if it has none."""
    below = children(pid)
    return [each for child in below for each in (child, *descendants(child))] or [pid]


def settle(target: Path) -> None:
    """Wait until the remote programs of a broken copy have ended."""
    deadline = time.monotonic() + 60
    while staging_is_held(target):
        assert time.monotonic() < deadline, "remote programs do not end"
        time.sleep(0.02)


def staging_is_held(target: Path) -> bool:
    import fcntl

    try:
        for lock in (target / INCOMING).glob("*/lock"):
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # a program has just removed it: look again
        return True
    return False


def check(target: Path, contents: dict[str, bytes], *, complete: bool) -> dict[str, int]:
    """Assert the promises; return the bytes that have an object's name as ``there``."""
    found = files(target) if target.exists() else {}
    named = {name: content for name, content in found.items() if not name.startswith(INCOMING + "/")}
    manifest = named.pop(records.MANIFEST, None)
    expected = contents if manifest is not None else {name: contents[name] for name in named.keys() & contents.keys()}
    assert_same_tree(named, expected, "an object's name on other bytes, or a manifest without all objects")
    assert (manifest is not None) or not complete, "a copy that was reported as complete has no manifest"
    return {"there": sum(map(len, named.values()))}


def flip(rng: random.Random, target: Path) -> int:
    """Flip a bit in ``target``; return the bytes of named objects that it damages."""
    paths = sorted(target / name for name, content in files(target).items() if len(content) > 1)
    paths = [path for path in paths if path.name not in ("lock", records.MANIFEST)]
    if not paths:
        return 0
    path = rng.choice(paths)
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return 0 if INCOMING in path.parts else len(content)


def chunks_there(target: Path, contents: dict[str, bytes]) -> int:
    """Return the bytes of complete, correct chunks of partial objects."""
    total = 0
    for name, content in contents.items():
        entry: CopyObject = {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        best = 0
        for part in (target / INCOMING).glob(f"*/{staging.part_name(entry)}"):
            data = part.read_bytes()
            best = max(
                best,
                sum(
                    length
                    for offset, length in staging.chunks(len(content))
                    if data[offset : offset + length] == content[offset : offset + length]
                ),
            )
        total += best
    return total


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    made = Campaign(tmp_path_factory.mktemp("campaign"))
    yield made
    made.close()


@pytest.mark.system
@pytest.mark.parametrize("number", range(SAMPLE))
def test_transfer_campaign_sample(campaign: Campaign, number: int) -> None:
    print(f"seed 7, run {number}")
    campaign.run(7, number)


@pytest.mark.slow
@pytest.mark.system
def test_transfer_campaign_of_200_runs(campaign: Campaign) -> None:
    for number in range(200):
        campaign.run(2, number)


def test_transfer_campaign_results() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    assert {row["kind"] for row in rows} == set(KINDS)
    assert len(rows) >= 200
    text = " ".join((RESULTS.parent / "README.md").read_text().split())
    broke = sum(bool(row["error"]) for row in rows)
    midway = sum(row["parts"] > 0 for row in rows)
    assert f"{broke} of the {len(rows)} faults broke the copy" in text
    assert f"again, {midway} of them in the middle of an object." in text
    for row in rows:
        assert row["sent_again"] <= row["bytes"] - row["named"] - row["parts"]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--runs", type=int, default=200)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--seconds", type=float, default=0.0, help="stop after that long; 0: when all runs are done")
    flags.add_argument("--results", type=Path, default=RESULTS)
    options = flags.parse_args()
    done = set()
    if options.results.exists():
        done = {(row["seed"], row["run"]) for row in map(json.loads, options.results.read_text().splitlines())}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="midstream-campaign-") as name:
        campaign = Campaign(Path(name))
        try:
            for number in range(options.runs):
                if (options.seed, number) in done:
                    continue
                if options.seconds and time.monotonic() - began > options.seconds:
                    break
                row = campaign.run(options.seed, number)
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        finally:
            campaign.close()


if __name__ == "__main__":
    main()
