"""Environments of conda on this host.

The tool that it has creates them from exact URLs and hashes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import posixpath
import re
import shutil
import subprocess
import sys
from typing import ClassVar, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import unquote

from midstream_core import records
from midstream_host.declarations import program, reads
from midstream_host.machine import installers
from midstream_host.machine.environments import STAMP, ready
from midstream_host.machine.installers import BuildError
from midstream_host.shapes import FileName

TOOLS = ("micromamba", "mamba", "conda")  # the fastest first
RATTLER = "py-rattler"  # takes their place on a host without one: a library, in an environment of its own
FOLDERS = (
    "~/.local/bin", "~/bin", "~/micromamba/bin", "~/miniforge3/bin", "~/mambaforge/bin", "~/miniconda3/bin",
    "~/anaconda3/bin", "/opt/conda/bin", "/opt/miniforge3/bin", "/opt/miniconda3/bin", "/opt/anaconda3/bin",
    "/usr/local/bin", "/usr/bin", "/opt/homebrew/bin",
)  # fmt: skip
VERSION_TIMEOUT = 60.0  # seconds for a tool to print its version, cold, from a shared disk
MAX_RECORD = 16 << 20  # bytes of a file in conda-meta: it lists the files of a package
_MACHINES = {"x86_64": "64", "AMD64": "64", "amd64": "64", "arm64": "aarch64"}
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_VALUE = re.compile(r"[!-~]+")  # of a variable in a URL
# Program that creates an environment with py-rattler. It exits at once: threads of the library (0.28) crash one process
# in eight while the interpreter ends.
_INSTALL = """
import asyncio, os, re, sys
from rattler import BuildString, PackageRecord, RepoDataRecord, install

packages = []
for line in open(sys.argv[1], encoding="utf-8"):
    if line.startswith(("#", "@")):
        continue
    url, _, digest = line.strip().partition("#")
    channel, subdir, file = url.rsplit("/", 2)
    name, version, build = re.sub(r"[.](conda|tar[.]bz2)$", "", file).rsplit("-", 2)
    hashes = {"sha256" if len(digest) == 64 else "md5": bytes.fromhex(digest)}
    record = PackageRecord(name, version, BuildString(build), 0, subdir, **hashes)
    packages.append(RepoDataRecord(record, file, url, channel))
asyncio.run(install(packages, sys.argv[2], cache_dir=sys.argv[3], show_progress=False))
sys.stdout.flush()
os._exit(0)
"""


@dataclasses.dataclass(frozen=True)
class CondaTool:
    """The tool that creates environments here; path and version are None without one."""

    platform: str  # linux-64, linux-aarch64, osx-arm64, ...
    kind: str = ""  # of `TOOLS`
    path: Optional[FileName] = None
    version: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _Installed(records.JsonRecord):
    """Record of an installed package in conda-meta."""

    LIMIT: ClassVar[int] = MAX_RECORD

    fn: str = ""  # name of the package's file
    url: str = ""
    sha256: Optional[str] = None
    md5: Optional[str] = None


@reads()
def find(env: Mapping[str, str]) -> CondaTool:
    """Look for a tool in PATH and in the usual folders.

    PATH is that of ``env``, where it has one.
    """
    search = [env.get("PATH") or os.environ.get("PATH", ""), *map(os.path.expanduser, FOLDERS)]
    for kind in TOOLS:
        path = shutil.which(kind, path=os.pathsep.join(search))
        version = _version(path, env) if path else ""
        if version:
            return CondaTool(own_platform(), kind, path, version)
    return CondaTool(own_platform())


def own_platform() -> str:
    """Return conda's name of this host's platform."""
    machine = platform.machine()
    if sys.platform == "darwin":
        return "osx-arm64" if machine == "arm64" else "osx-64"
    return "linux-" + _MACHINES.get(machine, machine)


def _version(path: str, env: Mapping[str, str]) -> str:
    """Return the version that a tool prints.

    Empty where it does not work: a shim, or another program of that name.
    """
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=installers.environment_with(env), timeout=VERSION_TIMEOUT, cwd=installers.NEUTRAL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(rb"(?:^|\s)(\d+\.\d+[\w.+]*)", done.stdout)
    return match[1].decode()[:40] if done.returncode == 0 and match else ""


@program
def build(
    root: str, name: str, packages: str, requirements: str, tool: str, kind: str, env: Mapping[str, str],
    uv: Optional[str] = None,
) -> int:  # fmt: skip
    """Create the environment ``<root>/envs/<name>`` of an explicit list.

    A program, with the events of `environments.build`. What was installed is compared with the list afterwards; the
    stamp is written last. Variables in the list are replaced by their values, which are in no event and no file that
    remains. Packages are downloaded beside the environment, and only links to them remain.

    Args:
        root: Root of this host.
        name: Name of the environment.
        packages: The explicit list.
        requirements: Packages of pip, with URLs and hashes; empty: none.
        tool: Path of the tool; of an interpreter that imports py-rattler.
        kind: One of `TOOLS`, or `RATTLER`.
        env: Added to the tools' environment.
        uv: Path of uv, which installs ``requirements`` where the environment has no pip.
    """
    directory = posixpath.join(root, "envs", name)
    work = posixpath.join(root, "envs", "." + name + ".work")
    with installers.locked(root, name) as lock:
        present = ready(root, name)
        if present is not None:
            installers.emit("done", **vars(present))
            return 0
        try:
            values = _values(packages, env)
            hide = installers.hiding(list(values.values()))
            _prepare(directory, work)
            listed = _write(posixpath.join(work, "explicit.txt"), _replaced(packages, values))
            # micromamba refuses its default folder where that has other files
            own = {"MAMBA_ROOT_PREFIX": posixpath.join(work, "mamba")} if kind == "micromamba" else {}
            variables = {
                **own, **installers.environment_with(env), "CONDA_PKGS_DIRS": posixpath.join(work, "packages"),
                "CONDA_REGISTER_ENVS": "false", "CONDA_NUMBER_CHANNEL_NOTICES": "0",
            }  # fmt: skip
            installers.run(_creating(tool, kind, listed, directory, work), variables, lock, hide)
            _compare(directory, packages)
            python = posixpath.join(directory, "bin", "python")
            if not os.access(python, os.X_OK):
                raise BuildError("no package of the lock has bin/python")
            if requirements:
                text = _write(posixpath.join(work, "requirements.txt"), requirements)
                installers.run(_pip(python, uv, text), variables, lock, hide)
            _restore_names(directory, values)
            records.write_json(posixpath.join(directory, STAMP), {"how": kind, "base": python})
        except (BuildError, OSError, records.RecordError) as failure:
            installers.remove(directory)
            installers.emit("problem", message=str(failure))
            return 1
        finally:
            installers.remove(work)
    installers.emit("done", how=kind, python=python)
    return 0


def _values(packages: str, env: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of the variables in a list, from the fleet file alone.

    A lock may name no other variable of this host. Raises BuildError for a variable that is missing.
    """
    names = sorted({name or other for name, other in _VARIABLE.findall(packages)})
    values: Dict[str, str] = {}
    for name in names:
        value = env.get(name, "")
        if not _VALUE.fullmatch(value) or "#" in value:
            raise BuildError(
                "the lock's channel needs ${}, which {}".format(
                    name, "is no part of an address" if value else "is not in env: of this host in the fleet file"
                )
            )
        values[name] = value
    return values


def _replaced(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)


def _prepare(directory: str, work: str) -> None:
    """Remove what an earlier build left; make the directory that only this user reads."""
    installers.remove(directory)
    installers.remove(work)
    os.mkdir(work, 0o700)


def _write(path: str, text: str) -> str:
    records.write_bytes(path, text.encode())
    return path


def _creating(tool: str, kind: str, listed: str, directory: str, work: str) -> List[str]:
    """Return the command that creates the environment.

    The tool checks the packages' hashes.
    """
    if kind == RATTLER:
        program = _write(posixpath.join(work, "install.py"), _INSTALL)
        return [tool, "-I", program, listed, directory, posixpath.join(work, "packages")]
    default = ["--no-default-packages"] if kind == "conda" else []
    return [tool, "create", "--yes", "--quiet", *default, "--prefix", directory, "--file", listed]


def _pip(python: str, uv: Optional[str], requirements: str) -> List[str]:
    """Return the command that installs pip's packages, exactly these."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
    if subprocess.run([python, "-I", "-c", code], cwd=installers.NEUTRAL, check=False).returncode == 0:
        pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-compile"]
        return [*pip, "--no-deps", "--require-hashes", "-r", requirements]
    if uv:
        return [uv, "pip", "install", "--python", python, "--no-deps", "--require-hashes", "-r", requirements]
    raise BuildError("the lock has packages of pip, but neither pip among its packages nor this host uv")


def _compare(directory: str, packages: str) -> None:
    """Compare what the tool installed with the list.

    Raises BuildError where a package is not what it names.
    """
    digests = {
        unquote(posixpath.basename(url)): digest
        for url, _, digest in (line.partition("#") for line in packages.splitlines() if line[:1] not in ("", "#", "@"))
    }
    installed = dict(_installed(posixpath.join(directory, "conda-meta")))
    wrong = next((file for file, digest in digests.items() if digest not in installed.get(file, ())), None)
    more = next((file for file in installed if file not in digests), None)
    if wrong is not None:
        what = "with another hash" if wrong in installed else "not"
        raise BuildError("{} is {} installed".format(wrong, what))
    if more is not None:
        raise BuildError("{} is installed, which the lock does not name".format(more))


def _installed(meta: str) -> Iterator[Tuple[str, Tuple[Optional[str], ...]]]:
    """Yield the file name of each installed package, with its hashes."""
    try:
        names = [name for name in os.listdir(meta) if name.endswith(".json")]
    except FileNotFoundError:
        return
    for name in names:
        record = _Installed.read(posixpath.join(meta, name))
        yield unquote(record.fn or posixpath.basename(record.url)), (record.sha256, record.md5)


def _restore_names(directory: str, values: Mapping[str, str]) -> None:
    """Write the names of variables in place of their values into the tool's records."""
    meta = posixpath.join(directory, "conda-meta")
    for name in os.listdir(meta) if values else ():
        path = posixpath.join(meta, name)
        if not os.path.isfile(path) or os.path.islink(path):
            continue
        old = text = records.read_bytes(path, MAX_RECORD).decode("utf-8", "surrogateescape")
        for variable, value in values.items():
            for form in (value, json.dumps(value)[1:-1]):
                text = text.replace(form, "$" + variable)
        if text != old:
            records.write_bytes(path, text.encode("utf-8", "surrogateescape"))
