"""Copies to and from a bucket whose service is busy, loses answers, breaks bodies off, closes connections or refuses.

    python tests/faults/test_bucket_campaign.py [--runs 200] [--seed 1] [--results FILE]

A run copies a tree there or back, by the unmodified client, with faults drawn for requests of any kind, each after a
random number of them. What passes has to be got over: the copy ends with the equal tree. What lasts ends it with one
line, and then there is no manifest without all its objects, and no wrong byte under an object's name. In the end the
service recovers, and the same call goes on to the equal tree; nothing temporary is left.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import gc
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
from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.remote.gcs import client
from midstream.transfer import Endpoint, bucket_endpoint, copy_tree
from midstream_engine import records
from simulators.bucket import BucketServer, Fault, bucket_server
from support.campaigns import Campaign, Case
from support.trees import files, random_contents, write_tree

RESULTS = Path(__file__).parents[2] / "docs/campaigns/bucket-faults.jsonl"
URL = "gs://runs/a/tree"
PREFIX = "a/tree/"
THERE = (("POST", "uploadType"), ("POST", "/compose"), ("GET", "/o[?]"), ("GET", "/o/"), ("DELETE", "/o/"))
BACK = (("GET", "alt=media"), ("GET", "/o[?]"), ("GET", "/o/"))
PASSING = (429, 500, 502, 503, 503, "truncate", "close", "drop", "drop")
LASTING = (403, 400)


def draw(random_: random.Random, large: bool = True) -> Case:
    """What happens in a run, as JSON."""
    there = random_.random() < 0.5
    sizes = [random_.randrange(40_000) for _ in range(random_.choice((1, 5, 30)))]
    if large and random_.random() < 0.4:
        sizes.append(random_.choice((1, 2)) * client.CHUNK + random_.randrange(1 << 20))
    faults = []
    for _ in range(random_.choice((1, 2, 3, 5))):
        method, path = random_.choice(THERE if there else BACK)
        lasts = random_.random() < 0.15
        faults.append(
            {
                "method": method,
                "path": path,
                "kind": random_.choice(LASTING if lasts else PASSING),
                "after": random_.choice((0, 0, 1, 2, 5, 12)),
                "times": 999 if lasts else random_.choice((1, 1, 2, 3)),
            }
        )
    return {"direction": "there" if there else "back", "sizes": sizes, "faults": faults}


def one_run(case: Case, random_: random.Random, server: BucketServer) -> str:
    """How it came out. AssertionError where something wrong was left."""
    with tempfile.TemporaryDirectory(prefix="bucket-campaign-") as directory:
        return copied(case, random_, server, Path(directory))


def copied(case: Case, random_: random.Random, server: BucketServer, directory: Path) -> str:
    server.faults = []
    for name in server.blobs("runs"):
        server.delete("runs", name, {})
    here = LocalMachine("here", LocalHost(root=str(directory / "root")))
    write_tree(directory / "source", random_contents(random_, case["sizes"]))
    wanted = files(directory / "source")
    there, source = bucket_endpoint(URL), Endpoint(here, str(directory / "source"))
    target = there if case["direction"] == "there" else Endpoint(here, str(directory / "back"))
    if target is not there:
        copy_tree(source, there)
        source = there

    def arrived() -> dict[str, bytes]:
        if target is there:
            return {name.removeprefix(PREFIX): blob.data for name, blob in server.blobs("runs").items()}
        return files(directory / "back")

    server.faults = [Fault(**each) for each in case["faults"]]
    lasts = any(each["times"] == 999 for each in case["faults"])
    refused = None
    try:
        copy_tree(source, target)
    except MidstreamError as error:
        refused = error
    assert refused is None or (lasts and "\n" not in str(refused)), f"not got over: {refused}"
    met = sum(fault.times < each["times"] for fault, each in zip(server.faults, case["faults"], strict=True))
    server.faults = []
    left = arrived()
    if refused is None:
        assert left == wanted, _unlike(left, wanted)
    assert records.MANIFEST not in left or left == wanted, "a manifest without all its objects"
    wrong = [name for name, data in left.items() if name in wanted and _digest(data) != _digest(wanted[name])]
    assert not wrong, f"wrong bytes under {wrong}"
    copy_tree(source, target)
    assert arrived() == wanted, _unlike(arrived(), wanted)
    return "refused, then whole" if refused else "got over" if met else "met none"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unlike(found: dict[str, bytes], wanted: dict[str, bytes]) -> str:
    different = [name for name in found.keys() & wanted.keys() if found[name] != wanted[name]]
    return f"missing {sorted(wanted.keys() - found.keys())}, extra {sorted(found.keys() - wanted.keys())}, {different}"


@contextmanager
def opened() -> Iterator[BucketServer]:
    with bucket_server("runs") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


CAMPAIGN = Campaign(draw, one_run, opened)


# Google's client leaves the connection of an answer that broke off to the collector of garbage.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.timeout(300)
def test_a_sample_of_the_campaign() -> None:
    replace(CAMPAIGN, draw=partial(draw, large=False)).sample()
    gc.collect()  # what it left is not another test's


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=200)
