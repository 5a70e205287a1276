"""``midstream --launch``: start a run of a config on a target."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from midstream.errors import DamagedError, HostError, RemoteError, UsageError
from midstream.fleet.fleet import Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.conda_environment import find_tool, list_for
from midstream.install.reporter import reporter_of
from midstream.launch import trainer_config
from midstream.launch.config_difference import first_difference
from midstream.launch.config_file import config_section, config_values, read_config
from midstream.launch.engine_flags import ID, engine_flags, named_run, without_id
from midstream.launch.engine_secrets import read_secrets
from midstream.launch.host_group_start import CONCURRENCY, prepare_target, start
from midstream.launch.input_check import check_inputs, read_inputs
from midstream.launch.launch_ownership import DamagedCopy, LaunchOwnership, judge_launch, refuse_last, sign_launch
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.start_attempt import Attempt, Launch
from midstream.launch.trainer_config import TrainerStart
from midstream.stores.host_identity import identity_problem
from midstream.trainers.world import check_group
from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_host.driver.run_file import RunFile
from midstream_host.runs import ownership, run_state, standby_state


@dataclass(frozen=True)
class CheckedLaunch:
    """A start that its checks allow, before anything is installed.

    Attributes:
        run_id: The run.
        target: Its target.
        epoch: Epoch under which the attempt commits.
        continues: Whether the run exists there and continues with its own config.
        replaces: Whether it exists there and none of its attempts has trained: the config replaces its own.
        overrides: Flags for the engine.
        config_text: Text of the config; None where the run has its own.
        known: The target's hosts, with what they have of the run.
        ownership: Who is proven to own the run, and what needs consent.
        trainer: For a run of another trainer, its run file.
    """

    run_id: str
    target: Target
    epoch: int
    continues: bool
    replaces: bool
    overrides: tuple[str, ...]
    config_text: str | None
    member_runs: tuple[tuple[Host, run_state.RunDescription], ...]
    ownership: LaunchOwnership
    trainer: RunFile | None = None


def launch_run(
    hosts: HostPool,
    request: LaunchRequest,
    say: Callable[[str], None] | None = None,
    trainer: TrainerStart | None = None,
) -> Attempt:
    """Start the run on the target, or the next attempt of a run that stopped there.

    ``say`` receives the progress; a function is called with sparse lines. ``trainer`` is a run of another trainer,
    instead of a config; its files are on the target's hosts.

    Raises:
        MidstreamError: The owner of the run is not proven, and the user has not agreed.
        UsageError: Config, target or run id is wrong, a host lacks what the run reads, the run is running, or it has
            migrated to another target. Nothing was installed.
        LaunchError: The engine cannot be installed or started.
        HostError: A host cannot be reached.
    """
    say = reporter_of(say)
    checked = check_launch(hosts, request, say, None if trainer is None else trainer.run)
    checked.ownership.require_consent(request.agreed, say)
    chosen = checked.target
    prepared = prepare_target(hosts, chosen, say, checked.trainer)
    fence = next((run.fence for _, run in checked.member_runs if run.fence is not None), None)
    fence = fence or records.first_fence(chosen.name)
    chain = sign_launch(checked.run_id, chosen.name, fence, checked.ownership, [run for _, run in checked.member_runs])
    for host, run in checked.member_runs:
        if run.fence is None:
            host.call(ownership.put_fence)(
                root=host.root, run_id=checked.run_id, fence=fence.to_json(), chain=chain.to_json()
            )
        else:
            host.call(ownership.put_chain)(root=host.root, run_id=checked.run_id, chain=chain.to_json())
        if checked.replaces and checked.config_text is not None:
            host.call(standby_state.put_config)(root=host.root, run_id=checked.run_id, text=checked.config_text)
    launch = Launch(
        checked.run_id,
        chosen.name,
        checked.epoch,
        overrides=(*checked.overrides, *(() if trainer is None else trainer.attach)),
        config_text=checked.config_text,
    )
    attempt = start(hosts, chosen, launch, prepared, say)
    say(_started(attempt))
    return attempt


def check_launch(
    hosts: HostPool,
    request: LaunchRequest,
    say: Callable[[str], None] | None = None,
    trainer: RunFile | None = None,
) -> CheckedLaunch:
    """Check what `launch_run` would do, without side effects.

    Arguments and exceptions are those of `launch_run`; ``trainer`` is the run file.
    """
    config_path, overrides = request.config, request.overrides
    fleet = hosts.fleet
    say = reporter_of(say)
    chosen = fleet.target(request.target)
    run_id = named_run(request.run_id, overrides)
    text = inputs = None
    if trainer is not None:
        text = trainer_config.as_text(trainer)
    elif config_path is not None:
        text = read_config(config_path)
        inputs = read_inputs(config_path, overrides)
    overrides = without_id(overrides)
    run_id = _run_id(run_id, "{}" if trainer is not None else text or "{}", Path(config_path or "run"))
    members = [hosts.get(name) for name in chosen.hosts]
    member_runs = tuple((host, host.call(run_state.describe)(root=host.root, run_id=run_id)) for host in members)
    others, unreachable = _others(hosts, chosen, run_id)
    readable = [(name, run) for name, run in others.items() if not isinstance(run, DamagedCopy)]
    damaged = {name: run for name, run in others.items() if isinstance(run, DamagedCopy)}
    copies = [*((host.name, run) for host, run in member_runs), *readable]
    store = named_bucket(text, overrides) if trainer is None and text is not None else ""
    owned = judge_launch(hosts, chosen, run_id, copies, unreachable, damaged, store)
    epoch = max(_check_startable(host.name, chosen.name, run_id, run, owned) for host, run in member_runs)
    owned.refuse_lost_state([run for _, run in member_runs])
    _check_elsewhere(others, chosen, run_id, epoch, owned)
    for name, error in unreachable.items() if not owned.reasons else ():
        say(f"{name} does not answer ({error}): it may have a run {run_id}")
    exists = any(run.attempt for _, run in member_runs)
    trained = any(_has_trained(run) for _, run in member_runs)
    continues, replaces = exists and (trained or text is None), exists and not trained and text is not None
    if replaces:
        say(f"no attempt of {run_id} on {chosen.name} has trained: it starts with {config_path}")
    if continues and text is not None:
        given = str(config_path or "the run file")
        _refuse_other_config(members[0], run_id, text, trainer, given, engine_flags(overrides))
    if continues:
        say(f"{run_id} exists on {chosen.name}: it continues with its own config; only overrides change it")
        trainer = trainer_config.trainer_on(members[0], run_id)
        if trainer is not None:
            check_group(trainer, chosen)
            before = _devices_before([run for _, run in member_runs]) if trained else 0
            configs = [fleet.hosts[host.name] for host in members]
            overrides = trainer_config.driver_flags(trainer, members, configs, before)
    elif trainer is not None:
        if chosen.slurm is not None:
            raise UsageError(f"{chosen.name} is a SLURM allocation: runs of other trainers need a host or a group")
        check_group(trainer, chosen)
        overrides = trainer_config.driver_flags(trainer, members, [fleet.hosts[host.name] for host in members])
    elif text is None or inputs is None:
        raise UsageError(
            f"{chosen.name} has no run {run_id}", f"midstream --launch CONFIG --on {chosen.name} starts one"
        )
    else:
        store = fleet.store_of(chosen.hosts[0])
        for host in members if store else ():
            why, hint = identity_problem(fleet, host, store)
            if why:
                raise UsageError(why, hint)
        overrides = (*store_flags(store, text, overrides), *overrides)
        check_inputs(members, [fleet.hosts[host.name] for host in members], chosen, run_id, inputs, say)
    conda = trainer.environment.conda if trainer is not None else ""
    for host in members if conda else ():
        list_for(host.name, find_tool(host, fleet.hosts[host.name]).platform, conda)
    for host in members:
        read_secrets(host.name, fleet.hosts[host.name])  # one that is missing is reported before the installation
    return CheckedLaunch(
        run_id, chosen, epoch, continues, replaces, tuple(overrides), text, member_runs, owned, trainer
    )


def _refuse_other_config(
    host: Host, run_id: str, text: str, trainer: RunFile | None, given: str, overridden: Mapping[str, str]
) -> None:
    """Raise UsageError where the given config is not that of the run that continues.

    The files of another trainer's run are not compared, nor what engine flags set.
    """
    difference = ""
    if trainer is not None:
        own = trainer_config.trainer_on(host, run_id)
        same = own is not None and _without_place(own) == _without_place(trainer)
    else:
        try:
            own_text: str = host.call(run_state.read_text)(path=records.RunPaths(host.root, run_id).config)
            own_values = config_values(own_text)
            own_id = object_or_empty(own_values.get("trainer")).get("id")
            set_by_launch = [*overridden, *([ID] if own_id == run_id else [])]
            difference = first_difference(config_values(text), own_values, set_by_launch)
            same = not difference
        except (RemoteError, UsageError):
            return  # its engine reports what is wrong with it
    if not same:
        how = f": {difference}" if difference else ""
        raise UsageError(
            f"{run_id} exists on {host.name}, and {given} is not its config{how}",
            f"midstream --restart {run_id} continues it with its own; --run-id starts another run; "
            f"midstream --config {run_id} shows its own",
        )


def _without_place(run: RunFile) -> RunFile:
    """Return a run file without what a launch adds: its directory and files."""
    return replace(run, directory="", files_digest="")


def _has_trained(run: run_state.RunDescription) -> bool:
    """Return whether an attempt has begun to train.

    An attempt that failed before has left nothing to continue.
    """
    return run.lineage is not None or bool(run.checkpoints) or (run.status is not None and run.status.step > 0)


def _devices_before(runs: Sequence[run_state.RunDescription]) -> int:
    """Return how many devices a run has trained on; 0 where nothing shows it.

    The lineage has it. An attempt that failed before it trained has no status, or one without devices.
    """
    for run in runs:
        entries = run.lineage.entries if run.lineage is not None else []
        if entries:
            return entries[-1].devices
    return next((len(run.status.devices) for run in runs if run.status is not None), 0)


def named_bucket(config: str, overrides: Sequence[str]) -> str:
    """Return the bucket that a config or its flags name for checkpoints, else ""."""
    checkpointer: object = config_section(config, "trainer").get("checkpointer")
    configured = cast("dict[str, Any]", checkpointer).get("base_path") if isinstance(checkpointer, dict) else ""
    named = str(engine_flags(tuple(overrides)).get("trainer.checkpointer.base_path", str(configured or ""))).rstrip("/")
    return named if "://" in named else ""


def store_flags(store: str, config: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the engine's flags for a new run on a host with a ``store:``.

    There are none if config or overrides name a store.
    """
    checkpointer = config_section(config, "trainer").get("checkpointer")
    configured = isinstance(checkpointer, dict) and "base_path" in checkpointer
    flag = "--trainer.checkpointer.base_path"
    if not store or configured or any(word.partition("=")[0] == flag for word in overrides):
        return ()
    return flag, store


def _started(attempt: Attempt) -> str:
    what = f"attempt {attempt.number} of {attempt.run_id}"
    if len(attempt.ranks) > 1:
        return f"{what} runs on {', '.join(rank.host for rank in attempt.ranks)}, one process each"
    if attempt.process.pid:
        return f"{what} runs on {attempt.host} as process {attempt.process.pid}"
    return f"{what} is in the queue of {attempt.host}"


def _others(
    hosts: HostPool, target: Target, run_id: str
) -> tuple[dict[str, run_state.RunDescription | DamagedCopy], dict[str, str]]:
    """Describe the run on the other hosts of the fleet.

    Returns the descriptions by host, or what can be read where a record is damaged, and the errors of the hosts that do
    not answer.
    """

    def describe(name: str) -> tuple[str, run_state.RunDescription | DamagedCopy | HostError]:
        try:
            host = hosts.get(name)
            try:
                return name, host.call(run_state.describe)(root=host.root, run_id=run_id)
            except DamagedError as error:
                return name, DamagedCopy(error, host.call(run_state.owner_records)(root=host.root, run_id=run_id))
        except HostError as error:
            return name, error

    others = [name for name in hosts.fleet.hosts if name not in target.hosts]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(describe, others))
    unreachable = {name: answer.message for name, answer in answers if isinstance(answer, HostError)}
    unreachable.update(
        {name: error.message for name, error in hosts.fleet.unavailable.items() if name not in target.hosts}
    )
    return {name: answer for name, answer in answers if not isinstance(answer, HostError)}, unreachable


def _check_elsewhere(
    others: Mapping[str, run_state.RunDescription | DamagedCopy],
    target: Target,
    run_id: str,
    epoch: int,
    owned: LaunchOwnership,
) -> None:
    """Check that no other host of the fleet has the run.

    Two starts would make two lineages.

    What a host only claims does not count where the owner is proven.

    Raises:
        UsageError: Another host has the run.
        DamagedError: Another host has a damaged record of a run whose owner is not proven.
    """
    for name, run in others.items():
        if owned.judgement.signed and not owned.judgement.is_believed(name):
            continue
        if isinstance(run, DamagedCopy):
            if owned.judgement.head is not None:
                continue  # the signed records say who owns it, whatever is damaged there
            raise run.error
        fence = run.fence
        left_behind = owned.judgement.head is not None and fence is not None and fence.epoch < epoch
        if run.running and not left_behind:  # what a former owner still runs is in no lineage
            raise UsageError(
                f"run {run_id} is running on {name} (attempt {run.attempt})",
                f"midstream --stop {run_id} stops it; --migrate migrates it; --run-id starts another one",
            )
        if fence is not None and fence.epoch > epoch:
            raise UsageError(
                f"run {run_id} belongs to {fence.owner} since step {fence.sealed_step}, according to {name}",
                f"midstream --migrate {run_id} --to {target.name} migrates it here",
            )
        # A copy of an earlier epoch is one that the run has left behind.
        if fence is not None and fence.epoch == epoch and fence.owner != target.name and run.attempts:
            raise UsageError(
                f"{name} has a run {run_id} already, of {fence.owner} (ownership {fence.epoch})",
                f"midstream --migrate {run_id} --to {target.name} migrates it; --run-id starts another one",
            )


def _run_id(run_id: str | None, text: str, config: Path) -> str:
    """Return the id as given, as configured, or made of the config's name."""
    configured = config_section(text, "trainer").get("id")
    try:
        return records.check_run_id(str(run_id or configured or f"{config.stem}-{secrets.token_hex(3)}"))
    except records.RecordError as error:
        raise UsageError(str(error)) from None


def _check_startable(host: str, target: str, run_id: str, run: run_state.RunDescription, owned: LaunchOwnership) -> int:
    """Return the epoch under which the run may be started.

    Raises:
        UsageError: It may not be started.
    """
    if run.running:
        raise UsageError(
            f"run {run_id} is running on {host} (attempt {run.attempt})",
            f"midstream --stop {run_id} stops it; --run-id starts another one",
        )
    if run.fence is None:
        if run.attempts:
            raise UsageError(
                f"run {run_id} on {host} has attempts and no fence: its owner is unknown",
                f"midstream --repair {run_id} --on {host} shows what it would write; or choose another --run-id",
            )
        if not owned.lost:
            owned.refuse_other_owner(host)
        return 1
    fence = run.fence
    owned.refuse_other_owner(host)
    refuse_last(host, run_id, fence)
    if fence.owner != target:
        raise UsageError(
            f"run {run_id} belongs to {fence.owner} since step {fence.sealed_step}, not to {target}",
            f"midstream --migrate {run_id} --to {target} migrates it here",
        )
    return fence.epoch
