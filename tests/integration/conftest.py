from collections.abc import Iterator

import pytest

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from simulators.sshd import lab, server
from support.command_line import runs

__all__ = ["lab", "runs", "server"]


@pytest.fixture
def hosts(fleet: Fleet) -> Iterator[HostPool]:
    """The hosts of the test's own fixture `fleet`."""
    opened = HostPool(fleet)
    yield opened
    opened.close()
