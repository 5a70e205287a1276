"""Copies to and from a bucket whose service fails, many times.

    python tests/faults/test_bucket_campaign.py [--runs 200] [--seed 1] [--results FILE]

A run copies a tree to a bucket or from it: of Google's service (gs), of S3 (s3), or from one to the other. Faults are
drawn for requests of any kind, each after a random number of requests; a listing may be behind, and bytes may change on
their way. After transient faults the copy must be equal. A permanent fault ends the copy with one line; then there is
no manifest without all its objects, and no wrong byte under an object's name. At the end the service recovers, and the
same call completes the equal tree, without temporary objects.

Results are appended, one line per run: an interrupted campaign continues where it was.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream_core import records
from midstream_core.object_store.bucket_client import CHUNK
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.s3_server import S3Server, s3_server
from simulators.planted_faults import Fault
from support.checkpoints.trees import files, random_contents, write_tree
from support.migrations.campaigns import Campaign, Case
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/bucket-faults.jsonl"
KINDS = ("gs", "s3")
PREFIX = "a/tree/"
THERE = {
    "gs": (("POST", "uploadType"), ("POST", "/compose"), ("GET", "/o[?]"), ("GET", "/o/"), ("DELETE", "/o/")),
    "s3": (
        ("PUT", "/a/tree"), ("PUT", "partNumber"), ("POST", "uploads"), ("POST", "uploadId"), ("GET", "list-type"),
        ("GET", "/a/tree"), ("HEAD", "/a/tree"), ("DELETE", "/a/tree"),
    ),
}  # fmt: skip
BACK = {
    "gs": (("GET", "alt=media"), ("GET", "/o[?]"), ("GET", "/o/")),
    "s3": (("GET", "/a/tree"), ("GET", "list-type"), ("HEAD", "/a/tree")),
}
PASSING = (408, 429, 500, 502, 503, 503, "truncate", "close", "drop", "drop")
GARBLED = {"gs": "alt=media", "s3": "/a/tree"}  # answers whose bytes may change on their way

Servers = dict[str, BucketServer | S3Server]
LASTING = (403, 400)


def draw(random_: random.Random, large: bool = True) -> Case:
    """Draw the faults of a run, as JSON."""
    kind, there = random_.choice(KINDS), random_.random() < 0.5
    other = kind if random_.random() < 0.7 else next(each for each in KINDS if each != kind)
    sizes = [random_.randrange(40_000) for _ in range(random_.choice((1, 5, 30)))]
    if large and random_.random() < 0.4:
        sizes.append(random_.choice((1, 2)) * CHUNK + random_.randrange(1 << 20))
    faults = []
    for _ in range(random_.choice((1, 2, 3, 5))):
        method, path = random_.choice((THERE if there else BACK)[kind])
        lasts = random_.random() < 0.15
        fault: int | str = random_.choice(LASTING if lasts else PASSING)
        if not there and not lasts and random_.random() < 0.1:
            method, path, fault = "GET", GARBLED[kind], "garble"
        after = random_.choice((0, 0, 1, 2, 5, 12))
        if kind == "s3" and method == "DELETE" and lasts:
            after = 0  # refused a moment later, it would leave the object that tries the service's conditions
        faults.append(
            {
                "method": method,
                "path": path,
                "kind": fault,
                "after": after,
                "times": 999
                if lasts
                else random_.choice((1, 1, 2))
                if fault == "garble"
                else random_.choice((1, 1, 2, 3)),
            }
        )
    direction = "there" if there else "back"
    late = random_.choice((0, 0, 1, 2)) if there else 0
    return {"kind": kind, "other": other, "direction": direction, "sizes": sizes, "faults": faults, "late": late}


def one_run(case: Case, random_: random.Random, servers: Servers) -> str:
    """Return a run's outcome; AssertionError if the copy is wrong."""
    with tempfile.TemporaryDirectory(prefix="bucket-campaign-") as directory:
        return copied(case, random_, servers, Path(directory))


def copied(case: Case, random_: random.Random, servers: Servers, directory: Path) -> str:
    for each in servers.values():
        each.faults, each.late = [], 0
        for name in each.blobs("runs"):
            each.delete("runs", name, {})
    server = servers[case["kind"]]
    here = LocalHost("here", LocalHostConfig(root=str(directory / "root")))
    write_tree(directory / "source", random_contents(random_, case["sizes"]))
    expected = files(directory / "source")
    disk, there = Endpoint(here, str(directory / "source")), bucket_endpoint(f"{case['kind']}://runs/{PREFIX}")
    between = case["other"] != case["kind"]
    beyond = bucket_endpoint(f"{case['other']}://runs/{PREFIX}") if between else Endpoint(here, str(directory / "back"))
    source, target = (beyond if between else disk, there) if case["direction"] == "there" else (there, beyond)
    if source is not disk:
        copy_tree(disk, source)

    def arrived() -> dict[str, bytes]:
        if target is beyond and not between:
            return files(directory / "back")
        blobs = servers[case["kind" if target is there else "other"]].blobs("runs")
        return {name.removeprefix(PREFIX): blob.data for name, blob in blobs.items()}

    server.late = case["late"]
    server.faults = [Fault(**each) for each in case["faults"]]
    lasts = any(each["times"] == 999 for each in case["faults"])
    refused = None
    try:
        copy_tree(source, target)
    except MidstreamError as error:
        refused = error
    assert refused is None or (lasts and "\n" not in str(refused)), f"transient faults ended the copy: {refused}"
    met = sum(fault.times < each["times"] for fault, each in zip(server.faults, case["faults"], strict=True))
    server.faults, server.late = [], 0
    left = arrived()
    if refused is None:
        assert left == expected, _difference(left, expected)
    assert records.MANIFEST not in left or left == expected, "a manifest without all its objects"
    wrong = [name for name, data in left.items() if name in expected and _digest(data) != _digest(expected[name])]
    assert not wrong, f"wrong bytes under {wrong}"
    copy_tree(source, target)
    assert arrived() == expected, _difference(arrived(), expected)
    return "refused, then complete" if refused else "got over" if met else "met none"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _difference(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    different = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
    return (
        f"missing {sorted(expected.keys() - found.keys())}, extra {sorted(found.keys() - expected.keys())}, {different}"
    )


@contextmanager
def opened() -> Iterator[Servers]:
    with bucket_server("runs") as google, s3_server("runs") as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in {**google.environment, **s3.environment}.items():
            patch.setenv(name, value)
        yield {"gs": google, "s3": s3}


CAMPAIGN = Campaign(draw, one_run, opened)


@pytest.mark.timeout(300)
def test_bucket_campaign_sample() -> None:
    replace(CAMPAIGN, draw=partial(draw, large=False)).sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=200)
