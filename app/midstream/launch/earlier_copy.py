"""Copies of a run on its owner's disk from before the ownership."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.fleet.fleet import Target
from midstream.ownership.judgement import Judgement
from midstream.ownership.owner_judge import HostCopy
from midstream_core import records


def earlier_copy(judgement: Judgement, copies: Sequence[HostCopy], target: Target) -> tuple[str, str, str] | tuple[()]:
    """Return the owner's first host with an earlier fence; empty: none has one.

    As after its disk was put back. With it: what that fence shows, and what shows the later one. Without signed
    records, another host's fence shows it that names the target.
    """
    head, fences = judgement.head, [(copy.host, copy.fence) for copy in copies if copy.fence is not None]
    if head is not None:
        earlier = {copy.host for copy in copies if judgement.has_earlier_fence(copy.host, copy.fence)}
        earlier = earlier if head.owner == target.name else set[str]()
        later = f"{head.owner} has it by a signed record (ownership {head.epoch})"
        if not earlier and head.owner == target.name and (start := judgement.lost_start(dict(fences))):
            host, fence = next(entry for entry in fences if entry[0] in judgement.owner_hosts)
            return host, f"ownership {fence.epoch}, start {fence.start}", f"this machine has seen start {start}"
    else:
        name, newest = max(fences, key=lambda shown: shown[1].order, default=("", records.first_fence("")))
        own = newest.owner == target.name and name not in target.hosts
        earlier = {host for host, fence in fences if own and host in target.hosts and fence.epoch < newest.epoch}
        later = f"{name} shows ownership {newest.epoch} of {newest.owner}"
    shown = next(((host, fence) for host, fence in fences if host in earlier), None)
    return () if shown is None else (shown[0], f"ownership {shown[1].epoch}, {shown[1].owner}", later)
