"""Status of a host's pod by its cluster: evidence that a pod has ended."""

from __future__ import annotations

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet, KubernetesHostConfig, KubernetesTarget, pod_names
from midstream.hosts import current_context
from midstream.hosts.kubernetes_host import look_up_pods, was_seen
from midstream.providers.provider import SliceStatus

ENDED = ("Failed", "Succeeded")  # phases of which a pod returns to none


def pod_status(fleet: Fleet, host: str, config: KubernetesHostConfig) -> tuple[SliceStatus, str]:
    """Return the status of a host's pod, and a line that explains it.

    PREEMPTED: it has ended, or a pod of a target does not exist any more, which is not replaced. STOPPING: it is being
    deleted. UNKNOWN is no evidence: the pod runs or waits, or the cluster does not answer, or it may be another one,
    as the fleet file names none, and this process has never seen the pod.
    """
    current_context.look_up(config.cluster)
    try:
        pods = look_up_pods(host, config)
    except HostError as error:
        return SliceStatus.UNKNOWN, f"its pod cannot be looked up: {error.message}"
    phases = {phase for _, phase in pods}
    words = ", ".join(f"pod {name} is {phase}" for name, phase in pods[:4])
    if pods and phases <= set(ENDED):
        return SliceStatus.PREEMPTED, f"{words}, according to its cluster"
    if not pods and _is_of_target(fleet, host) and (config.context or was_seen(config)):
        return SliceStatus.PREEMPTED, f"pod {host} no longer exists, according to its cluster"
    status = SliceStatus.STOPPING if "Terminating" in phases else SliceStatus.UNKNOWN
    return status, f"{words or 'its pod does not exist'}, according to its cluster"


def _is_of_target(fleet: Fleet, host: str) -> bool:
    return any(
        isinstance(target, KubernetesTarget) and host in pod_names(name, target.pods)
        for name, target in fleet.targets.items()
    )
