"""Seed of the tests that draw their cases: a commit draws the same ones everywhere."""

from __future__ import annotations

import os


def commit_seed() -> int:
    """Return $MIDSTREAM_TEST_SEED, and print it: with it a failure is repeated."""
    seed = int(os.environ["MIDSTREAM_TEST_SEED"])
    print(f"MIDSTREAM_TEST_SEED={seed}")
    return seed
