"""A container of a pod as a host, with kubectl.

Every command is an exec of its own, over the API server's connection.

kubectl uses the user's kubeconfig and its credential plugins. A command runs behind a shell in the container, which
prints a mark before the command's output and its exit code after it: without the mark no command began, and without
the exit code it is not known whether it has ended.
"""

from __future__ import annotations

import io
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, cast

from midstream.errors import ConnectionLostError, HostError
from midstream.fleet.fleet import KubernetesHostConfig, KubernetesTarget, LocalHostConfig
from midstream.hosts import current_context
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import ANSWER_LIMIT, CALL_TIMEOUT, Completed, P, Process, R
from midstream.hosts.inspection import INSPECT, INSPECT_TIMEOUT
from midstream.hosts.local_host import LocalHost, LocalProcess
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.answer_limits import decode, run_to_end
from midstream.hosts.shell import run_shell

GET_TIMEOUT = 30.0  # seconds
PING_TIMEOUT = 30.0  # seconds
BEGIN = b"\1midstream\1\n"
# The exit code goes to stderr: stdout carries the command's own bytes alone.
SCRIPT = "printf '\\001midstream\\001\\n'; \"$@\"; code=$?; printf '\\001exit %d\\001\\n' $code >&2; exit $code"
ENDED = re.compile(r"\x01exit (\d{1,3})\x01\n?")
# kubectl's own line, before the command's, for a pod of several containers of which none is named.
DEFAULTED = re.compile(r'\ADefaulted container "[^"\n]*" out of: [^\n]*\n')

LOGIN_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -i")

_seen: set[str] = set()  # words of the queries that have found a pod


def kubectl_words(config: KubernetesHostConfig | KubernetesTarget) -> list[str]:
    """Return ``kubectl`` with the flags of the entry's cluster and namespace."""
    flags = {"kubeconfig": config.kubeconfig, **current_context.named_cluster(config.cluster)}
    return ["kubectl", *(f"--{flag}={value}" for flag, value in flags.items() if value)]


def exec_words(config: KubernetesHostConfig, pod: str, *flags: str) -> list[str]:
    """Return the words of an exec in the host's container, which the command follows."""
    container = [f"--container={config.pod_container}"] if config.pod_container else []
    return [*kubectl_words(config), "exec", *flags, pod, *container, "--"]


class _AfterMark(io.RawIOBase):
    """A process' stdout after `BEGIN`. ``begun`` is true once that was read."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self.begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.begun:
            head = b""
            while len(head) < len(BEGIN) and (data := self._inner.read(len(BEGIN) - len(head))):
                head += data
            if head != BEGIN:
                return 0
            self.begun = True
        data = cast(Any, self._inner).read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class KubectlProcess:
    """A command in a container, with open pipes. ``inner`` is its kubectl."""

    def __init__(self, host: str, inner: LocalProcess) -> None:
        self.host, self._inner = host, inner
        self.stdin = inner.stdin
        self._reader = _AfterMark(inner.stdout)
        self.stdout = cast(BinaryIO, io.BufferedReader(self._reader, 1 << 16))

    @property
    def begun(self) -> bool:
        """True once the container's shell has started the command."""
        return self._reader.begun

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._inner.limit_reading(deadline, stderr)

    def wait(self, timeout: float | None = None) -> int:
        self._inner.wait(timeout)
        codes = ENDED.findall(self._inner.stderr_text())
        if not codes:  # kubectl's own exit code says nothing of the command
            raise lost(self.host, self.own_words() or "the connection was closed")
        return int(codes[-1])

    def stderr_text(self) -> str:
        return DEFAULTED.sub("", ENDED.split(self._inner.stderr_text())[0])

    def own_words(self) -> str:
        """Return kubectl's last line, which says why there is no answer."""
        lines = [line for line in self._inner.stderr_text().strip().splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def close(self) -> None:
        self._inner.close()


def lost(host: str, what: str) -> ConnectionLostError:
    """Return the error for a command without an answer.

    A missing answer is no evidence of what the pod has done.
    """
    return ConnectionLostError(f"{host}: lost contact: {what}", "kubectl get pods shows whether the pod runs")


class KubernetesHost:
    """The Host of ``type: kubernetes``."""

    def __init__(self, name: str, config: KubernetesHostConfig) -> None:
        self.name, self.config = name, config
        self.root = ""
        self.remote_python = ""
        self.pod = ""
        self._local = LocalHost(name, LocalHostConfig())
        self._lock = threading.Lock()

    def connect(self) -> None:
        with self._lock:
            if self.pod:
                return
            current_context.look_up(self.config.cluster)
            self.pod = self._find_pod()
            try:
                self._inspect()
            except BaseException:
                self.pod = ""
                raise

    def with_new_connection(self) -> KubernetesHost:
        """Return this host: each command has a connection of its own."""
        return self

    def close(self) -> None:
        """Forget the pod: another one may have its labels at the next connection."""
        self.pod = ""

    def _find_pod(self) -> str:
        """Return the name of the running pod. HostError where there is none, or several."""
        config = self.config
        pods = look_up_pods(self.name, config)
        running = [name for name, phase in pods if phase == "Running"]
        if len(running) == 1:
            return running[0]
        label = config.pod or f"pods with {config.selector}"
        if running:
            raise HostError(
                f"{self.name}: {len(running)} {label} run: {', '.join(running[:4])}",
                "a host is one pod: pod: its name, or a selector: that one pod has",
            )
        phases = ", ".join(f"{name} is {phase}" for name, phase in pods[:4]) or "there are none"
        raise HostError(f"{self.name}: no running {label}: {phases}", "kubectl describe pod shows why")

    def _inspect(self) -> None:
        """Find the home directory and the Python that runs `midstream_host`."""
        words = ["sh", "-c", INSPECT, "sh", self.config.python or "", self.config.root]
        done = self.run(words, timeout=INSPECT_TIMEOUT)
        lines = done.stdout.decode(errors="replace").splitlines()
        if len(lines) < 2 or not lines[-2].startswith("/"):
            raise HostError(f"{self.name}: its container has no shell that works", "an image with sh and python3")
        home, self.remote_python = lines[-2:]
        root = self.config.root
        self.root = home + root[1:] if root == "~" or root.startswith("~/") else root

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        del window  # kubectl and the API server buffer what they buffer
        return self._open(argv, env)

    def _open(self, argv: Sequence[str], env: Mapping[str, str] | None) -> KubectlProcess:
        if not self.pod:
            raise lost(self.name, "its pod is not known")
        variables = [f"{key}={value}" for key, value in (env or {}).items()]
        words = ["env", *variables, *argv] if env else list(argv)
        command = [*exec_words(self.config, self.pod, "--stdin"), "sh", "-c", SCRIPT, "sh", *words]
        return KubectlProcess(self.name, cast(LocalProcess, self._local.open(command)))

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        process = self._open(argv, env)
        try:
            return run_to_end(process, what or argv[0], stdin, timeout, limit)
        except TimeoutError as error:
            raise lost(self.name, f"{argv[0]} did not end within {timeout:.0f} s") from error
        except ConnectionLostError:
            if not process.begun:
                self.pod = ""  # the next connection looks for it
            raise
        finally:
            process.close()

    def ping(self) -> None:
        """Wait for one answer of the container. Raises ConnectionLostError."""
        self.run(["true"], timeout=PING_TIMEOUT)

    def shell_line(self, command: str) -> str:
        return self._line(["sh", "-c", command])

    def open_shell(self) -> int:
        return run_shell(["sh", "-c", self._line([*LOGIN_SHELL], "-it")])

    def _line(self, argv: Sequence[str], *flags: str) -> str:
        """Return a line that runs ``argv`` in the container.

        ``flags`` are those of ``kubectl exec``.
        """
        config = self.config
        named = f"--selector={config.selector}", "--field-selector=status.phase=Running", "--output=name"
        query = [*kubectl_words(config), "get", "pods", *named]
        pod = shlex.quote(config.pod) if config.pod else f"$({shlex.join(query)})"
        before, _, after = shlex.join([*exec_words(config, "\0", *flags), *argv]).partition("'\0'")
        return f"{before}{pod}{after}"

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        return remote_call.caller(self, function, timeout)


def look_up_pods(host: str, config: KubernetesHostConfig) -> list[tuple[str, str]]:
    """Return name and phase of each pod that a host's entry names, as `list_pods`.

    Raises:
        HostError: The cluster does not answer, or has no pod of that name.
    """
    words = _query(config)
    done = LocalHost(host, LocalHostConfig()).run(words, timeout=2 * GET_TIMEOUT)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1].strip()[:300] if lines else f"exit code {done.returncode}"
        if done.returncode == 127:
            raise HostError(f"{host}: no kubectl on this machine", "install kubectl")
        raise HostError(f"{host}: {why}", "correct context:, namespace: or pod: in the fleet file")
    pods = list_pods(done.stdout)
    if pods:
        _seen.add(shlex.join(words))
    return pods


def was_seen(config: KubernetesHostConfig) -> bool:
    """Return whether this process has found a pod of an entry, in the same cluster."""
    return shlex.join(_query(config)) in _seen


def _query(config: KubernetesHostConfig) -> list[str]:
    what = ["pod", config.pod] if config.pod else ["pods", f"--selector={config.selector}"]
    return [*kubectl_words(config), "get", *what, "--output=json", f"--request-timeout={GET_TIMEOUT:.0f}s"]


def list_pods(output: bytes) -> list[tuple[str, str]]:
    """Return name and phase of each pod in what kubectl prints.

    Pods that are being deleted are Terminating.

    Raises:
        HostError: It is no list of pods.
    """
    try:
        return _pods(decode(output))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HostError("kubectl get printed no list of pods", "kubectl version") from None


def _pods(value: Any) -> list[tuple[str, str]]:
    items = value["items"] if value.get("kind") == "List" or "items" in value else [value]
    pods: list[tuple[str, str]] = []
    for item in items:
        name = item["metadata"]["name"]
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name):
            raise ValueError(name)
        leaving = "deletionTimestamp" in item["metadata"]
        phase = str(item.get("status", {}).get("phase", "Unknown"))
        pods.append((name, "Terminating" if leaving else phase if phase.isalpha() else "Unknown"))
    return pods
