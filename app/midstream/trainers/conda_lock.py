"""Packages of a conda environment, each an exact URL with its hash, by platform.

Source: a ``conda-lock.yml`` or an ``@EXPLICIT`` list. A run file has them as explicit lists, which the tools on hosts
read: one for each platform, with pip's packages as comments, as conda-lock writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import unquote, urlsplit

import yaml

from midstream.counts import count
from midstream.errors import UsageError
from midstream.plain_yaml import load_plain_quickly
from midstream.printable import printable
from midstream_core.json_types import JsonObject, object_or_empty
from midstream_host.driver.run_file import MAX_LOCK

MAX_FILE_SIZE = 16 << 20  # bytes of a lock file
MAX_PACKAGES = 2000  # of one platform
MARKER = "@EXPLICIT"
NOARCH = "noarch"
CATEGORIES = ("main", "dev")  # of a conda-lock.yml that are installed, as conda-lock does by default
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
CREDENTIALS_HINT = (
    "write $NAME in place of the secret, and NAME: in env: of the hosts in the fleet file; or configure the channel in "
    "the .condarc of the hosts"
)
HASHES_HINT = "conda-lock lock, or conda list --explicit --sha256"
_HEADING = "# platform: "
_PLATFORM = re.compile(r"(?:linux|osx|win)-[a-z0-9]{1,16}")
_URL = re.compile(r"https?://[A-Za-z0-9$_{}:@%!+~.,=/-]+")
_FILE = re.compile(
    r"([A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)-[A-Za-z0-9_.+!~]+-[A-Za-z0-9_.+~]+\.(?:conda|tar\.bz2)"
)
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64}|[0-9a-f]{32})")
_PIP = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) @ (\S+?)(?:#sha256=| +--hash=sha256:)([0-9a-f]{64})")


@dataclass(frozen=True)
class CondaPackage:
    """A package of a channel.

    ``digest`` is its SHA-256, or its MD5 where the lock has no other, in hexadecimal.
    """

    name: str
    url: str
    digest: str

    def __str__(self) -> str:
        return f"{self.url}#{self.digest}"


@dataclass(frozen=True)
class PipPackage:
    """A package that pip installs from its URL; ``digest`` is its SHA-256."""

    name: str
    url: str
    digest: str

    def __str__(self) -> str:
        return f"# pip {self.name} @ {self.url}#sha256={self.digest}"


@dataclass(frozen=True)
class CondaList:
    """Packages of one platform; as text an explicit list, in the lock's order."""

    platform: str
    packages: tuple[CondaPackage, ...]
    pip: tuple[PipPackage, ...] = ()

    def __str__(self) -> str:
        return self.explicit + "".join(f"{package}\n" for package in self.pip)

    @property
    def explicit(self) -> str:
        """The packages of conda as an explicit list, with no comments for tools."""
        return "\n".join((f"{_HEADING}{self.platform}", MARKER, *map(str, self.packages))) + "\n"

    @property
    def requirements(self) -> str:
        """Packages of pip as its requirements, with URLs and hashes; empty: none."""
        return "".join(f"{package.name} @ {package.url} --hash=sha256:{package.digest}\n" for package in self.pip)

    @property
    def servers(self) -> list[str]:
        """Names of the machines that have the packages."""
        urls = [package.url for package in (*self.packages, *self.pip)]
        return sorted({urlsplit(url).netloc.rpartition("@")[2] for url in urls})

    @property
    def variables(self) -> list[str]:
        """Names of the variables in the channels' addresses.

        A host replaces them by their values.
        """
        return sorted({name or other for package in self.packages for name, other in VARIABLE.findall(package.url)})

    @property
    def size(self) -> str:
        """Number of packages in words."""
        pip = f" and {len(self.pip)} of pip" if self.pip else ""
        return f"{count(len(self.packages), 'package')}{pip} for {self.platform}"


def lists_of(text: str) -> str | None:
    """Return the explicit lists of a lock file's text, one for each platform.

    None if it is no lock of conda.

    Raises:
        UsageError: It is one, and hosts cannot install from it: a package without a hash, an address that is none
            of a channel, credentials.
    """
    lines = {line.strip() for line in text.splitlines()}
    if MARKER in lines:
        conda_lists = [explicit_list(text)]
    elif re.search(r"^package:", text, re.MULTILINE) and re.search(r"^\s*(?:- )?manager: ", text, re.MULTILINE):
        conda_lists = _unified(text)
    else:
        return None
    lists = "".join(str(conda_list) for conda_list in conda_lists if not conda_list.platform.startswith("win-"))
    if not lists:
        raise UsageError("has no package for Linux or macOS", "conda-lock lock --platform linux-64")
    if len(lists) > MAX_LOCK:
        raise UsageError(
            f"{len(lists)} characters of packages, allowed are {MAX_LOCK}",
            "lock the platforms of the hosts alone (--platform)",
        )
    return lists


def by_platform(lists: str) -> dict[str, CondaList]:
    """Return the lists of a run file. Errors as of `lists_of`."""
    conda_lists = [explicit_list(_HEADING + section) for section in lists.split(_HEADING)[1:]]
    platforms = {conda_list.platform: conda_list for conda_list in conda_lists}
    if "".join(map(str, conda_lists)) != lists or len(platforms) < len(conda_lists):
        raise UsageError("is no sequence of explicit lists, one for each platform")
    return platforms


def explicit_list(text: str) -> CondaList:
    """Read an explicit list.

    The comment ``# platform:`` names the platform, else its packages do. Errors as of `lists_of`.
    """
    stated, packages, pip = "", list[CondaPackage](), list[PipPackage]()
    for line in map(str.strip, text.splitlines()):
        if line.startswith(_HEADING):
            stated = line.removeprefix(_HEADING)
        elif line.startswith("# pip "):
            pip.append(_pip_line(line.removeprefix("# pip ")))
        elif line and not line.startswith(("#", MARKER)):
            url, _, digest = line.partition("#")
            packages.append(_package(url, digest))
    subdirs = {_subdir(package.url) for package in packages} - {NOARCH}
    if not stated and len(subdirs) == 1:
        stated = next(iter(subdirs))
    if not stated:
        raise UsageError("states no platform", "a line '# platform: linux-64' before @EXPLICIT")
    return _checked(stated, packages, pip)


# ------------------------------------------------------------------------------------------ conda-lock.yml


def _unified(text: str) -> list[CondaList]:
    if len(text) > MAX_FILE_SIZE:
        raise UsageError(f"has more than {MAX_FILE_SIZE} bytes")
    try:
        value = load_plain_quickly(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    version = object_or_empty(value).get("version")
    if version != 1:
        raise UsageError(f"is of version {_shown(version)}, known is 1", "conda-lock lock, of a release from 1 to 4")
    rows = object_or_empty(value).get("package")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("package: expected a list of packages")
    packages: dict[str, dict[CondaPackage, None]] = {}
    pip: dict[str, dict[PipPackage, None]] = {}
    for row in map(object_or_empty, rows):
        if row.get("category", "main") not in CATEGORIES:
            continue
        name, platform, manager = (_text(row, key) for key in ("name", "platform", "manager"))
        if platform.startswith("win-"):
            continue
        digests = object_or_empty(row.get("hash"))
        packages.setdefault(platform, {})
        if manager == "conda":
            package = _package(_text(row, "url"), str(digests.get("sha256") or digests.get("md5") or ""))
            if package.name.lower() != name.lower():
                raise UsageError(f"package {_shown(name)} has the file of {_shown(package.name)}")
            packages[platform][package] = None
        elif manager == "pip":
            source = row.get("source")
            url = _text(source if isinstance(source, dict) else row, "url")
            line = f"{name} @ {url.partition('#')[0]}#sha256={digests.get('sha256', '')}"
            pip.setdefault(platform, {})[_pip_line(line)] = None
        else:
            raise UsageError(f"package {_shown(name)}: manager {_shown(manager)} is neither conda nor pip")
    return [_checked(platform, packages[platform], pip.get(platform, ())) for platform in packages]


def _text(row: JsonObject, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"package {_shown(row.get('name'))}: {key}: expected a text, found {_shown(value)}")
    return value


# ------------------------------------------------------------------------------------------ checks


def _shown(value: object) -> str:
    return printable(repr(value)[:120])


def _checked(platform: str, packages: Iterable[CondaPackage], pip: Iterable[PipPackage]) -> CondaList:
    """Return the list, of packages that can be installed together."""
    if not _PLATFORM.fullmatch(platform):
        raise UsageError(f"{_shown(platform)} is no platform of conda", "linux-64, linux-aarch64, osx-arm64, ...")
    checked = CondaList(platform, tuple(packages), tuple(pip))
    if len(checked.packages) + len(checked.pip) > MAX_PACKAGES:
        raise UsageError(f"{platform}: more than {MAX_PACKAGES} packages")
    if not checked.packages:
        raise UsageError(f"{platform}: no package of conda is in it", HASHES_HINT)
    for package in checked.packages:
        if _subdir(package.url) not in (platform, NOARCH):
            raise UsageError(f"{platform}: {_shown(_hidden(package.url))} is for {_shown(_subdir(package.url))}")
    for kind in (checked.packages, checked.pip):
        names = [
            re.sub(r"[-_.]+", "-", package.name).lower() if kind is checked.pip else package.name for package in kind
        ]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise UsageError(f"{platform}: {twice} is in it twice")
    return checked


def _package(url: str, digest: str) -> CondaPackage:
    name = _FILE.fullmatch(_segments(url)[-1])
    if name is None or not (_subdir(url) == NOARCH or _PLATFORM.fullmatch(_subdir(url))):
        raise UsageError(
            f"{_shown(_hidden(url))} is no package of a channel", "https://CHANNEL/PLATFORM/NAME-VERSION-BUILD.conda"
        )
    matched = _DIGEST.fullmatch(digest)
    if matched is None:
        what = f"has no hash, but {_shown(digest)}" if digest else "has no hash"
        raise UsageError(f"{_shown(_hidden(url))} {what}", HASHES_HINT)
    return CondaPackage(name[1], url, matched[1])


def _pip_line(line: str) -> PipPackage:
    matched = _PIP.fullmatch(line)
    if matched is None:
        raise UsageError(
            f"pip: {_shown(_hidden(line))} is no package with address and SHA-256",
            "packages of an index; one from git or a directory travels as files: of the run file",
        )
    _segments(matched[2])
    if VARIABLE.search(matched[2]):
        raise UsageError(f"pip: {_shown(_hidden(line))} has a variable in its address")
    return PipPackage(matched[1], matched[2], matched[3])


def _subdir(url: str) -> str:
    return _segments(url)[-2]


def _segments(url: str) -> list[str]:
    """Return the parts of a URL's path, at least two.

    Refuses a URL that is none of a channel.
    """
    split = urlsplit(url) if _URL.fullmatch(url) else None
    if split is None or not split.netloc:
        raise UsageError(f"{_shown(_hidden(url))} is no address of http or https")
    user, at, _ = split.netloc.rpartition("@")
    named = [*split.path.split("/")[1:]]
    token = next((after for before, after in pairwise(named) if before == "t"), "")
    secret = bool(token) and not VARIABLE.search(token)
    if secret or (at and not all(VARIABLE.fullmatch(word) for word in user.split(":"))):
        raise UsageError(f"{_shown(_hidden(url))} has credentials", CREDENTIALS_HINT)
    parts = [unquote(segment) for segment in named]
    if len(parts) < 2 or any(
        segment in ("", ".", "..") or "/" in segment or not segment.isprintable() for segment in parts
    ):
        raise UsageError(f"{_shown(_hidden(url))} is no address of a package")
    return parts


def _hidden(url: str) -> str:
    """Return a URL for a message: without credentials."""
    return re.sub(r"(/t/)[^/$]+", r"\1***", re.sub(r"(://)[^/\s]*@", r"\1***@", url))
