"""Start of a run of any trainer, by a config or by a run file with its files."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from midstream.counts import count
from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.install.reporter import reporter_of
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import check_launch, launch_run
from midstream.launch.start_attempt import Attempt
from midstream.launch.trainer_config import TrainerStart
from midstream.state_directory import state_directory
from midstream.trainers.run_file_parser import names_run_file, read_run_file
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream_host.allowlist import DATA
from midstream_host.driver.run_file import RunFile
from midstream_host.trainers import travelling_files

CONCURRENCY = 32
SNAPSHOT_TIMEOUT = 3600.0  # seconds to hash the files


def launch_any(hosts: HostPool, request: LaunchRequest, say: Callable[[str], None] | None = None) -> Attempt:
    """Start a run of a config, or of a run file.

    Arguments and errors as of `launch_run`. The run of a run file is by default named by it, else with random digits.
    """
    path = Path(request.config) if request.config is not None else None
    if path is None or not names_run_file(path):
        return launch_run(hosts, request, say)
    if request.overrides:
        raise UsageError(f"{path} is a run file: flags of the engine do not apply", "change its command")
    parsed = read_run_file(path)
    run_id = request.run_id or parsed.run_id or f"{path.resolve().parent.name or path.stem}-{secrets.token_hex(3)}"
    request = replace(request, config=None, run_id=run_id)
    say = reporter_of(say)
    # Everything that may refuse the launch comes before the first byte is sent.
    checked = check_launch(hosts, request, None, parsed.run)
    checked.ownership.require_consent(request.agreed, say)
    if checked.continues:
        return launch_run(hosts, request, say)
    run = parsed.run
    members = [hosts.get(name) for name in checked.target.hosts]
    if run.directory:  # its files are there; a migration takes them from the first host
        run = with_host_files(run, members[0], run.directory)
    else:
        run = with_local_files(run, path.resolve().parent, members, say)
    return launch_run(hosts, request, say, TrainerStart(run))


def with_local_files(run: RunFile, directory: Path, hosts: Sequence[Host], say: Callable[[str], None]) -> RunFile:
    """Send the files of a run from this machine to hosts.

    Returns the run file that names them.

    Raises:
        UsageError: A pattern matches nothing.
        TransferError: They could not be sent.
    """
    if not run.files:
        return run
    here = LocalHost("this machine", LocalHostConfig(root=str(state_directory() / "files")))
    try:
        snapshot = here.call(travelling_files.snapshot, timeout=SNAPSHOT_TIMEOUT)(
            root=here.root, directory=str(directory), patterns=list(run.files), leave=[run.out]
        )
    except RemoteError as error:
        raise UsageError(error.message.partition("ValueError: ")[2] or error.message) from None
    say(f"{count(snapshot.files, 'file')} of {directory}, {snapshot.size / 1e6:.1f} MB, digest {snapshot.digest[:12]}")
    tree = Endpoint(here, os.path.join(here.root, "data", snapshot.digest))

    def send(host: Host) -> None:
        copy_tree(tree, Endpoint(host, f"{host.root}/data/{snapshot.digest}"), kind=DATA)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(send, hosts))
    return dataclasses.replace(run, files_digest=snapshot.digest)


def with_host_files(run: RunFile, host: Host, directory: str) -> RunFile:
    """Make a tree of a run's files on the host that has them.

    Returns the run file that names it.

    Raises:
        MidstreamError: A pattern matches nothing, or the host cannot read them.
    """
    if not run.files:
        return run
    try:
        snapshot = host.call(travelling_files.snapshot, timeout=SNAPSHOT_TIMEOUT)(
            root=host.root, directory=directory, patterns=list(run.files), leave=[run.out]
        )
    except RemoteError as error:
        raise MidstreamError(error.message, "files: in the run file") from None
    return dataclasses.replace(run, files_digest=snapshot.digest)


__all__ = ["launch_any", "with_host_files", "with_local_files"]
