"""The engine's own rehearsal on a target: it compiles the run's programs there, and says what they need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from midstream.check.check_result import FAIL, PASS, Check
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host_pool import Hosts
from midstream.launch.config_file import read_config
from midstream.launch.host_group_start import prepare_target
from midstream.launch.start_attempt import Launch, engine_environment
from midstream.remote.runs.attempts import with_setup

TIMEOUT = 3600.0  # seconds to compile
MODULE = "midstream_engine.rehearse_model"


def rehearse(
    fleet: Fleet,
    hosts: Hosts,
    target: Target,
    config_path: Path,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> Iterator[Check]:
    """Puts engine and environment on the target and compiles the config's programs on each host, for that host's own
    devices. Writes engines, environments and the compile cache there, and no run."""
    text = read_config(config_path)
    try:
        prepared = prepare_target(hosts, fleet, target, say)
    except (MidstreamError, HostError) as error:
        yield Check("environment", FAIL, error.message, error.hint)
        return
    for name, ready in prepared.items():
        yield Check("environment", PASS, f"{ready.environment.python} ({ready.environment.how})", host=name)
        yield _one(hosts, fleet, target, name, text, ready.engine.directory, ready.environment.python, overrides)


def _one(
    hosts: Hosts, fleet: Fleet, target: Target, name: str, text: str, engine: str, python: str, overrides: Sequence[str]
) -> Check:
    host, config = hosts.get(name), fleet.hosts[name]
    env = engine_environment(host.root, config, engine, Launch("rehearsal", target.name), 0)
    command = [python, "-P", "-m", MODULE, "--config_path", "{config}", "--trainer.root", host.root, *overrides]
    answer: dict[str, Any] = host.call(
        "machine.checks.rehearse",
        timeout=TIMEOUT + 60,
        root=host.root,
        config=text,
        argv=with_setup(command, config.setup),
        env=env,
        seconds=TIMEOUT,
    )
    report = _report(answer["output"])
    if report is None:
        why = (answer["error"] or f"exit code {answer['code']}").removeprefix("midstream: ")
        return Check("rehearsal", FAIL, why, "what the engine says above; its log is on stderr there", name)
    steps = [program for program in report["programs"] if program["name"] == "step"]
    need = max(program["memory"]["total"] for program in steps)
    seconds = sum(program["seconds"] for program in report["programs"])
    words = (
        f"{report['parameters'] / 1e6:.1f} M parameters on {report['devices']} x {report['device_kind']}: compiled in "
        f"{seconds:.0f} s, a step needs {need / 2**20:.0f} MiB a device"
    )
    if report["fits"] is False:
        limit = report["memory_limit"] / 2**20
        return Check(
            "rehearsal", FAIL, f"{words}, it has {limit:.0f}", "trainer.per_device_parallelism: fewer at a time", name
        )
    return Check("rehearsal", PASS, words, host=name)


def _report(output: str) -> dict[str, Any] | None:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            return found if found.get("event") == "rehearsal" else None
    return None
