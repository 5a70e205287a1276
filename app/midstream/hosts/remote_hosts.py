"""Which hosts are reached over SSH or kubectl.

The answer needs no import of paramiko, which takes 20 MB: without it no host is reached over SSH.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from midstream.hosts.kubernetes_host import KubernetesHost

if TYPE_CHECKING:
    from midstream.hosts.ssh.ssh_host import SshHost

_SSH_HOST = "midstream.hosts.ssh.ssh_host"


def is_ssh(host: object) -> TypeGuard[SshHost]:
    """Return whether a host is reached over SSH."""
    kind = getattr(sys.modules.get(_SSH_HOST), "SshHost", None)
    return kind is not None and isinstance(host, kind)


def is_remote(host: object) -> TypeGuard[SshHost | KubernetesHost]:
    """Return whether a host is not this machine."""
    return isinstance(host, KubernetesHost) or is_ssh(host)
