"""Login on a connection, and the errors of failed logins."""

from __future__ import annotations

import shlex

import paramiko

from midstream.errors import HostError
from midstream.hosts.ssh import failed_logins
from midstream.hosts.ssh.auth_keys import KeyAttempts, offers, open_agent
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.hosts.ssh.transport import Transport


def authenticate(name: str, settings: SshSettings, transport: Transport) -> None:
    attempts = KeyAttempts()
    agent = open_agent(settings.identity_agent)
    further = False  # the server has accepted one key, and requires another
    try:
        for offer in offers(name, settings, agent, attempts):
            if not transport.is_active():
                break
            try:
                more = transport.auth_publickey(settings.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                raise HostError(
                    f"{name}: {settings.address} takes no keys (it accepts {', '.join(error.allowed_types)})",
                    "PubkeyAuthentication yes in its sshd_config",
                ) from error
            except paramiko.AuthenticationException:
                continue
            except paramiko.SSHException:
                # The agent refused to sign, or the server does not support this kind of key.
                if transport.is_active():
                    continue
                break
            if "publickey" in more:
                further = True
                continue
            if more:
                raise HostError(
                    f"{name}: {settings.address} requires more than a key ({', '.join(more)})",
                    "midstream logs in with keys alone: no password can be typed while a migration runs",
                )
            return
    finally:
        if agent is not None:
            agent.close()
    if not transport.is_active() and not attempts.locked:
        raise failed_logins.recorded(
            settings,
            HostError(
                f"{name}: {settings.address} closed the connection during login (tried {attempts.text()})",
                "too many keys are a usual reason: IdentityFile and IdentitiesOnly yes name the one",
            ),
        )
    if attempts.locked:
        raise HostError(
            f"{name}: the key file {attempts.locked[0]} has a passphrase, and none was entered",
            f"ssh-add {shlex.quote(attempts.locked[0])} adds it to the agent",
        )
    if further:
        raise failed_logins.recorded(
            settings,
            HostError(
                f"{name}: {settings.address} requires more than a key (another key, of {attempts.text()})",
                "IdentityFile names each key; the server's AuthenticationMethods asks for several",
            ),
        )
    others = _other_logins(settings, transport)
    if others is None:
        return
    unused = f"; not supported: {', '.join(others)}" if others else ""
    raise failed_logins.recorded(
        settings,
        HostError(
            f"{name}: {settings.address} accepts none of our keys (tried {attempts.text()}){unused}",
            f"ssh-copy-id, or identity_file: in the fleet file; ssh -v {shlex.quote(settings.alias)} shows more",
        ),
    )


def _other_logins(settings: SshSettings, transport: Transport) -> tuple[str, ...] | None:
    """Return the ways to log in that the server or the configuration has beside keys.

    None if the server requires none of them: the user is logged in.
    """
    try:
        if not transport.auth_none(settings.user):
            return None
        accepted: list[str] = []
    except paramiko.BadAuthenticationType as error:
        accepted = [login for login in error.allowed_types if login != "publickey"]
    except (paramiko.SSHException, EOFError, OSError):  # it has closed the connection
        accepted = []
    return (*settings.unused_logins, *accepted)
