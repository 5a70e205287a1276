"""Find hosts of `~/.ssh/config` that the fleet file lacks, and add them to it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.initial_fleet_file import HEADER, fleet_from_ssh_config
from midstream.fleet.ssh_config_reader import DEFAULT_SSH_CONFIG

GCLOUD = "~/.config/gcloud"
_HOSTS = re.compile(r"^hosts:[ \t]*(?:#.*)?$", re.M)
_LINE = re.compile(r"  (\S+): \{type: ssh.*\}")


def candidates(names: Collection[str], ssh_config: str = DEFAULT_SSH_CONFIG) -> dict[str, str]:
    """Return name -> line of a fleet file for hosts that are not in ``names``.

    The hosts are those of the SSH configuration.
    """
    text = fleet_from_ssh_config(Path(ssh_config).expanduser())
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1].strip('"'): match[0] for match in matches if match and match[1].strip('"') not in names}


def gcloud_projects(directory: str = "") -> list[str]:
    """Return the projects of gcloud's configurations."""
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
    """Add these lines below ``hosts:`` of a fleet file.

    The file is created if it is missing.

    Raises UsageError, without a change, if the result would not be a valid fleet file.
    """
    block = "".join(f"{line}\n" for line in lines)
    if not file.exists():
        text = HEADER + block + _templates()
    else:
        before = file.read_text()
        match = _HOSTS.search(before)
        if match is None:
            raise UsageError(f"{file} has no line `hosts:` to add them to", f"edit it by hand:\n{block}")
        end = before.find("\n", match.start()) + 1 or len(before)
        text = before[:end] + ("" if before[:end].endswith("\n") else "\n") + block + before[end:]
    parse_fleet(text, str(file))
    place = file.resolve()  # of a link, the file that it names
    temporary = place.with_name(f"{place.name}.new")
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text)
    if place.exists():
        shutil.copymode(place, temporary)
    temporary.replace(place)


def _templates() -> str:
    """Return a commented target for each project of gcloud."""
    return "".join(
        f"# targets:\n#   pod: {{type: tpu, project: {project}, zone: ZONE, name: NAME, accelerator_type: TYPE}}\n"
        for project in gcloud_projects()
    )
