"""Slices that are asked for while the service fails, lies about its state, takes them back, or is let go half way.

    python tests/faults/test_tpu_campaign.py [--runs 1000] [--seed 1] [--results FILE]

A run asks for a slice, as a node or in a queue, with faults drawn for any of the calls, an end drawn for the creation,
a preemption or a cancellation after a random number of looks. Afterwards the slice is ready and the only one that costs
money, or nothing of it is left and the error says so, or the error names what may be left. The service then recovers:
what was named is deleted, and the same command succeeds. Slices of other people, one of the same name among them, are
as they were.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
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

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import pytest
from google.cloud import tpu_v2

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.fleet.fleet import TpuTarget
from midstream.hosts.providers import interface
from midstream.hosts.providers.google import client
from midstream.hosts.providers.google.tpu_provider import GoogleTpus
from midstream.hosts.providers.interface import ProviderError
from simulators.tpu_api import Fault, TpuServer
from simulators.tpu_nodes import QUOTA, STOCKOUT, Outcome, State
from support.campaigns import Campaign, Case

RESULTS = Path(__file__).parents[2] / "docs/campaigns/tpu-faults.jsonl"
PARENT = "projects/p/locations/z"
CALLS = ("CreateNode", "CreateQueuedResource", "GetNode", "GetQueuedResource", "GetOperation", "Delete")
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL)
LASTING = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
LEFT = (None, State.TERMINATED, State.PREEMPTED, State.CREATING, State.REPAIRING)


def draw(random_: random.Random) -> Case:
    """What happens in a run, as JSON."""
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
    left = random_.choice(LEFT)
    return {
        "queued": random_.random() < 0.5,
        "looks": random_.choice((1, 2, 4)),
        "faults": faults,
        "ends": random_.choice((None, None, None, STOCKOUT, QUOTA)),
        "leaves": None if left is None else int(left),
        "preempted": random_.choice((None, None, None, 1, 3, 6)),  # after so many calls
        "says_so": random_.random() < 0.6,
        "cancelled": random_.choice((None, None, None, 0, 2, 5)),  # after so many lines
        "namesake": random_.random() < 0.1,
    }


def one_run(case: Case, random_: random.Random, opened: None) -> str:
    """How it came out. AssertionError where something is left that nobody was told of."""
    with TpuServer() as server:
        os.environ[client.ENDPOINT] = server.endpoint
        server.looks = case["looks"]
        others = {f"{PARENT}/nodes/other"} | ({f"{PARENT}/nodes/pod"} if case["namesake"] else set())
        for name in sorted(others):
            server.create(PARENT, name.rpartition("/")[2], tpu_v2.Node(accelerator_type="v3-8"))
            server._ready(name)
        server.created.clear()
        if case["ends"]:
            server.outcomes.append(Outcome(message=case["ends"], leaves=case["leaves"]))
        server.faults = [
            Fault(each["method"], getattr(grpc.StatusCode, each["code"]), "planted", each["times"], each["late"])
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
        google = GoogleTpus()
        made = refused = None
        try:
            made = google.create("pod", target, say, cancel)
        except ProviderError as error:
            refused = error
        mine = (set(server.nodes) - others) | set(server.queued)
        if refused is None:
            outcome = "used another's" if case["namesake"] else "made"
            assert made is not None
            assert made.standing == interface.READY
        elif refused.costs:
            outcome = f"{refused.kind or 'refused'}, named"
            blind = any(each["method"].startswith(("Get", "Delete")) for each in case["faults"])
            assert mine or case["namesake"] or blind, f"nothing is there: {refused}"
            assert "midstream --delete p/z/pod" in refused.message, refused.message
        else:
            outcome = refused.kind or "refused"
            assert mine == set(), (str(refused), mine)
            assert case["namesake"] or "nothing costs money" in refused.message, refused.message
        assert others <= set(server.nodes), "what others made is as it was"
        assert len(set(server.nodes) - others) <= 1
        server.faults, server.outcomes, case["preempted"] = [], [], None
        if refused is not None and refused.costs and mine:
            google.delete("p/z/pod", lambda line: None)  # as the error says
        again = google.create("pod", target, lambda line: None)
        assert again.standing == interface.READY
        assert len(set(server.nodes) - others) == (0 if case["namesake"] else 1), "one, whatever went before"
        if not case["namesake"]:
            google.delete("p/z/pod", lambda line: None)
            assert set(server.nodes) == others
            assert not server.queued
        return outcome


def hurry(setattr_: Any) -> None:
    """Pauses as short as the service is quick."""
    import google.api_core.retry

    setattr_(interface, "FIRST", 0.002)
    setattr_(interface, "LONGEST", 0.02)
    real = google.api_core.retry.Retry
    setattr_(google.api_core.retry, "Retry", lambda **words: real(**{**words, "initial": 0.002, "maximum": 0.02}))


@contextmanager
def opened() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch.setattr)
        patch.setenv(client.ENDPOINT, "")  # and as it was, afterwards
        yield


CAMPAIGN = Campaign(draw, one_run, opened)


def test_a_sample_of_the_campaign() -> None:
    CAMPAIGN.sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=1000)
