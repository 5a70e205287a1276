"""What ``midstream --launch`` does: a config, a target, a run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from midstream.errors import DamagedError, HostError, UsageError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host_pool import Hosts
from midstream.launch.config_file import config_values, read_config
from midstream.launch.host_group_start import AT_ONCE, prepare_target, start
from midstream.launch.start_attempt import Attempt, Launch
from midstream.stores import host_identity
from midstream_engine import records


def launch_run(
    hosts: Hosts,
    fleet: Fleet,
    target: str,
    config_path: str | Path,
    run_id: str | None = None,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> Attempt:
    """Start the run on the target, or the next attempt of a run that has stopped there.

    The id is ``run_id``, else the config's ``trainer.id``, else a random one. ``say`` gets a line at a time. UsageError
    where config, target or id are wrong, where the run is alive, or where it has moved away; LaunchError; HostError."""
    say = say or (lambda line: None)
    chosen = fleet.target(target)
    text = read_config(Path(config_path))
    run_id = _run_id(run_id, text, Path(config_path))
    homes = [hosts.get(name) for name in chosen.hosts]
    known = [(host, host.call("runs.run_state.describe", root=host.root, run_id=run_id)) for host in homes]
    epoch = max(_check_startable(host.name, chosen.name, run_id, found) for host, found in known)
    _check_elsewhere(hosts, fleet, chosen, run_id, epoch, say)
    if any(found["attempt"] for _, found in known):
        say(f"{run_id} is known on {chosen.name}: it goes on with the config it has; only overrides change it")
    else:
        store = fleet.store_of(chosen.hosts[0])
        for host in homes if store else ():
            why, hint = host_identity.why_not(fleet, host, store)
            if why:
                raise UsageError(why, hint)
        overrides = (*store_flags(store, text, overrides), *overrides)
    prepared = prepare_target(hosts, fleet, chosen, say)
    fence = next((found["fence"] for _, found in known if found["fence"] is not None), None)
    for host, found in known:
        if found["fence"] is None:
            new = fence or records.first_fence(chosen.name).to_json()
            host.call("runs.ownership.put_fence", root=host.root, run_id=run_id, fence=new)
    launch = Launch(run_id, chosen.name, epoch, overrides=tuple(overrides), config_text=text)
    attempt = start(hosts, fleet, chosen, launch, prepared)
    say(_started(attempt))
    return attempt


def store_flags(store: str, config: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """The engine's flags for a new run on a host with a ``store:``; none where config or overrides say it already."""
    trainer = config_values(config).get("trainer")
    checkpointer = trainer.get("checkpointer") if isinstance(trainer, dict) else None
    said = isinstance(checkpointer, dict) and "base_path" in checkpointer
    flag = "--trainer.checkpointer.base_path"
    if not store or said or any(word.partition("=")[0] == flag for word in overrides):
        return ()
    return flag, store


def _started(attempt: Attempt) -> str:
    what = f"attempt {attempt.number} of {attempt.run_id}"
    if len(attempt.ranks) > 1:
        return f"{what} runs on {', '.join(rank.host for rank in attempt.ranks)}, one process each"
    if attempt.process.pid:
        return f"{what} runs on {attempt.host} as process {attempt.process.pid}"
    return f"{what} is in the queue of {attempt.host}"


def _check_elsewhere(
    hosts: Hosts, fleet: Fleet, target: Target, run_id: str, epoch: int, say: Callable[[str], None]
) -> None:
    """UsageError where another host of the fleet has the run: two starts would make two lineages. Hosts that do not
    answer are named; the fence is what holds then."""

    def ask(name: str) -> tuple[str, dict[str, Any] | None, str]:
        try:
            host = hosts.get(name)
            return name, host.call("runs.run_state.describe", root=host.root, run_id=run_id), ""
        except DamagedError:
            raise
        except HostError as error:
            return name, None, error.message

    others = [name for name in fleet.hosts if name not in target.hosts]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, others))
    for name, found, error in answers:
        if found is None:
            say(f"{name} does not answer ({error}): whether it has a run {run_id} is not known")
            continue
        fence = found["fence"]
        if found["running"]:
            raise UsageError(
                f"run {run_id} is running on {name} (attempt {found['attempt']})",
                f"midstream --stop {run_id} stops it; --migrate moves it; --run-id starts another one",
            )
        if fence is not None and fence["epoch"] > epoch:
            raise UsageError(
                f"run {run_id} belongs to {fence['holder']} since step {fence['sealed_step']}, says {name}",
                f"midstream --migrate {run_id} --to {target.name} brings it here",
            )
        if fence is not None and fence["owner"] != target.name and found["attempts"]:
            raise UsageError(
                f"{name} has a run {run_id} already, of {fence['holder']} (epoch {fence['epoch']})",
                f"midstream --migrate {run_id} --to {target.name} moves it; --run-id starts another one",
            )


def _run_id(run_id: str | None, text: str, config: Path) -> str:
    """As given, as configured, or made of the config's name."""
    trainer = config_values(text).get("trainer")
    configured = trainer.get("id") if isinstance(trainer, dict) else None
    try:
        return records.check_run_id(str(run_id or configured or f"{config.stem}-{secrets.token_hex(3)}"))
    except records.RecordError as error:
        raise UsageError(str(error)) from None


def _check_startable(host: str, target: str, run_id: str, known: dict[str, Any]) -> int:
    """The epoch that the run may be started under. UsageError where it may not."""
    if known["running"]:
        raise UsageError(
            f"run {run_id} is running on {host} (attempt {known['attempt']})",
            f"midstream --stop {run_id} stops it; --run-id starts another one",
        )
    if known["fence"] is None:
        if known["attempts"]:
            raise UsageError(
                f"run {run_id} on {host} has attempts and no fence: nobody can say whose it is",
                f"midstream --repair {run_id} --on {host} shows what it would write; or choose another --run-id",
            )
        return 1
    fence = records.Fence.from_json(known["fence"], "fence.json")
    if fence.owner != target:
        raise UsageError(
            f"run {run_id} belongs to {fence.owner} since step {fence.sealed_step}, not to {target}",
            f"midstream --migrate {run_id} --to {target} brings it here",
        )
    return fence.epoch
