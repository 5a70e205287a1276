"""What ``midstream --launch`` does: a config, a target, a run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from midstream.errors import UsageError
from midstream.fleet.config import Fleet
from midstream.hosts.open import Hosts
from midstream.launch.bundle import install_engine
from midstream.launch.config_file import config_values, read_config
from midstream.launch.environment import prepare_environment
from midstream.launch.start import Attempt, start_attempt
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
    if len(chosen.hosts) != 1:
        raise UsageError(
            f"target {target} has {len(chosen.hosts)} hosts", "this version starts runs on targets of one host"
        )
    text = read_config(Path(config_path))
    run_id = _run_id(run_id, text, Path(config_path))
    host, config = hosts.get(chosen.hosts[0]), fleet.hosts[chosen.hosts[0]]
    known = host.call("runs.describe", root=host.root, run_id=run_id)
    epoch = _check_startable(host.name, chosen.name, run_id, known)
    if known["attempt"]:
        say(f"{run_id} is known on {host.name}: it goes on with the config it has; only overrides change it")
    engine = install_engine(host)
    say(f"engine {engine.digest[:12]} in {host.name}:{engine.directory}")
    environment = prepare_environment(host, config, say)
    say(f"{environment.python} ({environment.how})")
    if known["fence"] is None:
        host.call("runs.put_fence", root=host.root, run_id=run_id, fence=records.first_fence(chosen.name).to_json())
    attempt = start_attempt(
        host,
        config,
        target=chosen.name,
        run_id=run_id,
        epoch=epoch,
        overrides=overrides,
        config_text=text,
        engine=engine,
        environment=environment,
    )
    say(f"attempt {attempt.number} of {run_id} runs on {host.name} as process {attempt.process.pid}")
    return attempt


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
    if known["alive"]:
        raise UsageError(
            f"run {run_id} is running on {host} (attempt {known['attempt']})",
            f"midstream --stop {run_id} stops it; --run-id starts another one",
        )
    if known["fence"] is None:
        if known["attempts"]:
            raise UsageError(
                f"run {run_id} on {host} has attempts and no fence: nobody can say whose it is",
                "restore its fence.json, or choose another --run-id",
            )
        return 1
    fence = records.Fence.from_json(known["fence"], "fence.json")
    if fence.holder != target:
        raise UsageError(
            f"run {run_id} belongs to {fence.holder} since step {fence.sealed_step}, not to {target}",
            f"midstream --migrate {run_id} --to {target} brings it here",
        )
    return fence.epoch
