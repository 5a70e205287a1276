"""A fleet with one hostile host behind a real SSH server.

``bad`` is hostile: its interpreter (`interpreter.py`), login shell, banner and disk (`disk.py`) answer as a case
defines. ``good`` is an honest SSH host, ``here`` this machine. Each has a run of its own, which must not change.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midstream_core import records
from simulators.hostile.disk import SECRET
from simulators.sshd import Lab
from support.checkpoints.trees import sha256, write_tree
from support.engines.engine_runs import Engine
from support.engines.stopped_run import write_stopped_run

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
MEMORY = 64 << 10  # KiB above idle
DEADLINE = 75.0  # seconds of one command
BAD_RUN, OTHER_RUN, GOOD_RUN, HERE_RUN = "r", "other", "mine", "local"
PLANTED = ("yaml.py", "sitecustomize.py", "usercustomize.py", "json.py", "numpy.py", "jax.py", "setup.py", "evil.pth")


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    argv: list[str]
    code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    memory: int  # KiB at most, above what a command takes that meets honest hosts alone
    late: bool

    @property
    def as_json(self) -> bool:
        return "--json" in self.argv

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.decode().splitlines()]


@dataclass
class Verdict:
    """The outcome of a case, with every broken promise."""

    ended: list[Ended] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class Fleet:
    """The three hosts, created once; each case starts with their initial state."""

    def __init__(self, room: Path, *, trained: bool = False) -> None:
        self.room = room
        self.control, self.state, self.home, self.cwd = (room / name for name in ("control", "state", "home", "cwd"))
        self.temporary, self.canary, self.outside = room / "tmp", room / "canary", room / "outside"
        for directory in (self.control, self.state, self.home, self.cwd, self.temporary, self.outside):
            directory.mkdir(parents=True)
        self.compiled = room / "compiled"
        self.secret = self.outside / "secret"
        self.secret.write_text(SECRET)
        self.code = f"import os; os.system('touch {self.canary}')\n"
        for name in PLANTED:  # no program that is started here may import them
            (self.cwd / name).write_text(self.code)
        self.lab = Lab(room / "lab")
        self.bad = self.lab.host(
            "bad", devices=2, python=self._program("bad", "interpreter.py", "spec.json"), sshd=self._login()
        )
        self.good = self.lab.host("good", devices=2, python=self._program("good", "measure.py", "measure"))
        here = self.lab.local("here", devices=2)
        self.roots = {"bad": self.bad.root, "good": self.good.root, "here": Path(here.root)}
        relay = dataclasses.replace(self.bad.config, copy_route="relay")  # its bytes pass through the operator
        self.relayed = room / "relayed.yaml"
        self.relayed.write_text(self.lab.fleet_file(bad=relay, good=self.good.config, here=here).read_text())
        self.file = self.lab.fleet_file(bad=self.bad.config, good=self.good.config, here=here)
        self.kept = room / "kept"
        self._make_runs(trained)
        for name, root in self.roots.items():
            shutil.copytree(root, self.kept / name, symlinks=True)
        self.checkpoint_name = sorted(path.name for path in (self.run / "checkpoints").iterdir())[-1]
        self._operator = self._start_operator()
        self.idle = 0
        self.idle = self.command(["--checkpoints", self.checkpoint]).memory

    @property
    def run(self) -> Path:
        return self.roots["bad"] / "runs" / BAD_RUN

    @property
    def checkpoint(self) -> str:
        """The newest checkpoint of the hostile host's run, as on the command line."""
        return f"bad:{self.run}/checkpoints/{self.checkpoint_name}"

    def close(self) -> None:
        self._operator.kill()
        self._operator.communicate()
        self.lab.close()

    # --------------------------------------------------------------------------------------------- what there is

    def _program(self, name: str, script: str, wanted: str) -> str:
        """Write an executable for a host's ``python:``.

        The script replaces the real interpreter for midstream's functions alone, and only while the file
        ``wanted`` exists: each start takes time.
        """
        file, real = self.room / f"python-{name}", sys.executable
        file.write_text(
            f"#!/bin/sh\ncase $* in *stdin.buffer*) [ ! -f {self.control}/{wanted} ] ||"
            f' exec {real} -I -S {HERE / script} {self.control} {real} "$@" ;; esac\nexec {real} "$@"\n'
        )
        file.chmod(0o755)
        return str(file)

    def _login(self) -> str:
        """Return lines of the hostile sshd: each command passes through a script that a case may extend."""
        force = self.room / "login"
        force.write_text(
            f"#!/bin/sh\n[ ! -f {self.control}/login.sh ] || . {self.control}/login.sh\n"
            'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'
        )
        force.chmod(0o755)
        return f"ForceCommand {force}\nBanner {self.control}/banner\n"

    def _make_runs(self, trained: bool) -> None:
        for host, run in (("bad", OTHER_RUN), ("good", GOOD_RUN), ("here", HERE_RUN)):
            write_stopped_run(self.roots[host], run, host)
        if trained:
            self._train()
        else:
            write_stopped_run(self.roots["bad"], BAD_RUN, "bad")
        tokens = {"tokens-00000.bin": b"\1\2" * 4000, "offsets.bin": b"\0" * 80}
        self.data = name_data(self.roots["bad"] / "data" / "new", tokens)
        for directory in (self.run, *sorted((self.run / "attempts").iterdir()), self.roots["bad"] / "data" / self.data,
                          sorted((self.run / "checkpoints").iterdir())[-1]):  # fmt: skip
            for name in (*PLANTED, "run.sh"):
                (directory / name).write_text(self.code if name != "run.sh" else f"#!/bin/sh\ntouch {self.canary}\n")
                (directory / name).chmod(0o755)

    def _train(self) -> None:
        """Train a real run for some steps, with real checkpoints."""
        flags = ("--trainer.num_train_steps", "1000000", "--trainer.checkpointer.keep", "[{every: 3}]",
                 "--trainer.jax_compilation_cache_dir", str(self.compiled))  # fmt: skip
        with Engine(self.roots["bad"], *flags, run_id=BAD_RUN, MIDSTREAM_TARGET="bad") as engine:
            engine.until(engine.has_trained(1, 7), 600)
            engine.process.terminate()
            code, log = engine.finish(600)
        assert code == 0, log[-2000:]
        if not Path(engine.paths.attempt(1).log()).exists():
            Path(engine.paths.attempt(1).log()).write_text(log)

    def plants(self, directory: Path) -> list[dict[str, Any]]:
        """Return entries of existing files and of paths that lead elsewhere, as in a copy's list."""
        names = [*PLANTED, "run.sh", "attempts/001/yaml.py", "../../escaped.py", "../../../yaml.py", "/tmp/escaped",
                 "a/../yaml.py", ".incoming/yaml.py", "attempts/001/\x1b[2J", "attempts/001/log-0.txt\n",
                 "status-0.json", "fence.json", "migration_lock.json", "attempts/001/command.json",
                 "checkpoints/step-9-a001/manifest.json", "fence.json/events.out.tfevents.1.a",
                 "attempts/001/launch.json", ".secrets.json", "x" * 300, "attempts/٣٣٣/metrics.jsonl",
                 "events.out.tfevents./../../../yaml.py", "tb/__pycache__/events.out.tfevents.1.pyc"]  # fmt: skip
        entries = []
        for name in names:
            content = (directory / name).read_bytes() if name in PLANTED else self.code.encode()
            entries.append({"path": name, "size": len(content), "sha256": sha256(content), "crc32c": ""})
        return entries

    # --------------------------------------------------------------------------------------------- commands

    def _start_operator(self) -> subprocess.Popen[str]:
        paths = [str(REPOSITORY / name) for name in ("app", "engine")]
        return subprocess.Popen(
            [sys.executable, str(HERE / "commands.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.room,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """A user's environment, with all directories in the room."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.home), "TMPDIR": str(self.temporary), "MIDSTREAM_STATE": str(self.state),
                "MIDSTREAM_CACHE": str(self.home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip

    def command(self, argv: Sequence[str], deadline: float = DEADLINE, file: Path | None = None) -> Ended:
        """Run a command in a directory full of modules that must not be imported."""
        words = list(argv) if argv[0] in ("copy", "call") else ["--fleet", str(file or self.file), *argv]
        out, err = self.room / "stdout", self.room / "stderr"
        for each in (out, err):
            each.unlink(missing_ok=True)
        assert self._operator.stdin is not None
        assert self._operator.stdout is not None
        job = {"argv": words, "cwd": str(self.cwd), "env": self.environment(), "stdout": str(out), "stderr": str(err)}
        self._operator.stdin.write(json.dumps({**job, "deadline": deadline}) + "\n")
        self._operator.stdin.flush()
        reported = json.loads(self._operator.stdout.readline())
        return Ended(
            words,
            reported["code"],
            _head(out),
            _head(err),
            reported["seconds"],
            max(0, reported["peak"] - self.idle),
            reported["late"],
        )

    def hostile(self, spec: Mapping[str, Any]) -> None:
        """Let the host answer as ``spec`` defines, from now on."""
        complete = {"canary": f"touch {self.canary}", "code": self.code, **spec}
        (self.control / "spec.json").write_text(json.dumps(complete))

    def measure(self) -> None:
        """Let programs of the honest SSH host record their memory, from now on."""
        (self.control / "measure").touch()

    def restore(self) -> None:
        """Restore the hosts, and end all hostility."""
        for file in self.control.iterdir():
            file.unlink()
        for name, root in self.roots.items():
            if name == "bad" or self._is_other(name):
                shutil.rmtree(root)
                shutil.copytree(self.kept / name, root, symlinks=True)
        shutil.rmtree(self.state)
        self.state.mkdir()
        self.canary.unlink(missing_ok=True)

    def _is_other(self, name: str) -> bool:
        return {key[len(str(self.roots[name])):] for key, _ in _walk(self.roots[name])} != {
            key[len(str(self.kept / name)):] for key, _ in _walk(self.kept / name)
        }  # fmt: skip

    def changes(self) -> list[str]:
        """Return what the hostile host has recorded as changed."""
        file = self.control / "changed.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [f"{each['function']}: {each['what']}" for each in found]

    def peaks(self) -> list[int]:
        """Return the KiB of each program of the honest host, above those of an empty interpreter."""
        file = self.control / "peaks"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    # --------------------------------------------------------------------------------------------- what is there

    def watched(self) -> dict[str, tuple[Any, ...]]:
        """Return every file that no host may change, with a fingerprint."""
        found: dict[str, tuple[Any, ...]] = {}
        other = self.roots["bad"] / "runs" / OTHER_RUN
        for root in (self.roots["good"], self.roots["here"], self.state, self.home, self.cwd, self.temporary,
                     self.outside, self.lab.directory / "good", self.lab.directory / "bad", other):  # fmt: skip
            found.update(_walk(root, skip=str(self.roots["bad"]) if root.name == "bad" else ""))
        for name in (
            "/tmp/escaped",
            "/tmp/escaped.py",
            "/escaped",
            os.path.expanduser("~/escaped"),
            str(self.room / "escaped"),
        ):
            if os.path.lexists(name):
                found[name] = ("outside",)
        return found

    def written(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Return (host or "operator", path below its root) of changed files."""
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) == after.get(path) or path.endswith(("/sshd.log", "/sshd.pid")):
                continue
            for name in ("good", "here"):
                root = str(self.roots[name])
                if path == root or path.startswith(root + "/"):
                    yield name, path[len(root) + 1 :]
                    break
            else:
                yield "operator", path


def _head(file: Path, most: int = 4 << 20) -> bytes:
    with file.open("rb") as opened:
        return opened.read(most)


def _walk(root: Path | str, skip: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    for parent, folders, names in os.walk(root):
        if skip:
            folders[:] = [name for name in folders if os.path.join(parent, name) != skip]
        for name in [*folders, *names]:
            path = os.path.join(parent, name)
            try:
                found = os.lstat(path)
                link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else ""
            except FileNotFoundError:  # a program that was ending removed it after the listing
                continue
            times = () if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_mtime_ns)
            yield path, (found.st_mode, link, *times)


def name_data(directory: Path, contents: dict[str, bytes] | None = None, also: Sequence[dict[str, Any]] = ()) -> str:
    """Name a tree of data by its manifest's digest, and return that name.

    ``contents`` are written first; ``also``: further objects for the manifest.
    """
    if contents is not None:
        write_tree(directory, contents, format="midstream-tokens", version=1)
    file = directory / records.MANIFEST
    value = {key: item for key, item in json.loads(file.read_text()).items() if key != "digest"}
    value["objects"] = [*also, *value["objects"]]
    digest = sha256(records.canonical_json(value))
    file.write_text(json.dumps({**value, "digest": digest}))
    directory.rename(directory.parent / digest)
    return digest
