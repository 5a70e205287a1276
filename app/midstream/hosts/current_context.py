"""Context and namespace of kubectl that are used where the fleet file names none.

Both are looked up once in a process, and written into the fleet of a migration: another ``kubectl config use-context``
would send the next command to a pod of the same name in another cluster.
"""

from __future__ import annotations

import json
import os
from typing import Any

import yaml

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.fleet.fleet_yaml import load_yaml
from midstream.fleet.slice_target import Cluster
from midstream.hosts.local_host import LocalHost

LOOKUP_TIMEOUT = 30.0  # seconds

_Key = tuple[str, str | None, str | None]
_found: dict[_Key, dict[str, str]] = {}


def named_cluster(cluster: Cluster) -> Cluster:
    """Return context and namespace of an entry: its own, or those that were looked up."""
    current = _found.get(_key(cluster), {})
    return {name: cluster[name] or current.get(name) for name in ("context", "namespace")}


def look_up(cluster: Cluster) -> None:
    """Look up what `named_cluster` lacks, unless this process has looked before.

    Nothing is found where kubectl has no configuration, as in a pod, or where it cannot be read: its commands say why.
    """
    key = _key(cluster)
    if key in _found or (cluster["context"] and cluster["namespace"]):
        return
    flags = [f"--{name}={value}" for name in ("kubeconfig", "context") if (value := cluster[name])]
    words = ["kubectl", *flags, "config", "view", "--minify", "--output=json"]
    try:
        done = LocalHost("kubectl", LocalHostConfig()).run(words, timeout=LOOKUP_TIMEOUT)
    except HostError:
        return
    if done.returncode == 0 and (current := _described(done.stdout)):
        _found[key] = current


def fleet_text(fleet: Fleet) -> str:
    """Return the text of the fleet, with the clusters that its pods have now."""
    value: Any = None
    for section, entries in (("hosts", fleet.hosts), ("targets", fleet.targets)):
        for name, config in entries.items():
            cluster = config.cluster
            if cluster is None:
                continue
            look_up(cluster)
            value = value or load_yaml(fleet.text)
            entry = (value.get(section) or {}).get(name)
            if isinstance(entry, dict):  # else a pod of a target
                entry.update({key: text for key, text in named_cluster(cluster).items() if text})
    return yaml.safe_dump(value, sort_keys=False) if value else fleet.text


def _key(cluster: Cluster) -> _Key:
    return os.environ.get("KUBECONFIG", ""), cluster["kubeconfig"], cluster["context"]


def _described(output: bytes) -> dict[str, str]:
    """Return name and namespace of the context that kubectl prints.

    Nothing where it is another text.
    """
    try:
        [entry] = json.loads(output)["contexts"]
        context = entry["context"]
        return {"context": str(entry["name"]), "namespace": str(context.get("namespace") or "default")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
