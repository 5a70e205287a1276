"""Hosts that a fleet file could have, from `~/.ssh/config`, and how they are put into it."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Collection
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.first_file import DEFAULT_SSH_CONFIG, HEADER, fleet_from_ssh_config
from midstream.fleet.fleet_file import parse_fleet

GCLOUD = "~/.config/gcloud"
_HOSTS = re.compile(r"^hosts:[ \t]*(?:#.*)?$", re.M)
_LINE = re.compile(r"  (\S+): \{type: ssh.*\}")


def candidates(known: Collection[str], ssh_config: str = DEFAULT_SSH_CONFIG) -> dict[str, str]:
    """name -> the line of a fleet file, for each host that the SSH configuration names and that is not ``known``."""
    text = fleet_from_ssh_config(Path(ssh_config).expanduser())
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1].strip('"'): match[0] for match in found if match and match[1].strip('"') not in known}


def gcloud_projects(directory: str = "") -> list[str]:
    """The projects that gcloud's configurations name."""
    folder = Path(directory or os.environ.get("CLOUDSDK_CONFIG") or GCLOUD).expanduser() / "configurations"
    projects: dict[str, None] = {}
    for file in sorted(folder.glob("config_*")):
        settings = configparser.ConfigParser()
        try:
            settings.read(file)
        except configparser.Error:
            continue
        if project := settings.get("core", "project", fallback=""):
            projects[project] = None
    return list(projects)


def add_hosts(file: Path, lines: Collection[str]) -> None:
    """Put these lines under ``hosts:`` of a fleet file; a new one where there is none. UsageError, with the file left
    as it was, where that would not be a fleet file."""
    block = "".join(f"{line}\n" for line in lines)
    if not file.exists():
        text = HEADER + block + _templates()
    else:
        before = file.read_text()
        place = _HOSTS.search(before)
        if place is None:
            raise UsageError(f"{file} has no line `hosts:` to put them under", f"write it by hand:\n{block}")
        end = before.find("\n", place.start()) + 1 or len(before)
        text = before[:end] + ("" if before[:end].endswith("\n") else "\n") + block + before[end:]
    parse_fleet(text, str(file))
    fresh = file.with_name(f"{file.name}.new")
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(text)
    fresh.replace(file)


def _templates() -> str:
    """A slice for each project that gcloud knows, to be filled in."""
    return "".join(
        f"# targets:\n#   pod: {{type: tpu, project: {project}, zone: ZONE, name: NAME, accelerator_type: TYPE}}\n"
        for project in gcloud_projects()
    )
