"""Draws of the restore campaign: what is put back, unreachable or claimed, and what is done."""

from __future__ import annotations

import random

from support.migrations.campaigns import Case
from support.ownership.histories import HOSTS

HISTORIES = 40  # with checkpoints on the hosts
BUCKET_HISTORIES = 30  # with checkpoints in a bucket
PARTS = ("", "", "fence.json", "checkpoints/")  # of the bucket that are put back; empty: all of it
CLAIMS = ("fence", "cut", "spliced", "replayed", "stranger", "damaged")
ACTIONS = ("status", "launch", "launch", "stop", "migrate", "repair", "rollback", "rollback", "suspended")
CLAIMED = 9  # epoch of a claim's fence


def draw(random_: random.Random) -> Case:
    """Draw a case. Numbers are taken modulo what the history has."""
    participants = ("operator", *HOSTS, "bucket")
    back = {name: random_.randrange(100) for name in participants if random_.random() < 0.3}
    unreachable = [name for name in HOSTS if random_.random() < 0.22]
    claim = None
    if random_.random() < 0.45:
        claim = {"kind": random_.choice(CLAIMS), "host": random_.randrange(2), "owner": random_.random() < 0.5}
    actions = [
        {"do": random_.choice(ACTIONS), "host": random_.choice(HOSTS), "number": random_.randrange(100),
         "yes": random_.random() < 0.4, "named": random_.random() < 0.5}
        for _ in range(random_.randint(1, 3))
    ]  # fmt: skip
    return {
        "history": random_.randrange(HISTORIES + BUCKET_HISTORIES),
        "now": random_.randrange(100) if random_.random() < 0.5 else -1,
        "actor": random_.choice(("ann", "ann", "ben")),
        "back": {} if random_.random() < 0.15 else back,
        "part": random_.choice(PARTS),
        "unreachable": [] if random_.random() < 0.15 else unreachable,
        "claim": claim,
        "actions": actions,
    }
