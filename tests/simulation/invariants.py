"""Invariants of every simulated world, judged by what really happened, not by what was claimed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from simulation import clusters
from simulation.history import HISTORY, Commit
from simulation.world import PAIR, World

ANY = -1  # consent to go back to whatever was sealed


class BrokenError(AssertionError):
    """An invariant does not hold."""


def check_commits(world: World, commits: list[Commit], consents: list[int]) -> None:
    """Check that the commits form one line.

    A start commits only while no newer start has committed, each start continues the newest commit before it, and no
    step is committed twice. ``consents``: steps to which a user has agreed to go back.
    """
    if HISTORY.doubles:
        raise BrokenError(f"two engines at one time: {HISTORY.doubles}")
    if HISTORY.unfenced:
        raise BrokenError(f"committed without a fence: {HISTORY.unfenced}")
    for before, after in pairwise(commits):
        if (after.epoch, after.start) < (before.epoch, before.start):
            raise BrokenError(f"an older start has committed after a newer one: {before} {after}")
        if (after.epoch, after.start) == (before.epoch, before.start):
            if (after.machine, after.pid) != (before.machine, before.pid):
                raise BrokenError(f"two processes commit as one start: {before} {after}")
            if after.step <= before.step:
                raise BrokenError(f"a step was committed twice: {before} {after}")
        elif (
            after.restored < before.step
            and after.restored not in consents
            and not (ANY in consents and _sealed(world, after))
        ):
            raise BrokenError(
                f"steps {after.restored} to {before.step} were given up without consent: {before} {after}"
            )


def _sealed(world: World, commit: Commit) -> bool:
    """Return whether a run was sealed at the step that a commit's engine has restored: by an engine, or without one."""
    fences = filter(None, map(world.fence, world.machines))
    steps = [seal["step"] for fence in fences for seal in fence.seals]
    return commit.restored in steps or any(entry[4] == commit.restored for entry in HISTORY.seals)


def check_certificates(world: World, state: str = "state") -> None:
    """Check that a valid certificate says what is true."""
    for path in Path(world.directory, state, "migrations").glob("*/certificate.json"):
        certificate = json.loads(path.read_text())
        if not certificate["valid"]:
            continue
        step, digest = certificate["step"], certificate["root_digest"]
        saved = [commit for commit in (*HISTORY.commits, *HISTORY.lost) if commit.step == step]
        if digest not in {commit.root_digest for commit in saved}:
            raise BrokenError(f"{path} certifies step {step} with root digest {digest}, which no engine has saved")
        begun = [start for start in HISTORY.starts if start.epoch == certificate["epoch"]]
        first = {"pair": PAIR[:1], clusters.TARGET: clusters.NODES}.get(certificate["target"], (certificate["target"],))
        if not any(start.machine in first and start.restored == step for start in begun):
            raise BrokenError(f"{path} certifies step {step} on {certificate['target']}, and there began only {begun}")


def check_outcomes(world: World) -> None:
    """Check that no migration ended as completed while another machine owned the run."""
    if world.completed:
        raise BrokenError("; ".join(world.completed))


def check_completed(world: World) -> None:
    """Check that a migration that nothing has disturbed has moved the run."""
    words, code, text = next(said for said in world.said if said[0].startswith("--migrate"))
    if code or not set(world.trains()) <= set(world.behind_target):
        raise BrokenError(f"nothing failed, and {words} ended with exit code {code}: {text.strip()[-300:]}")


def check_other(world: World) -> None:
    """Check that the other run on the same roots has the same bytes as before."""
    if world.other and (now := world.digest_of_other()) != world.other:
        changed = sorted(set(now.items()) ^ set(world.other.items()))
        raise BrokenError(f"another run was touched: {changed}")


def check_accepted(world: World, owner: str) -> None:
    """Check that the owner has the newest commit, and accepts it."""
    commits = HISTORY.commits
    if not commits:
        return
    fence = world.fence(owner)
    if fence is None:
        raise BrokenError(f"{owner} has no fence")
    accepted = [
        manifest.step
        for manifest in world.manifests(owner)
        if fence.accepts(manifest.epoch, manifest.step, manifest.start)
    ]
    last = commits[-1]
    if max(accepted, default=-1) < last.step:
        raise BrokenError(f"{owner} has {accepted}, and the newest commit is {last}")
