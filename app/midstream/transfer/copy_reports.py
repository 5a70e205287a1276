"""Reports of a copy's programs on hosts, checked."""

from __future__ import annotations

from collections.abc import Iterator

from midstream.errors import RemoteError
from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_program import reports
from midstream.hosts.rpc.report_types import COPY, CopyLine
from midstream.hosts.rpc.result_checks import event_of
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError


def checked_reports(process: Process, endpoint: Endpoint) -> Iterator[CopyLine]:
    """Yield the reports of the program at ``endpoint``.

    Raises:
        TransferError: A line is not one of these reports.
    """
    for line in reports(process):
        try:
            yield event_of(endpoint.host.name, "copy", COPY, line)
        except RemoteError as error:
            raise TransferError(
                f"{endpoint.host.name}: the copy's program for {endpoint} wrote a line that is no report",
                f"check which program answers on {endpoint.host.name}",
            ) from error
