"""Valid SSH set-ups: what a user may write in ~/.ssh/config for a host, and plain ``ssh`` accepts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

CONNECTED = "  IdentityFile {dir}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {dir}/known_hosts\n"
HOST = "Host gpu\n  HostName 127.0.0.1\n  Port {port}\n"
KNOWN = HOST + "  UserKnownHostsFile {dir}/known_hosts\n"
KEY = HOST + "  IdentityFile {dir}/user_key\n  IdentitiesOnly yes\n"
FULL = HOST + CONNECTED
BASH = (("SHELL", shutil.which("bash") or "/bin/sh"),)
JUMP = "Host jump jump2\n  HostName 127.0.0.1\n  Port {port}\n" + CONNECTED


@dataclass(frozen=True)
class Setup:
    """A configuration of the host ``gpu``.

    ``{dir}``, ``{port}``, ``{agent}`` (one key), ``{agents}`` (eight keys), ``{python}`` are filled in.
    ``unsupported`` is what midstream's error names; empty where midstream has to accept the set-up.
    """

    name: str
    config: str
    unsupported: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    refused: bool = False  # by ssh, too
    address: str = "gpu"


def keys() -> list[Setup]:
    """Return set-ups of keys, certificates and agents."""
    only, agent = "  IdentitiesOnly yes\n", "  IdentityAgent {agent}\n"
    files = ("rsa", "ecdsa", "ecdsa521", "rsa_pem", "ecdsa_pem", "rsa_pkcs8", "ecdsa_pkcs8")
    found = [Setup(f"key-{each}", KNOWN + only + f"  IdentityFile {{dir}}/{each}\n") for each in files]
    certified = ("ed25519_certified", "rsa_certified", "ecdsa_certified")
    found += [Setup(f"certificate-{each}", KNOWN + only + f"  IdentityFile {{dir}}/{each}\n") for each in certified]
    on_disk = "  IdentityFile {dir}/agent_certified\n"
    apart = "  CertificateFile {dir}/apart-cert.pub\n"
    found += [
        Setup("certificate-file", KNOWN + only + "  IdentityFile {dir}/apart\n" + apart),
        Setup("certificate-file-before-agent", KNOWN + agent + "  IdentityFile {dir}/apart\n" + apart),
        Setup("agent-public-key", KNOWN + only + agent + "  IdentityFile {dir}/agent_key.pub\n"),
        Setup("agent-absent-private-key", KNOWN + only + agent + "  IdentityFile {dir}/agent_key\n"),
        Setup("agent-certificate-on-disk", KNOWN + agent + on_disk),
        Setup("agent-certificate-on-disk-only", KNOWN + only + agent + on_disk),
        Setup("agent-certificate-file", KNOWN + agent + "  CertificateFile {dir}/agent_certified-cert.pub\n"),
        Setup(
            "agent-certificate-file-only",
            KNOWN
            + only
            + agent
            + "  CertificateFile {dir}/agent_certified-cert.pub\n  IdentityFile {dir}/agent_certified.pub\n",
        ),
        Setup("agent-any-key", KNOWN + agent),
        Setup("agent-no-files", KNOWN + agent + "  IdentityFile none\n"),
        Setup("agent-variable", KNOWN + "  IdentityAgent $MY_AGENT\n", environment=(("MY_AGENT", "{agent}"),)),
        Setup("agent-default", KNOWN, environment=(("SSH_AUTH_SOCK", "{agent}"),)),
        Setup("agent-many-keys", KNOWN + only + "  IdentityAgent {agents}\n  IdentityFile {dir}/agent_key\n"),
        Setup("agent-many-keys-file", KNOWN + only + "  IdentityAgent {agents}\n  IdentityFile {dir}/user_key\n"),
        Setup("agent-opens-locked-file", KNOWN + only + agent + "  IdentityFile {dir}/locked\n"),
        Setup("second-file", KNOWN + only + "  IdentityFile {dir}/other\n  IdentityFile {dir}/user_key\n"),
        Setup(
            "file-from-variable", KNOWN + only + "  IdentityFile ${{KEYS}}/user_key\n", environment=(("KEYS", "{dir}"),)
        ),
        Setup("path-with-space", KNOWN + only + '  IdentityFile "{dir}/a key"\n'),
        Setup(
            "accepted-algorithms", KNOWN + only + "  IdentityFile {dir}/rsa\n  PubkeyAcceptedAlgorithms rsa-sha2-256\n"
        ),
        Setup("two-keys", FULL.replace("{port}", "{two_keys}") + "  IdentityFile {dir}/rsa\n"),
        Setup(
            "open-connection",
            KNOWN + only + "  IdentityFile {dir}/other\n  ControlPath {dir}/master\n",
            unsupported="ControlPath",
        ),
        Setup(
            "key-and-more", FULL.replace("{port}", "{two_keys}"), unsupported="requires more than a key", refused=True
        ),
    ]
    return found


def configurations() -> list[Setup]:
    """Return set-ups of Include, Match, patterns and tokens."""
    rest = "  HostName 127.0.0.1\n  Port {port}\n" + CONNECTED
    return [
        Setup("plain", FULL),
        Setup("equals-signs", "Host=gpu\nHostName=127.0.0.1\nPort = {port}\n" + CONNECTED),
        Setup("include", "Include {dir}/included\n"),
        Setup("include-pattern", "Include {dir}/inc*ed\n"),
        Setup("include-in-block", "Host gp*\n  Include {dir}/options\n"),
        Setup("pattern", "Host gp? !gpx\n" + rest),
        Setup("match-original-host", "Match originalhost gpu\n" + rest),
        Setup("match-host", HOST + "Match host 127.0.0.*\n" + CONNECTED),
        Setup("match-exec", 'Match originalhost gpu exec "test %n = gpu"\n' + rest),
        Setup(
            "match-exec-bash",
            'Match exec "[[ gpu == g* ]]"\n' + rest,
            environment=(("SHELL", shutil.which("bash") or "/bin/sh"),),
        ),
        Setup("match-user", HOST + "Match user {user}\n" + CONNECTED),
        Setup("match-local-user", "Match localuser {user}\n" + rest),
        Setup("match-final", HOST + "Match final host 127.0.0.1\n" + CONNECTED),
        Setup("first-value-counts", FULL + "Host *\n  Port 9\n  HostName 192.0.2.1\n"),
        Setup("host-name-token", FULL.replace("gpu", "127").replace("127.0", "%h.0"), address="127"),
        Setup("key-by-tokens", KNOWN + "  IdentitiesOnly yes\n  IdentityFile {dir}/%n-%p\n"),
        Setup("canonical", "CanonicalizeHostname yes\nCanonicalDomains invalid\n" + FULL),
        Setup("environment", FULL + "  SetEnv A=b\n  SendEnv LANG\n"),
        Setup(
            "session-options", FULL + "  RequestTTY no\n  Compression yes\n  LogLevel QUIET\n  ServerAliveInterval 5\n"
        ),
        Setup(
            "forwarding", FULL + "  ForwardAgent yes\n  ExitOnForwardFailure yes\n  LocalForward {free} 127.0.0.1:9\n"
        ),
    ]


def unusual() -> list[Setup]:
    """Return set-ups with options of sessions and connections that few have."""
    return [
        Setup("master-auto", FULL + "  ControlMaster auto\n  ControlPath {short}/%C\n  ControlPersist 1\n"),
        Setup("master-none", FULL + "  ControlMaster no\n  ControlPath none\n"),
        Setup("agent-none", FULL + "  IdentityAgent none\n"),
        Setup("tty-force", FULL + "  RequestTTY force\n"),
        Setup("session-type", FULL + "  SessionType default\n  StdinNull no\n  ForkAfterAuthentication no\n"),
        Setup("local-command", FULL + "  PermitLocalCommand yes\n  LocalCommand true %h %n %r %p %C\n"),
        Setup("remote-command-none", FULL + "  RemoteCommand none\nHost *\n  RemoteCommand tmux attach\n"),
        Setup("set-environment", FULL + '  SetEnv "A=b c" LANG=C.UTF-8\n  SendEnv -LC_*\n'),
        Setup("rekey", FULL + "  RekeyLimit 1G 1h\n  IPQoS lowdelay throughput\n  EscapeChar none\n"),
        Setup("lists-changed", FULL + "  Ciphers ^aes256-ctr\n  MACs -hmac-md5*\n  HostKeyAlgorithms ^ssh-ed25519\n"),
        Setup("key-types", FULL + "  PubkeyAcceptedAlgorithms +ssh-rsa\n  PreferredAuthentications publickey\n"),
        Setup(
            "methods", FULL + "  PasswordAuthentication no\n  GSSAPIAuthentication no\n  HostbasedAuthentication no\n"
        ),
        Setup("ignored-unknown", "IgnoreUnknown Obscure*,UseKeychain\n" + FULL + "  UseKeychain yes\n"),
        Setup(
            "case-and-quotes",
            FULL.replace("HostName", "HOSTNAME").replace(
                "IdentityFile {dir}/user_key", 'identityfile "{dir}/user_key"'
            ),
        ),
        Setup("comments", "# a\n\n" + FULL.replace("  Port {port}", "  Port {port} # the lab's")),
        Setup("tabs", FULL.replace("  ", "\t")),
        Setup("windows-lines", FULL.replace("\n", "\r\n")),
        Setup(
            "match-exec-tokens",
            'Match exec "test %h-%n-%r-%p-%L-%u != x"\n' + "  HostName 127.0.0.1\n  Port {port}\n" + CONNECTED,
        ),
        Setup("match-exec-false", 'Match exec "false"\n  Port 9\n' + FULL),
        Setup("match-all", FULL + "Match all\n  Port 9\n"),
        Setup(
            "match-not",
            'Match !exec "test -e /nonexistent" originalhost gpu\n  HostName 127.0.0.1\n  Port {port}\n' + CONNECTED,
        ),
    ]


def routes() -> list[Setup]:
    """Return set-ups of addresses, jumps, proxies and algorithms."""
    by_name = FULL.replace("127.0.0.1", "localhost")
    far = FULL.replace("127.0.0.1", "far.invalid") + "  HostKeyAlias certified\n"
    relay, passing = "{python} {dir}/relay.py %h %p", "{python} {dir}/relay.py --pass %h %p"
    return [
        Setup("family-inet", by_name + "  AddressFamily inet\n"),
        Setup("family-any", by_name + "  AddressFamily any\n"),
        Setup("family-inet6", by_name + "  AddressFamily inet6\n", refused=True),
        Setup("bind-address", FULL + "  BindAddress 127.0.0.1\n"),
        Setup("bind-interface", FULL + "  BindInterface lo\n", unsupported="BindInterface"),
        Setup("connect-timeout", FULL + "  ConnectTimeout 5\n  ConnectionAttempts 2\n"),
        Setup("jump", FULL + "  ProxyJump jump\n" + JUMP),
        Setup("jump-user-port", FULL + "  ProxyJump {user}@jump:{port}\n" + JUMP),
        Setup("jump-uri", FULL + "  ProxyJump ssh://{user}@jump:{port}\n" + JUMP),
        Setup("jump-twice", FULL + "  ProxyJump jump,jump2\n" + JUMP),
        Setup("jump-behind-jump", FULL + "  ProxyJump jump2\nHost jump2\n  ProxyJump jump\n" + JUMP),
        Setup("jump-none", FULL + "  ProxyJump none\nHost *\n  ProxyJump 192.0.2.1\n"),
        Setup("proxy", FULL + f"  ProxyCommand {relay}\n"),
        Setup("proxy-ssh", FULL + "  ProxyCommand ssh -F {config} -W %h:%p jump\n" + JUMP),
        Setup("proxy-bash", FULL + f"  ProxyCommand {relay} 2> >(cat >/dev/null)\n", environment=BASH),
        Setup("proxy-none", FULL + "  ProxyCommand none\nHost *\n  ProxyCommand false\n"),
        Setup("proxy-passes-socket", FULL + f"  ProxyCommand {passing}\n  ProxyUseFdpass yes\n"),
        Setup("proxy-alias", far + "  ProxyCommand {python} {dir}/relay.py 127.0.0.1 %p\n"),
        Setup("ciphers", FULL + "  Ciphers aes256-ctr\n"),
        Setup("chacha", FULL + "  Ciphers chacha20-poly1305@openssh.com\n", unsupported="Ciphers"),
        Setup("macs", FULL + "  MACs hmac-sha2-512-etm@openssh.com\n  Ciphers aes128-ctr\n"),
        Setup("key-exchange", FULL + "  KexAlgorithms ecdh-sha2-nistp384\n"),
        Setup("key-exchange-appended", FULL + "  KexAlgorithms +diffie-hellman-group14-sha1\n"),
        Setup("sntrup", FULL + "  KexAlgorithms sntrup761x25519-sha512@openssh.com\n", unsupported="KexAlgorithms"),
    ]


def host_keys() -> list[Setup]:
    """Return set-ups of host keys."""
    alone = KEY + "  GlobalKnownHostsFile none\n  UserKnownHostsFile none\n"
    discarded = KEY + "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking "
    return [
        Setup("known-global", KEY + "  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile {dir}/known_hosts\n"),
        Setup("known-two-files", KEY + '  UserKnownHostsFile /dev/null "{dir}/known hosts"\n'),
        Setup("known-command", alone + "  KnownHostsCommand /bin/cat {dir}/known_hosts\n"),
        Setup("known-command-tokens", alone + "  KnownHostsCommand {python} {dir}/known.py %I %H %t %K %n\n"),
        Setup("known-hashed", KEY + "  UserKnownHostsFile {dir}/known_hashed\n"),
        Setup("known-without-port", KEY + "  UserKnownHostsFile {dir}/known_plain\n"),
        Setup("known-alias", KEY + "  HostKeyAlias the-gpu\n  UserKnownHostsFile {dir}/known_alias\n"),
        Setup("known-rsa", KEY + "  UserKnownHostsFile {dir}/known_rsa\n"),
        Setup("known-algorithm", KEY + "  HostKeyAlgorithms rsa-sha2-512\n  UserKnownHostsFile {dir}/known_both\n"),
        Setup("known-authority", KEY + "  HostKeyAlias certified\n  UserKnownHostsFile {dir}/known_authority\n"),
        Setup("check-host-ip", FULL + "  CheckHostIP yes\n"),
        Setup("strict-yes", FULL + "  StrictHostKeyChecking yes\n  UpdateHostKeys no\n"),
        Setup("revoked", FULL + "  RevokedHostKeys {dir}/host_key.pub\n", refused=True),
        Setup("revoked-other", FULL + "  RevokedHostKeys {dir}/other.pub\n"),
        Setup("strict-no", discarded + "no\n", unsupported="StrictHostKeyChecking no"),
        Setup("strict-accept-new", discarded + "accept-new\n", unsupported="StrictHostKeyChecking accept-new"),
        Setup(
            "no-localhost",
            KEY + "  NoHostAuthenticationForLocalhost yes\n  UserKnownHostsFile /dev/null\n",
            unsupported="NoHostAuthenticationForLocalhost yes",
        ),
    ]


SHELLS = ("dash", "bash", "zsh", "ksh", "mksh", "fish", "tcsh", "busybox", "rbash")


def shells() -> list[Setup]:
    """Return set-ups of login shells, as forced commands, that this machine has."""
    unsupported = {"tcsh": "POSIX shell", "rbash": "POSIX shell"}
    return [
        Setup(
            f"shell-{each}",
            KNOWN + f"  IdentitiesOnly yes\n  IdentityFile {{dir}}/shell_{each}\n",
            unsupported.get(each, ""),
        )
        for each in SHELLS
        if shutil.which(each)
    ]


SETUPS = [*keys(), *configurations(), *unusual(), *routes(), *host_keys(), *shells()]
