"""Errors of a host's operating system, as its calls and copies report them."""

from __future__ import annotations

import errno

import pytest

from midstream.errors import RemoteError
from midstream.hosts.rpc.result_checks import result_of
from midstream_host.runs import run_state


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EROFS, "change its owner or mode on lab"), (errno.ENOSPC, "free space on lab"), (errno.ENOENT, "")],
)
def test_error_of_the_system_is_in_words_with_a_hint(number: int, hint: str) -> None:
    error = OSError(number, "what the system says", "/root/runs")
    with pytest.raises(RemoteError) as caught:
        result_of("lab", run_state.describe, {}, {"error": str(error), "kind": type(error).__name__})
    assert caught.value.message == "lab: /root/runs: what the system says"
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) == bool(hint)
