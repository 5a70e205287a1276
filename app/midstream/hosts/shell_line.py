"""A command for a host as one line to paste into a shell on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from midstream.fleet.fleet import HostConfig, KubernetesHostConfig, SshHostConfig
from midstream.fleet.ssh_address import parse_address
from midstream.hosts.kubernetes_host import exec_words, kubectl_words
from midstream.hosts.ssh.config_files import config_words


def shell_line(name: str, config: HostConfig, command: str) -> str:
    """Return ``command``, a line of shell, as a line that runs it on the host.

    An example: ``ssh lab 'tail -n 20 /x/log'``.

    The ssh program reads the user's configuration; only what the fleet file overrides is added. Environment variables
    of the fleet file are never part of the line: they may be secrets.
    """
    if isinstance(config, KubernetesHostConfig):
        return pod_line(config, ["sh", "-c", command])
    if not isinstance(config, SshHostConfig):
        return command
    user, alias, port = parse_address(config.address, f"hosts.{name}.address")
    user, port = config.user or user, config.port or port
    words = ["ssh", *config_words(config.ssh_config)]
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    if config.known_hosts:
        path = os.path.expanduser(config.known_hosts)
        words += ["-o", f'UserKnownHostsFile="{path}"' if " " in path else f"UserKnownHostsFile={path}"]
    if config.identity_file:
        words += ["-o", "IdentitiesOnly=yes", "-i", os.path.expanduser(config.identity_file)]
    return shlex.join([*words, alias, command])


def pod_line(config: KubernetesHostConfig, argv: Sequence[str], *flags: str) -> str:
    """Return a line that runs ``argv`` in a host's container.

    ``flags`` are those of ``kubectl exec``.
    """
    named = f"--selector={config.selector}", "--field-selector=status.phase=Running", "--output=name"
    pod = shlex.quote(config.pod) if config.pod else f"$({shlex.join([*kubectl_words(config), 'get', 'pods', *named])})"
    before, _, after = shlex.join([*exec_words(config, "\0", *flags), *argv]).partition("'\0'")
    return f"{before}{pod}{after}"
