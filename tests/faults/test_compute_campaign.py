"""Requests for slices of Compute Engine with failures, preemptions and cancellations, many times.

    python tests/faults/test_compute_campaign.py [--runs 1000] [--seed 1] [--results FILE]

A run requests one machine, or a group with its policy and template. Drawn are faults of any call, the end of an
operation, a preemption or a cancellation after a random number of calls. Afterwards the slice is ready, or everything
is deleted and the error reports this, or the error names what may be left. Then the service recovers: what is named is
deleted, the same command succeeds, and after its deletion nothing is left. Resources of others are not changed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.fleet.gce_target import ComputeTarget
from midstream.providers import provider, slice_service
from midstream.providers.gce import client as compute_client
from midstream.providers.gce import creation as machine_creation
from midstream.providers.gce.provider import ComputeProvider
from midstream.providers.provider import ProviderError, SliceStatus
from simulators.google.compute_api import ComputeServer, Fault
from support.migrations.campaigns import Campaign, Case
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/compute-faults.jsonl"
PLACE = "proj/zones/us-x1-a"
CREATIONS = ("POST instances", "POST resourcePolicies", "POST instanceTemplates", "POST instanceGroupManagers")
LOOKS = ("GET instances", "GET instanceGroupManagers", "GET operations", "POST listManagedInstances", "GET .*")
PASSING = ((503, "backendError"), (500, "internalError"), (429, "rateLimitExceeded"), (403, "rateLimitExceeded"))
LASTING = ((403, "forbidden"), (400, "invalid"), (403, "quotaExceeded"))
ENDS = (None, None, None, "ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED", "INTERNAL_ERROR")


def draw(random_: random.Random) -> Case:
    """Draw the faults of a run, as JSON."""
    faults = []
    for _ in range(random_.choice((0, 1, 1, 2, 3))):
        look, passing = random_.random() < 0.5, random_.random() < 0.75
        call = random_.choice(LOOKS) if look else random_.choice((*CREATIONS, "DELETE .*"))
        status, reason = random_.choice(PASSING if passing else LASTING)
        if look and random_.random() < 0.3:
            status, reason = 401, "authError"
        late = not look and status >= 500 and random_.random() < 0.5
        faults.append({"call": call, "status": status, "reason": reason, "times": random_.choice((1, 1, 2, 3, 7)),
                       "late": late})  # fmt: skip
    return {
        "topology": random_.choice((None, "2x2x2")),
        "price": random_.choice(("on demand", "spot", "flex-start", "reserved")),
        "delay": random_.choice((0.0, 0.005, 0.02)),
        "faults": faults,
        "ends": random_.choice(ENDS),
        "preempted": random_.choice((None, None, None, 4, 8, 16)),  # after so many calls
        "cancelled": random_.choice((None, None, None, 0, 2, 5)),  # after so many lines
        "taken": random_.choice((None,) * 8 + CREATIONS[1:]),  # what has the name already, and is another's
    }


WORDS: dict[str, dict[str, Any]] = {
    "on demand": {}, "spot": {"spot": True}, "flex-start": {"flex_start": True, "run_duration": "4h"},
    "reserved": {"reservation": "ours"},
}  # fmt: skip


def one_run(case: Case, _random: random.Random, directory: Path) -> str:
    """Return a run's outcome; AssertionError if something is left that no error names."""
    with ComputeServer() as server, mock.patch.dict(os.environ, {compute_client.ENDPOINT: server.address}):
        server.delay = case["delay"]
        server.resources[f"{PLACE}/instances/other"] = {"name": "other", "id": "1", "status": "RUNNING"}
        others = {"instances/other"}
        if case["taken"] and case["topology"]:
            collection = case["taken"].partition(" ")[2]
            scope = {"resourcePolicies": "proj/regions/us-x1", "instanceTemplates": "proj/global"}.get(
                collection, PLACE
            )
            server.resources[f"{scope}/{collection}/pod"] = {"name": "pod", "id": "2", "description": "another's"}
            others.add(f"{collection}/pod")
        if case["ends"]:
            server.errors.append((case["ends"], "planted"))
        server.faults = [Fault(message="planted", **each) for each in case["faults"]]
        target = ComputeTarget(
            project="proj", zone="us-x1-a", machine_type="tpu7x-standard-4t", create=True, topology=case["topology"],
            identity_file=str(directory / "key"), valid_until="5s", **WORDS[case["price"]],
        )  # fmt: skip
        cancel, lines = threading.Event(), []

        def say(line: str) -> None:
            lines.append(line)
            if case["cancelled"] is not None and len(lines) > case["cancelled"]:
                cancel.set()

        answer = server.answer

        def preempting(method: str, address: str, body: Any) -> Any:
            if case["preempted"] is not None and len(server.calls) == case["preempted"]:
                with server.lock:
                    for key, value in server.resources.items():
                        if "/instances/pod" in key:
                            value["status"] = "TERMINATED"
            return answer(method, address, body)

        server.answer = preempting
        compute = ComputeProvider()
        made = refused = None
        try:
            made = compute.create("pod", target, say, cancel)
        except ProviderError as error:
            refused = error
        left = set(server.names()) - others
        taken = len(others) > 1
        if refused is None:
            assert made is not None
            assert made.status == SliceStatus.READY
            assert not taken or made.path, "a group of another is used as it is"
            outcome = f"made, {case['price']}"
        elif refused.costs:
            outcome = f"{refused.kind or 'refused'}, named"
            assert "midstream --delete proj/us-x1-a/pod" in refused.message, refused.message
        else:
            outcome = str(refused.kind or "refused")
            assert left == set(), (str(refused), left)
        assert others <= set(server.names()), "resources of others are not changed"
        server.faults, server.errors, case["preempted"] = [], [], None
        if taken:
            return f"{outcome}, name taken"
        if refused is not None and refused.costs and left:
            compute.delete("proj/us-x1-a/pod", lambda _: None)  # as the error's hint does
            assert set(server.names()) == others, "nothing is left behind"
        again = compute.create("pod", target, lambda _: None)
        assert (again.status, again.price_class) == (SliceStatus.READY, case["price"])
        machines = [name for name in server.names() if name.startswith("instances/pod")]
        assert len(machines) == (2 if case["topology"] else 1), "exactly one slice"
        compute.delete("proj/us-x1-a/pod", lambda _: None)
        assert set(server.names()) == others, "nothing is left behind"
        return outcome


@contextmanager
def opened() -> Iterator[Path]:
    import tempfile

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(slice_service, "FIND_TIMEOUT", 1.0)
        patch.setattr(machine_creation, "SETTLE_TIMEOUT", 1.0)
        patch.setattr(provider, "FIRST_POLL_INTERVAL", 0.002)
        patch.setattr(provider, "MAX_POLL_INTERVAL", 0.02)
        patch.setenv(compute_client.ENDPOINT, "")  # restored at the end
        yield Path(directory)


CAMPAIGN = Campaign(draw, one_run, opened)


def test_compute_campaign_sample() -> None:
    CAMPAIGN.sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=1000)
