"""A migration's process that was suspended while another one rolled the migration back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from midstream.errors import RemoteError
from midstream_core import records
from midstream_host.runs import ownership
from support.ownership import restored_cases
from support.ownership.histories import RUN, History


@pytest.mark.parametrize("step", [1, 2, 3], ids=["permitted", "target has the fence", "started"])
def test_rollback_closes_the_target_for_a_suspended_process(tmp_path: Path, step: int) -> None:
    """On the old code a target without a copy got no fence, and the process started the run there."""
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", step),))
    fence = records.Fence.read(history.paths("two").fence)
    assert (fence.epoch, fence.owner) == (3, "one")
    with history.hosts() as hosts:
        host, before = hosts.get("two"), records.Fence(1, "one").sealed(2, "two", 8)
        with pytest.raises(
            RemoteError, match=r"is at ownership 3 \(owner one\) here; ownership 2 \(owner two\) cannot replace"
        ):
            host.call(ownership.put_fence)(root=host.root, run_id=RUN, fence=before.to_json(), migration="m0")
    assert records.Fence.read(history.paths("two").fence) == fence
