"""Pods of a Kubernetes target: the hosts that they are, and their manifest.

The manifest is that of the Job or JobSet that creates them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import draccus
import yaml

from midstream.errors import UsageError
from midstream.fleet.fleet import JOB_KINDS, HostConfig, KubernetesHostConfig, KubernetesTarget, pod_names
from midstream.suggestions import nearest

INDEX = "batch.kubernetes.io/job-completion-index"
OWNER = {"job": "batch.kubernetes.io/job-name", "jobset": "jobset.sigs.k8s.io/jobset-name"}
LABEL = "midstream-target"  # on what midstream created; its value is the target's name
NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")  # a DNS label, with room for what a JobSet appends
MAX_PODS = 10_000
# The pods wait: engines are started in them by exec, and stop with the pod. The kubelet signals process 1 alone, and
# with its end it kills all others: an engine of an evicted pod would not save.
WAIT = """\
engines() { grep -ls 'midstream_[a-z]*.supervis[e]' /proc/[0-9]*/cmdline | cut -d/ -f3; }
stop() {
    [ $$ = 1 ] || exit 0
    kill -TERM $(engines) 2>/dev/null
    while [ -n "$(engines)" ]; do sleep 1; done
    exit 0
}
trap stop TERM
while :; do sleep 3600 & wait $!; done"""
PLACEHOLDERS = "$name, $pods, $image, $target"


def pod_hosts(path: str, name: str, target: KubernetesTarget) -> dict[str, KubernetesHostConfig]:
    """Return the pods of a target as hosts, by name.

    Raises:
        UsageError: A field is invalid; ``path`` names the fleet file.
    """
    where = f"{path}: targets.{name}"
    if target.kind not in JOB_KINDS:
        raise UsageError(f"{where}.kind is {target.kind!r}", nearest(target.kind, JOB_KINDS))
    if not 0 < target.pods <= MAX_PODS:
        raise UsageError(f"{where}.pods is {target.pods}", "1 or more")
    if not NAME.fullmatch(target.name or name):
        raise UsageError(f"{where}: {target.name or name!r} is no name of a Job", "lower case: name: train-big")
    if target.create and not (target.image or target.manifest):
        raise UsageError(f"{where} has create: true and no image", "image: of the pods, or manifest: a file")
    if target.volume_claim and not str(target.worker.get("root") or "").startswith("/"):
        raise UsageError(f"{where} has a volume_claim and no root to mount it at", "worker: {root: /data/midstream}")
    for field_name in ("context", "namespace", "pod_container"):
        if str(getattr(target, field_name) or "").startswith("-"):
            raise UsageError(f"{where}.{field_name} begins with a dash", "a name")
    field_names = [field.name for field in fields(HostConfig) if field.name != "container"]
    for key in target.worker:
        if key not in field_names:
            raise UsageError(f"{where}.worker.{key} is unknown", nearest(str(key), tuple(field_names)))
    pods: dict[str, KubernetesHostConfig] = {}
    for index, host in enumerate(pod_names(name, target.pods)):
        selector = f"{OWNER[target.kind]}={target.name or name},{INDEX}={index}"
        entry = {**target.worker, **target.cluster, "selector": selector, "pod_container": target.pod_container}
        try:
            pods[host] = draccus.decode(KubernetesHostConfig, entry)
        except draccus.utils.DraccusException as error:
            raise UsageError(f"{where}.worker: {' '.join(str(error).split())}") from error
    return pods


def job_manifest(name: str, target: KubernetesTarget) -> str:
    """Return the YAML that creates the target's pods.

    A file of the user's is taken as it is, with `PLACEHOLDERS` replaced.

    Raises:
        UsageError: The file cannot be read, or is no Job or JobSet of the target's name.
    """
    if target.manifest:
        return _from_file(name, target)
    job = target.name or name
    root = str(target.worker.get("root") or "")
    container: dict[str, Any] = {
        "name": target.pod_container or "engine",
        "image": target.image,
        "command": ["sh", "-c", WAIT],
    }
    pod: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 300, "containers": [container]}
    if target.resources:
        container["resources"] = {"limits": dict(target.resources)}
    if target.volume_claim:
        container["volumeMounts"] = [{"name": "root", "mountPath": root}]
        pod["volumes"] = [{"name": "root", "persistentVolumeClaim": {"claimName": target.volume_claim}}]
    if target.node_selector:
        pod["nodeSelector"] = dict(target.node_selector)
    spec = {
        "completions": target.pods,
        "parallelism": target.pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a pod that was lost is not replaced: its process could not join the others
        "template": {"metadata": {"labels": {LABEL: name}}, "spec": pod},
    }
    head = {"metadata": {"name": job, "labels": {LABEL: name}}}
    if target.kind == "job":
        manifest = {"apiVersion": "batch/v1", "kind": "Job", **head, "spec": spec}
    else:
        jobs = [{"name": "engine", "replicas": 1, "template": {"spec": spec}}]
        manifest = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            **head,
            "spec": {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 0}},
        }
    return yaml.safe_dump(manifest, sort_keys=False)


def _from_file(name: str, target: KubernetesTarget) -> str:
    path = Path(target.manifest).expanduser()
    job = target.name or name
    try:
        text = string.Template(path.read_text()).safe_substitute(
            name=job, pods=str(target.pods), image=target.image, target=name
        )
        documents = [document for document in yaml.safe_load_all(text) if isinstance(document, Mapping)]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", f"manifest: of target {name}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}", "correct the YAML") from error
    kind = {"job": "Job", "jobset": "JobSet"}[target.kind]
    named = [
        document
        for document in documents
        if document.get("kind") == kind and document.get("metadata", {}).get("name") == job
    ]
    if len(named) != 1:
        raise UsageError(
            f"{path} has no {kind} of the name {job}", f"metadata: {{name: $name}}; it gets {PLACEHOLDERS}"
        )
    return text
