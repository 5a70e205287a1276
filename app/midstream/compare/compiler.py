"""Compilation for accelerators in a process of its own.

The process runs on this machine or on a host of the fleet file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Event

from midstream.bundled_files import shipped
from midstream.check.compiler_leftovers import compilers_directory
from midstream.compare.estimate import WHAT, CompileProgress, StepEstimate, cache_file, cached, store
from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, HostConfig, LocalHostConfig
from midstream.format import size
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_program import run_program
from midstream.hosts.rpc.report_types import ESTIMATE, CompilationEnd, OutputLine
from midstream.hosts.rpc.result_checks import printed_value
from midstream.install.bundle import build_bundle, install_engine, packages_directory
from midstream.install.environment import MODULES, prepare_environment
from midstream.install.reporter import Reporter
from midstream_core.accelerator_types import GPU, TPU, AcceleratorType
from midstream_host.machine import checks
from midstream_host.runs.process_start import with_setup

MODULE = "midstream_engine.estimate"
TIME_LIMIT = 3600.0  # seconds for all programs of one candidate
MEMORY_SHARE = 0.8  # of a host's free memory
HERE = "this machine"
VARIANTS = {TPU: "tpu", GPU: "cuda12"}  # platform -> build of the engine's packages that has its compiler
PLUGINS = {"tpu": "libtpu", "cuda12": "jax_plugins.xla_cuda12"}  # module with the compiler
COMPILER_PACKAGES = ("jax-cuda12-pjrt==", "jax-cuda12-plugin==")
# Where `make compilers` and `make compilers-cuda` install the compilers, beside the engine's packages.
BESIDE = {
    "tpu": Path(sys.prefix, "compilers", "libtpu", "libtpu.so"),
    "cuda12": Path(sys.prefix, "compilers-cuda", "jax_plugins", "xla_cuda12", "xla_cuda_plugin.so"),
}


@dataclass(frozen=True)
class Compiler:
    """A host with the compiler of a platform."""

    host: Host
    config: HostConfig
    python: str
    engine: str  # directory for PYTHONPATH

    def estimate(
        self,
        config: str,
        overrides: Sequence[str],
        accelerators: AcceleratorType,
        report: Reporter,
        cancel: Event | None = None,
    ) -> StepEstimate:
        """Compile a configuration's step.

        Args:
            config: Text of the configuration.
            overrides: Flags of the engine.
            accelerators: Accelerators to compile for.
            report: Receives the progress.
            cancel: Ends the compilation when it is set.

        Raises:
            UsageError: The configuration is wrong, or cannot be laid out on the accelerators.
            MidstreamError: The compiler failed, or exceeded a limit.
            Cancelled: ``cancel`` was set.
        """
        command = [
            self.python,
            "-P",
            "-m",
            MODULE,
            "--config_path",
            "{config}",
            "--accelerators",
            accelerators.topology,
        ]
        free = self.host.call(checks.facts)(root=self.host.root).memory_available
        running = run_program(self.host, ESTIMATE, cancel)(
            root=self.host.root,
            config=config,
            argv=with_setup([*command, *overrides], self.config.setup),
            env={**self.config.env, "JAX_PLATFORMS": "cpu", "PYTHONSAFEPATH": "1", "PYTHONPATH": self.engine},
            seconds=TIME_LIMIT,
            memory=int(free * MEMORY_SHARE),
        )
        began, state, last = time.monotonic(), "starting the compiler", ""
        end: CompilationEnd | None = None
        report.update(accelerators.name, state)
        try:
            with running as lines:
                for line in lines:
                    if isinstance(line, OutputLine):
                        last, state = line.text, self._state(line.text) or state
                        report.update(accelerators.name, state)
                    elif isinstance(line, CompilationEnd):
                        end = line
                    else:
                        passed = time.monotonic() - began
                        report.update(accelerators.name, f"{state}: {passed:.0f} s, {size(line.memory)}")
        finally:
            report.end(accelerators.name)
        assert end is not None  # run_program raises without a last line
        if end.code == 2:
            raise UsageError(f"{accelerators.name}: {end.error.removeprefix('midstream: ')}")
        if end.code:
            why = end.error.removeprefix("midstream: ") or f"exit code {end.code}"
            raise MidstreamError(f"{accelerators.name}: {why}", "--compile-on HOST compiles on another machine")
        return printed_value(self.host.name, WHAT, StepEstimate, last)

    def _state(self, text: str) -> str:
        if '"event": "estimate"' in text:
            return ""
        line = printed_value(self.host.name, WHAT, CompileProgress, text)
        if line.event == "compiling":
            return f"compiling with {line.per_device_parallelism} at a time"
        return f"{line.per_device_parallelism} at a time: {'does not fit' if line.event == 'refused' else 'fits'}"


class Compilers:
    """Compilers of a comparison: one of each platform, prepared when first needed."""

    def __init__(
        self, fleet: Fleet, hosts: HostPool, compile_on: str | None, report: Reporter, cancel: Event | None = None
    ) -> None:
        """Prepare none yet.

        Args:
            fleet: The fleet.
            hosts: Connections to the fleet's hosts.
            compile_on: A host of the fleet file; None: this machine.
            report: Receives the progress.
            cancel: Ends the compilation when it is set.
        """
        self._cancel = cancel
        self._fleet, self._hosts, self._compile_on, self._report = fleet, hosts, compile_on, report
        self._known: dict[str, Compiler] = {}

    def estimate(self, config: str, overrides: Sequence[str], accelerators: AcceleratorType) -> StepEstimate:
        """Return the estimate of a step: cached by an earlier comparison, or compiled.

        Raises:
            UsageError: The configuration is wrong, or cannot be laid out on the accelerators.
            MidstreamError: There is no compiler, it failed, or it exceeded a limit.
        """
        file = cache_file(engine_and_packages(), config, overrides, accelerators)
        estimate = cached(file)
        if estimate is None:
            estimate = self._of(accelerators).estimate(config, overrides, accelerators, self._report, self._cancel)
            store(file, estimate)
        return replace(estimate, accelerators=accelerators.name)

    def _of(self, accelerators: AcceleratorType) -> Compiler:
        """Return the compiler for these accelerators.

        Raises:
            UsageError: The fleet file has no such host.
            HostError: The host cannot be reached, or the environment cannot be built.
        """
        if accelerators.platform not in self._known:
            self._known[accelerators.platform] = self._prepared(VARIANTS[accelerators.platform])
        return self._known[accelerators.platform]

    def _prepared(self, variant: str) -> Compiler:
        if self._compile_on is not None:
            host = self._hosts.get(self._compile_on)
            # Compiling needs no accelerator, and nothing of an image.
            config = replace(self._fleet.hosts[host.name], variant=variant, devices=None, container=None)
            return _installed(host, config, self._report)
        config = LocalHostConfig(root=str(compilers_directory()), variant=variant)
        host = LocalHost(HERE, config)
        if BESIDE[variant].is_file() and all(map(importlib.util.find_spec, MODULES)):
            return Compiler(host, config, sys.executable, str(packages_directory()))
        return _installed(host, config, self._report)


def known_estimate(config: str, overrides: Sequence[str], accelerators: AcceleratorType) -> StepEstimate | None:
    """Return the estimate stored by an earlier comparison; None where there is none."""
    return cached(cache_file(engine_and_packages(), config, overrides, accelerators))


def _installed(host: Host, config: HostConfig, report: Reporter) -> Compiler:
    engine = install_engine(host)
    assert config.variant is not None
    modules = (*MODULES, PLUGINS[config.variant])
    environment = prepare_environment(
        host, replace(config, python=None), report, lock=compiler_lock(config.variant), modules=modules
    )
    return Compiler(host, config, environment.python, engine.directory)


@cache
def compiler_lock(variant: str) -> str:
    """Return a lock of the engine's packages and a compiler, without device libraries."""
    text = shipped(f"locks/engine-{variant}.txt").read_text(encoding="utf-8")
    if variant == "tpu":
        return text
    # Of CUDA's packages the plugin with XLA's compiler: NVIDIA's libraries are 4 GB.
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    compiler = [entry for entry in entries if entry.startswith(COMPILER_PACKAGES)]
    return shipped("locks/engine-cpu.txt").read_text(encoding="utf-8") + "".join(compiler)


@cache
def engine_and_packages() -> str:
    """Return a hash of the engine and of the packages that compile."""
    locks = "".join(compiler_lock(variant) for variant in VARIANTS.values())
    return f"{build_bundle().digest} {hashlib.sha256(locks.encode()).hexdigest()}"
