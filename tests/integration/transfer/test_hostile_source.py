"""Migrations from a hostile source; a canary shows executed code on the target."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.transfer import direct_streams
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.incremental_copy import IncrementalCopy
from midstream_core import records
from simulators.sshd import Lab, SshServer
from support.checkpoints.trees import files, paths_below, write_checkpoint
from support.command_line import SLOWER, TINY, Ended, Run, midstream

# The source's interpreter appends code to one of our modules before it runs our function.
WRAPPER = """\
import json, os, subprocess, sys, threading
real, arguments = {python!r}, sys.argv[1:]
if "-c" not in arguments or "stdin.buffer" not in arguments[arguments.index("-c") + 1]:
    os.execv(real, [real, *arguments])
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 1)
job = json.loads(line)
job["modules"] = [
    [name, text + {evil!r} if name == "midstream_host." + {module!r} else text] for name, text in job["modules"]
]
child = subprocess.Popen([real, *arguments], stdin=subprocess.PIPE)
def pump():
    data = json.dumps(job).encode() + b"\\n"
    while data:
        try:
            child.stdin.write(data); child.stdin.flush()
        except BrokenPipeError:
            break
        data = os.read(0, 65536)
    child.stdin.close()
threading.Thread(target=pump, daemon=True).start()
sys.exit(child.wait())
"""
LISTS = """
_honest = _files
def _files(directory):
    return _honest(directory) + [_entry(directory, path) for path in {paths!r}]
"""
SENDS = """
_honest = Sender.item
def _evil(self, item):
    if {first!r} in item["path"]:
        data = {data!r}.encode()
        import hashlib
        fake = dict(item, {fields}, size=len(data), length=len(data), offset=0, sha256=hashlib.sha256(data).hexdigest())
        self.frame(ITEM, json.dumps(fake).encode())
        self.frame(DATA, data)
        self.flush()
    return _honest(self, item)
Sender.item = _evil
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def evil_module(canary: Path) -> str:
    """Return the text of a module that writes the canary when it is imported."""
    return f"open({str(canary)!r}, 'a').write('imported ' + __name__ + chr(10))\n"


def hostile(server: SshServer, module: str, evil: str) -> None:
    """Append the code ``evil`` to ``module`` of our programs on ``server``."""
    assert importlib.util.find_spec(f"midstream_host.{module}"), module
    script = server.directory / "python"
    body = server.directory / "wrapper.py"
    body.write_text(WRAPPER.format(python=sys.executable, evil=evil, module=module))
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(str(body))} "$@"\n')
    script.chmod(0o755)
    server.config = dataclasses.replace(server.config, python=str(script))


def below(root: Path) -> set[str]:
    """Return the relative path of every file and link below."""
    return {os.path.relpath(path, root) for path in paths_below(root)}


def migrate(fleet: Path, *flags: str) -> Ended:
    return midstream(
        "--fleet", fleet, "--migrate", "m", "--to", "large", "--mode", "cold", "--certify-steps", "0",
        "--healthy-steps", "0", "--json", *flags, timeout=900.0,
    )  # fmt: skip


EVIL = ("yaml.py", "jax/__init__.py", "sitecustomize.py", "wandb/settings", "attempts/001/numpy.py")


def plant(root: Path, canary: Path) -> dict[str, int]:
    """Write modules into the run's directory; return their inodes."""
    files = {path: Path(records.RunPaths(str(root), "m").dir, path) for path in EVIL}
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(evil_module(canary))
    return {path: file.stat().st_ino for path, file in files.items()}


@pytest.mark.drawn
def test_code_in_history_is_neither_copied_nor_run(lab: Lab, runs: Callable[..., Run], canary: Path) -> None:
    """A module in the history is refused; a module on the target is not imported.

    The migration ends with a line that names host and file, and the source has the run as before. With an honest list
    the module is not copied, and no interpreter imports the modules of the run's directory on the target.
    """
    small, large = lab.host("small", devices=1), lab.host("large", devices=2)
    fleet = lab.fleet_file(small=small.config, large=large.config)
    steps = (*SLOWER, "--trainer.num_train_steps", "2000")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "small", "--run-id", "m", "--", *steps).code == 0
    source, target = runs(small.root, "m"), runs(large.root, "m")
    source.wait_step(3)
    stopped = midstream("--fleet", fleet, "--stop", "m", timeout=900.0)
    assert stopped.code == 0, stopped.stderr
    plant(small.root, canary)
    planted = plant(large.root, canary)

    honest = small.config.python
    hostile(small, "copy.history", LISTS.format(paths=["yaml.py"]))
    moved = migrate(lab.fleet_file(small=small.config, large=large.config))
    assert moved.code != 0
    assert "Traceback" not in moved.stdout + moved.stderr
    assert re.search(
        r"small lists a file that is not part of run m: yaml\.py is no part of a run's history", moved.stdout
    )
    assert not canary.exists(), canary.read_text()
    assert target.status(1) is None
    assert source.fence.owner == "small"

    small.config = dataclasses.replace(small.config, python=honest)
    moved = migrate(lab.fleet_file(small=small.config, large=large.config))
    assert moved.code == 0, moved.stderr
    target.wait(lambda run: len(run.rows()) > 3, "steps on the target")
    assert not canary.exists(), canary.read_text()
    assert plant_inodes(large.root) == planted
    status = target.status()
    assert status is not None
    work = os.readlink(f"/proc/{status.pid}/cwd")
    assert work.startswith(f"{target.paths.attempt(target.attempt).dir}/work-0-")
    assert os.listdir(work) == []
    supervisor = int(Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (status.pid, supervisor):
        assert b"-P" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert b"PYTHONSAFEPATH=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def plant_inodes(root: Path) -> dict[str, int]:
    return {path: Path(records.RunPaths(str(root), "m").dir, path).stat().st_ino for path in EVIL}


# ----------------------------------------------------------------------------- one copy of a migration, without engines


@dataclasses.dataclass
class Pair:
    """Source with a hostile interpreter, and an honest target; both connected."""

    source: SshServer
    target: SshServer
    one: Host
    two: Host

    def be_hostile(self, module: str, evil: str) -> None:
        hostile(self.source, module, evil)

    def copied(self, kind: str, settings: CopySettings | None = None) -> str:
        """Return the line that a copy of the migration fails with; empty if it succeeds."""
        here, there = (records.RunPaths(host.root, "m") for host in (self.one, self.two))
        name = records.checkpoint_name(7, 1)
        try:
            if kind == "history":
                copy_history(self.one, self.two, "m", source_root=self.one.root, target_root=self.two.root)
            else:
                copy_tree(
                    Endpoint(self.one, here.checkpoint(name)),
                    Endpoint(self.two, there.checkpoint(name)),
                    settings=settings,
                )
        except MidstreamError as error:
            line = str(error)
        else:
            line = ""
        assert not line or line.isprintable()
        return line


@pytest.fixture
def pair(lab: Lab) -> Iterator[Pair]:
    source, target = lab.host("one"), lab.host("two")
    hostile(source, "copy.history", "")
    one, two = (open_host(server.name, server.config) for server in (source, target))
    for host in (one, two):
        host.connect()
    yield Pair(source, target, one, two)
    one.close()
    two.close()


def history_of(server: SshServer, canary: Path) -> records.RunPaths:
    paths = records.RunPaths(str(server.root), "m")
    Path(paths.attempt(1).dir).mkdir(parents=True)
    Path(paths.attempt(1).metrics).write_text('{"global_step": 0}\n')
    plant(server.root, canary)
    return paths


LISTED = (
    "yaml.py", "jax/__init__.py", "sitecustomize.py", "wandb/settings", "attempts/001/numpy.py", "../../escaped.py",
    "/tmp/escaped.py", "attempts/001/command.json", "fence.json", "events.out.tfevents.1.py", "a\n\x1b[2Jb",
)  # fmt: skip


def test_history_is_restricted_by_receiver(pair: Pair, canary: Path) -> None:
    history_of(pair.source, canary)
    entry = "{'path': path, 'offset': 0, 'size': 3, 'sha256': '0' * 64}"
    for path in LISTED:
        pair.be_hostile("copy.history", f"\n_honest = _files\ndef _files(directory, path={path!r}):\n"
                f"    return [*_honest(directory), {entry}]\n")  # fmt: skip
        line = pair.copied("history")
        assert line.startswith("one lists a file that is not part of run m: "), (path, line)
        assert "is no part of a run's history" in line
        assert below(pair.target.root) == set(), path
    assert not canary.exists()
    assert not Path("/tmp/escaped.py").exists()


FAKES = {
    "another path": "path='yaml.py'",
    "a path that leaves": "path='../../../../escaped.py'",
    "an object of the checkpoint": "path='arrays/model/array1/c/0'",
    "the manifest": "path='manifest.json'",
    "other bytes": "path=item['path']",
}


@pytest.mark.parametrize("route", ["direct", "relay"])
def test_unrequested_frames_end_copy(pair: Pair, canary: Path, route: str) -> None:
    """The source sends an unrequested object, with its right hash."""
    paths = records.RunPaths(str(pair.source.root), "m")
    write_checkpoint(Path(paths.checkpoint(records.checkpoint_name(7, 1))), random.Random(1))
    for name, fields in FAKES.items():
        pair.be_hostile("copy.sender", SENDS.format(first="array0/c/1", data=evil_module(canary), fields=fields))
        line = pair.copied("checkpoint", CopySettings(route=route))
        assert re.search(r"one:.*/step-7-a001 sent bytes of object .* that were not requested", line), (name, line)
        there = below(pair.target.root)
        assert not [path for path in there if path.endswith((".py", "manifest.json"))], (name, there)
        assert not [path for path, content in files(pair.target.root).items() if b"imported" in content], name
    assert "escaped.py" not in [path.name for path in paths_below(pair.target.directory)]
    assert not canary.exists()


LEAVES_OUT = """
_honest = Sender.item
def _evil(self, item):
    return "array0/c/1" in item["path"] or _honest(self, item)
Sender.item = _evil
"""


@pytest.mark.parametrize("relayed", [True, False])
def test_stream_that_leaves_out_its_last_object_ends_copy(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, relayed: bool
) -> None:
    """Without a session at the target, nothing else would end the copy."""
    monkeypatch.setattr(direct_streams, "MIN_BYTES", 1 << 60 if relayed else 0)
    there = records.RunPaths(str(pair.source.root), "m").checkpoints
    name = records.checkpoint_name(7, 1)
    write_checkpoint(Path(there, name), random.Random(1))
    entries: list[Any] = json.loads(Path(there, name, records.MANIFEST).read_text())["objects"]
    last = next(each for each in entries if "array0/c/1" in each["path"])
    first = next(each for each in entries if "array0/c/2" in each["path"])
    pair.be_hostile("copy.sender", LEAVES_OUT)
    here = LocalHost("here", LocalHostConfig(root=str(pair.target.root)))
    copy = IncrementalCopy(Endpoint(pair.one, there), Endpoint(here, str(pair.target.root / "checkpoints")), 10_000, 2)
    try:
        for entry in (first, last):
            added: Any = {**entry, "path": f"{name}/{entry['path']}"}
            copy.add([added], last=entry is last)
        with pytest.raises(TransferError, match="ended before all that was requested had come"):
            assert not copy.wait(60), "it does not end"
    finally:
        copy.close()


MANIFESTS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "leaves": lambda objects: [{**objects[0], "path": "../../x.py"}, *objects[1:]],
    "absolute": lambda objects: [{**objects[0], "path": "/tmp/x.py"}, *objects[1:]],
    "code": lambda objects: [*objects, {"path": "yaml.py", "size": 3, "sha256": "0" * 64}],
    "itself": lambda objects: [*objects, {"path": "manifest.json", "size": 3, "sha256": "0" * 64}],
    "twice": lambda objects: [*objects, objects[0]],
    "newline": lambda objects: [{**objects[0], "path": "arrays/x\n/c/0"}, *objects[1:]],
    "bidi": lambda objects: [{**objects[0], "path": "arrays/\u202ex/c/0"}, *objects[1:]],
    "staging": lambda objects: [{**objects[0], "path": ".incoming/x/written"}, *objects[1:]],
    "hidden": lambda objects: [{**objects[0], "path": "arrays/.git/c/0"}, *objects[1:]],
    "text size": lambda objects: [{**objects[0], "size": "5000"}, *objects[1:]],
    "negative": lambda objects: [{**objects[0], "size": -5000}, *objects[1:]],
    "hash": lambda objects: [{**objects[0], "sha256": "../x"}, *objects[1:]],
    "no list": lambda objects: {"0": objects[0]},
    "numbers": lambda _: [1, 2, 3],
}


def test_manifest_with_foreign_paths_is_refused(pair: Pair) -> None:
    checkpoint = Path(records.RunPaths(str(pair.source.root), "m").checkpoint(records.checkpoint_name(7, 1)))
    write_checkpoint(checkpoint, random.Random(2))
    honest = json.loads((checkpoint / records.MANIFEST).read_text())
    # The source's honest programs would refuse such a manifest, too; the receiver checks it again.
    checks = "\ndef check_all(kind, entries):\n    return entries\n"
    pair.be_hostile("allowlist", checks)
    for name, evil in MANIFESTS.items():
        (checkpoint / records.MANIFEST).write_text(json.dumps({**honest, "objects": evil(honest["objects"])}))
        line = pair.copied("checkpoint")
        assert line.startswith("one: "), (name, line)
        assert below(pair.target.root) == set(), name
    (checkpoint / records.MANIFEST).write_text(json.dumps(honest))
    assert pair.copied("checkpoint") == ""
