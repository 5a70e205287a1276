"""Checks of configuration, tokenizer and text before an installation on hosts.

The engine's own reader checks the configuration: a child process on this machine, because the app imports no
configuration. The hosts then look for the files that it names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from midstream.bundled_files import config_path
from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig, Target
from midstream.hosts.host import Host
from midstream.install.bundle import packages_directory
from midstream.install.environment import builds_environment, host_variant
from midstream.install.package_check import missing_modules
from midstream.launch.engine_flags import engine_flags
from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_host.machine import run_inputs
from midstream_host.machine.run_inputs import InputProblem

MODULE = "midstream_engine.check_config"
READ_TIMEOUT = 120.0  # seconds for the engine's reader: it starts from a cold disk
HOST_TIMEOUT = 300.0  # seconds for a host to look for the files, on file systems that are slow
CONCURRENCY = 32
LONGEST_FIELD, LONGEST_MESSAGE = 100, 600  # characters of a host's words
OPTIONAL = {"wandb", "tensorboardX"}  # packages without which a run trains


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run, as ``midstream_engine.check_config`` prints them."""

    tokenizer: str
    eos_token: str
    cache_dir: str
    texts: tuple[dict[str, Any], ...]
    packages: dict[str, str]  # package -> the field that needs it


def read_inputs(config: str | Path, overrides: Sequence[str] = ()) -> RunInputs:
    """Check a config with the engine's reader and return what its run reads.

    The reader runs on this machine.

    Args:
        config: The config.
        overrides: Flags for the engine.

    Raises:
        UsageError: The config or a flag is wrong; the message has file, line and key.
    """
    done = _read(config_path(config), overrides)
    if done.returncode == records.EXIT_DONE:
        inputs: Any = json.loads(done.stdout)
        return RunInputs(
            inputs["tokenizer"],
            inputs["eos_token"],
            inputs["cache_dir"] or "",
            tuple(cast("list[dict[str, Any]]", inputs["texts"])),
            inputs["packages"],
        )
    raise _refusal(done)


def check_flags(config: JsonObject, overrides: Sequence[str]) -> None:
    """Check engine flags for a run that has a config already.

    The engine's reader checks them, on this machine. Whatever else it finds in the config is left to the engine
    that starts with it.

    Args:
        config: The run's config, of plain values.
        overrides: Flags for the engine.

    Raises:
        UsageError: A flag has an unknown name or a value of a wrong type.
    """
    names = engine_flags(overrides)
    if not names:
        return
    with tempfile.TemporaryDirectory(prefix="midstream-") as directory:
        file = Path(directory, "run.yaml")
        file.write_text(json.dumps(config))  # without tags: a config of a host includes no file of this machine
        done = _read(file, overrides)
    if done.returncode == records.EXIT_DONE:
        return
    error = _refusal(done)
    if any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", error.message) for name in names):
        raise error


def _read(config: Path, overrides: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", MODULE, "--config_path", str(config), *overrides],
        env={**os.environ, "PYTHONPATH": str(packages_directory())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READ_TIMEOUT,
    )


def _refusal(done: subprocess.CompletedProcess[str]) -> UsageError:
    lines = done.stderr.strip().splitlines()
    why = lines[-1].removeprefix("midstream: ") if lines else f"{MODULE} ended with {done.returncode}"
    return UsageError(why, "" if "hint:" in why else "docs/reference/configuration.md lists the keys")


def check_inputs(
    hosts: Sequence[Host],
    configs: Sequence[HostConfig],
    target: Target,
    run_id: str,
    inputs: RunInputs,
    say: Callable[[str], None],
) -> None:
    """Check on every host of a target that it has what a run reads.

    Nothing is written there.

    A token cache in a bucket may have the text already, and the files of a cluster's nodes may not be those of its
    login node: there a missing file is only reported.

    Args:
        hosts: The target's hosts.
        configs: Their entries in the fleet file.
        target: The target.
        run_id: The run.
        inputs: What it reads.
        say: Called with each line about what cannot be checked.

    Raises:
        UsageError: A host lacks a file or a package.
        HostError: A host does not answer.
    """

    def check(host: Host, config: HostConfig) -> list[InputProblem]:
        if not host.remote_python:
            return [InputProblem("", "its tokenizer and data are not checked: it has no Python", "", False)]
        directory = records.RunPaths(host.root, run_id).dir
        problems = host.call(run_inputs.problems, timeout=HOST_TIMEOUT)(
            tokenizer=inputs.tokenizer,
            eos_token=inputs.eos_token,
            texts=inputs.texts,
            run_directory=directory,
            env=dict(config.env),
        )
        return [*problems, *_packages(host, config, inputs)]

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(check, hosts, configs))
    for host, problems in zip(hosts, answers, strict=True):
        for problem in problems:
            cached = bool(inputs.cache_dir) and problem.field.endswith("_urls")
            where = f"{problem.field[:LONGEST_FIELD]} on {host.name}" if problem.field else host.name
            message = problem.message[:LONGEST_MESSAGE]
            if problem.certain and not cached and target.slurm is None:
                raise UsageError(f"{where}: {message}", problem.hint[:LONGEST_MESSAGE])
            say(f"{where}: {message}")


def _packages(host: Host, config: HostConfig, inputs: RunInputs) -> list[InputProblem]:
    """Return the packages that the config needs and the host's environment will lack."""
    lacks: list[str] = []
    names = sorted(inputs.packages)
    if names and config.python:
        lacks = missing_modules(host, config, config.python, names)
    elif names and config.is_local and not builds_environment(config):
        lacks = [name for name in names if importlib.util.find_spec(name) is None]
    elif names:
        lock = host_variant(host, config).lock.lower()
        lacks = [name for name in names if f"\n{name.lower()}==" not in f"\n{lock}"]
    hint = f"python: of {host.name} in the fleet file names an interpreter that has it"
    return [
        InputProblem(
            inputs.packages[name],
            f"the package {name} is missing" + ("; metrics go to metrics.jsonl only" if name in OPTIONAL else ""),
            hint,
            name not in OPTIONAL,
        )
        for name in lacks
    ]
