"""Requests for slices with failures, preemptions and cancellations, many times.

    python tests/faults/test_tpu_campaign.py [--runs 1000] [--seed 1] [--results FILE]

A run requests a slice, as a node or in a queue. Drawn are faults of any call, an end of the creation, a preemption or a
cancellation after a random number of calls. Afterwards the slice is ready and the only one that costs money, or it is
deleted and the error reports this, or the error names what may be left. Then the service recovers: the named slice is
deleted, and the same command succeeds. Slices of other users, one with the same name among them, are not changed.

Results are appended, one line per run: an interrupted campaign continues where it was.
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

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import pytest
from google.cloud import tpu_v2

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.fleet.tpu_target import TpuTarget
from midstream.providers import provider, slice_service
from midstream.providers.provider import ProviderError, SliceStatus
from midstream.providers.tpu import client as tpu_client
from midstream.providers.tpu.provider import TpuProvider
from simulators.google.tpu_api import Fault, TpuServer
from simulators.google.tpu_nodes import QUOTA, STOCKOUT, Outcome, State
from support.migrations.campaigns import Campaign, Case
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/tpu-faults.jsonl"
PARENT = "projects/p/locations/z"
READS = (
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded for 'Read requests' and limit 'Read requests per minute'"),
    (grpc.StatusCode.INTERNAL, "internal error"),
    (grpc.StatusCode.UNAUTHENTICATED, "invalid authentication credentials"),
    (grpc.StatusCode.UNAVAILABLE, "network is unreachable"),
)  # errors of looks, which prove nothing
CALLS = ("CreateNode", "CreateQueuedResource", "GetNode", "GetQueuedResource", "GetOperation", "Delete")
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL)
LASTING = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
LEFT = (None, State.TERMINATED, State.PREEMPTED, State.CREATING, State.REPAIRING)


def draw(random_: random.Random) -> Case:
    """Draw the faults of a run, as JSON."""
    faults = []
    for _ in range(random_.choice((0, 1, 1, 2, 3))):
        passing = random_.random() < 0.75
        faults.append(
            {
                "method": random_.choice(CALLS),
                "code": random_.choice(PASSING if passing else LASTING).name,
                "times": random_.choice((1, 1, 2, 3, 7)),
                "late": passing and random_.random() < 0.5,  # it has its effect; a refusal has none
            }
        )
    if random_.random() < 0.4:
        code, message = random_.choice(READS)
        looks = {"method": "^Get", "code": code.name, "times": random_.choice((1, 3, 9)), "late": False}
        faults.append({**looks, "message": message, "after": random_.choice((1, 2, 4, 8))})
    left = random_.choice(LEFT)
    return {
        "queued": random_.random() < 0.5,
        "delay": random_.choice((0.0, 0.005, 0.02)),  # seconds in each state of a creation
        "faults": faults,
        "ends": random_.choice((None, None, None, STOCKOUT, QUOTA)),
        "leaves": None if left is None else int(left),
        "preempted": random_.choice((None, None, None, 1, 3, 6)),  # after so many calls
        "says_so": random_.random() < 0.6,
        "cancelled": random_.choice((None, None, None, 0, 2, 5)),  # after so many lines
        "namesake": random_.random() < 0.1,
    }


def one_run(case: Case, _random: random.Random, _opened: None) -> str:
    """Return a run's outcome; AssertionError if something is left that no error names."""
    with TpuServer() as server, mock.patch.dict(os.environ, {tpu_client.ENDPOINT: server.endpoint}):
        server.delay = case["delay"]
        others = {f"{PARENT}/nodes/other"} | ({f"{PARENT}/nodes/pod"} if case["namesake"] else set())
        for name in sorted(others):
            server.create(PARENT, name.rpartition("/")[2], tpu_v2.Node(accelerator_type="v3-8"))
            server.make_ready(name)
        server.created.clear()
        if case["ends"]:
            server.outcomes.append(Outcome(message=case["ends"], leaves=case["leaves"]))
        server.faults = [
            Fault(
                each["method"],
                getattr(grpc.StatusCode, each["code"]),
                each.get("message", "planted"),
                each["times"],
                each["late"],
                each.get("after", 0),
            )
            for each in case["faults"]
        ]
        target = TpuTarget(
            project="p", zone="z", accelerator_type="v3-32", runtime_version="r", create=True, spot=True,
            queued=case["queued"], valid_until="20s",
        )  # fmt: skip
        cancel, lines = threading.Event(), []

        def say(line: str) -> None:
            lines.append(line)
            if case["cancelled"] is not None and len(lines) > case["cancelled"]:
                cancel.set()

        answer = server.answer

        def preempting(method: str, request: Any) -> Any:
            if case["preempted"] is not None and len(server.calls) == case["preempted"] and not case["namesake"]:
                server.preempt("pod", says_so=case["says_so"])
            return answer(method, request)

        server.answer = preempting
        google = TpuProvider()
        made = refused = None
        try:
            made = google.create("pod", target, say, cancel)
        except ProviderError as error:
            refused = error
        left = (set(server.nodes) - others) | set(server.queued)
        if refused is None:
            outcome = "used another's" if case["namesake"] else "made"
            assert made is not None
            assert made.status == SliceStatus.READY
        elif refused.costs:
            outcome = f"{refused.kind or 'refused'}, named"
            blind = any(each["method"].startswith(("Get", "Delete")) for each in case["faults"])
            assert left or case["namesake"] or blind, f"nothing is there: {refused}"
            assert "midstream --delete p/z/pod" in refused.message, refused.message
        else:
            outcome = refused.kind or "refused"
            assert left == set(), (str(refused), left)
            assert case["namesake"] or "nothing costs money" in refused.message, refused.message
        assert others <= set(server.nodes), "slices of others are not changed"
        assert len(set(server.nodes) - others) <= 1
        server.faults, server.outcomes, case["preempted"] = [], [], None
        if refused is not None and refused.costs and left:
            google.delete("p/z/pod", lambda _: None)  # as the error's hint does
        again = google.create("pod", target, lambda _: None)
        assert again.status == SliceStatus.READY
        assert len(set(server.nodes) - others) == (0 if case["namesake"] else 1), "exactly one"
        if not case["namesake"]:
            google.delete("p/z/pod", lambda _: None)
            assert set(server.nodes) == others
            assert not server.queued
        return outcome


def hurry(setattr_: Any) -> None:
    """Shorten all polling and retry intervals."""
    import google.api_core.retry

    setattr_(slice_service, "FIND_TIMEOUT", 1.0)
    setattr_(provider, "FIRST_POLL_INTERVAL", 0.002)
    setattr_(provider, "MAX_POLL_INTERVAL", 0.02)
    real = google.api_core.retry.Retry
    setattr_(google.api_core.retry, "Retry", lambda **options: real(**{**options, "initial": 0.002, "maximum": 0.02}))


@contextmanager
def opened() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch.setattr)
        patch.setenv(tpu_client.ENDPOINT, "")  # restored at the end
        yield


CAMPAIGN = Campaign(draw, one_run, opened)


def test_tpu_campaign_sample() -> None:
    CAMPAIGN.sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=1000)
