"""Create, find and delete the Job or JobSet of a Kubernetes target, with kubectl."""

from __future__ import annotations

import time
from collections.abc import Callable

from midstream.counts import count
from midstream.errors import HostError
from midstream.fleet.fleet import Fleet, KubernetesTarget, LocalHostConfig
from midstream.fleet.job_pods import OWNER, job_manifest
from midstream.hosts import current_context
from midstream.hosts.host import Completed
from midstream.hosts.kubernetes_host import kubectl_words, list_pods
from midstream.hosts.local_host import LocalHost

COMMAND_TIMEOUT = 60.0  # seconds
DELETE_TIMEOUT = 600.0  # seconds for the pods to end
POLL_INTERVAL = 1.0  # seconds
ANSWER_TIMEOUT = 900.0  # seconds without an answer of the cluster after which a wait for pods is ended
REFUSED = ("(Forbidden)", "(BadRequest)", "(NotFound)")  # in kubectl's words: the cluster has answered


def missing_pods(fleet: Fleet, name: str) -> PodJob | None:
    """Return the job of target ``name`` that has to be created; None for none.

    HostError where its cluster does not answer.
    """
    target = fleet.pods_of(name)
    if target is None or not target.create:
        return None
    job = PodJob(name, target)
    return None if job.exists() else job


class PodJob:
    """The Job or JobSet of a target."""

    def __init__(self, name: str, target: KubernetesTarget) -> None:
        self.name, self.target = name, target
        self._local = LocalHost("kubectl", LocalHostConfig())
        current_context.look_up(target.cluster)
        self._kubectl = kubectl_words(target)

    @property
    def path(self) -> str:
        """``KIND/NAME``, with the namespace where the fleet file names one."""
        place = f" in {self.target.namespace}" if self.target.namespace else ""
        return f"{self.target.kind}/{self.target.name or self.name}{place}"

    @property
    def description(self) -> str:
        """Line on what is created: ``job/cell, 2 pods of IMAGE, nvidia.com/gpu: 8 each``."""
        target = self.target
        limits = "".join(f", {name}: {value} each" for name, value in target.resources.items())
        return f"{self.path}, {count(target.pods, 'pod')} of {target.manifest or target.image}{limits}"

    def exists(self) -> bool:
        """Return whether the cluster has it. HostError where the cluster does not answer."""
        return bool(self._run("get", *self._named(), "--ignore-not-found", "--output=name").stdout.strip())

    def create(self, progress: Callable[[str], None], timeout: float | None = None) -> None:
        """Create the job, and wait until all of its pods run.

        Where that fails, what was created is deleted.

        Args:
            progress: Receives the states of the pods.
            timeout: Seconds for the pods to run; None: an interrupt alone ends the wait.

        Raises:
            HostError: The cluster refuses it, a pod has failed, or ``timeout`` has passed.
        """
        manifest = job_manifest(self.name, self.target)
        try:
            self._run("apply", "-f", "-", stdin=manifest.encode())
        except HostError:
            if self.target.manifest:  # it may have created a part
                self.delete(progress)
            raise
        try:
            self._wait_running(progress, timeout)
        except BaseException as error:  # also an interrupt: the pods would not be used
            try:
                self.delete(progress)
            except (HostError, KeyboardInterrupt) as remnant:
                why = error.message if isinstance(error, HostError) else f"{self.path}: interrupted"
                remains = remnant.message if isinstance(remnant, HostError) else "its deletion was interrupted"
                raise HostError(
                    f"{why}; its pods MAY STILL RUN ({remains})", f"midstream --delete {self.name} deletes it"
                ) from error
            raise

    def delete(self, progress: Callable[[str], None]) -> None:
        """Delete the job with its pods, and what else the user's manifest has.

        Raises:
            HostError: The deletion is refused.
        """
        if self.target.manifest:
            manifest = job_manifest(self.name, self.target).encode()
            self._run("delete", "-f", "-", "--ignore-not-found", "--wait=true", stdin=manifest, timeout=DELETE_TIMEOUT)
        else:
            self._run("delete", *self._named(), "--wait=true", timeout=DELETE_TIMEOUT)
        progress(f"{self.path} is deleted")

    def _named(self) -> list[str]:
        return [self.target.kind, self.target.name or self.name]

    def _wait_running(self, progress: Callable[[str], None], timeout: float | None) -> None:
        """Wait until all pods run. The queue of the cluster has no limit of its own.

        A cluster that does not answer is no evidence: the job keeps its place in the queue.
        """
        end = None if timeout is None else time.monotonic() + timeout
        said, phases, answered = "", "no pod yet", time.monotonic()
        while True:
            try:
                pods, now = self._pods(), ""
                answered = time.monotonic()
            except HostError as error:
                if any(word in error.message for word in REFUSED) or time.monotonic() - answered > ANSWER_TIMEOUT:
                    raise
                pods, now = [], f"no answer ({error.message}); it is looked up again"
            if sum(phase == "Running" for _, phase in pods) >= self.target.pods:
                return
            ended = next((f"{pod} is {phase}" for pod, phase in pods if phase in ("Failed", "Succeeded")), "")
            if ended:
                raise HostError(f"{self.path}: {ended}", f"kubectl describe {'/'.join(self._named())}")
            if not now:
                now = phases = ", ".join(f"{pod} is {phase}" for pod, phase in pods[:4]) or "no pod yet"
            if now != said:
                progress(f"{self.path}: {now}")
                said = now
            if end is not None and time.monotonic() > end:
                raise HostError(
                    f"{self.path}: {phases} after {timeout:.0f} s", f"kubectl describe {'/'.join(self._named())}"
                )
            time.sleep(POLL_INTERVAL)

    def _pods(self) -> list[tuple[str, str]]:
        """Return name and phase of the job's pods. Raises HostError without an answer."""
        selector = f"{OWNER[self.target.kind]}={self.target.name or self.name}"
        return list_pods(self._run("get", "pods", f"--selector={selector}", "--output=json").stdout)

    def _run(self, *words: str, stdin: bytes = b"", timeout: float = COMMAND_TIMEOUT) -> Completed:
        done = self._local.run([*self._kubectl, *words], stdin=stdin, timeout=timeout)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1].strip()[:300] if lines else f"exit code {done.returncode}"
            hint = (
                "install kubectl" if done.returncode == 127 else f"the fields of target {self.name} in the fleet file"
            )
            raise HostError(f"{self.path}: {why}", hint)
        return done
