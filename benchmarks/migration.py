"""Downtime of each mode of a migration, beside the recipe by hand and the floor, over a shaped link.

    python benchmarks/migration.py [--mib 1024] [--mbit 1000] [--milliseconds 10 | --cable] [--rounds 1]
        [--layers] [--before 6] [--throttle 2] [--hosts 1] [--only MODE ...]

The model is heavy in state and light in computation: a huge embedding, one small block, few tokens a step. With
``--layers`` it has many blocks and a moving average instead: beside the state a step then needs the least memory, a
quarter of the state for the gradient. The source
is this machine, the target a real sshd behind a link with a rate and a delay (`tests/simulators/link.py`, in a process
of its own, which takes processor time from both ends). With ``--cable`` the kernel limits the rate, nearly for free and
without a delay (`tests/simulators/cable.py`, as root). Downtime is from the end of the last step on the source to the
end of the first on the target, by the lines that the engines write; both run on this machine, so one clock measures.

``by hand`` is the recipe of guides, with the same engine: stop it (it saves), ``scp -r`` the checkpoint
and the config, start it there. Packages and data are there already, and there are no pauses; compiling is part of it.
``floor`` is what cannot be avoided: the bytes at the link's rate, and the restore that the warm migration measured.
``live`` needs a target that is quicker than the source: the source sleeps ``--throttle`` seconds a step, and a
replica does not. With ``--hosts 2`` each end is a group of two hosts with a process each, of which only the target's
first is behind the link; ``by hand`` has one host.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulators.cable import cable
from simulators.link import through
from simulators.sshd import Lab, SshServer
from support.command_line import TINY, Run
from support.migrations.migration_faults import SLOW

REPOSITORY = Path(__file__).parents[1]
MIB = 1 << 20
MODES = ("warm", "cold", "live", "by hand")
HIDDEN = 256
WIDE = 1024  # of a layer
PATIENCE = 400.0  # seconds for anything at all, without the sleep of a throttled source


class Bench:
    """Two hosts with a link between them, and a model of ``mib``."""

    def __init__(self, room: Path, options: argparse.Namespace) -> None:
        self.room, self.options = room, options
        self.saved = max(1, options.before - 2)  # step of the checkpoint that the migration finds
        self.patience = PATIENCE + 4 * options.before * options.throttle
        self.lab = Lab(room / "lab")
        self.closing = contextlib.ExitStack()
        self.there = self._over_cable() if options.cable else self._over_proxy()
        self.closing.callback(self.lab.close)
        slow = room / "slow"
        slow.mkdir()
        sleeps = SLOW.replace("SECONDS", str(options.throttle)).replace("REPLICAS", "0.0")
        (slow / "sitecustomize.py").write_text(sleeps)
        here, there = (["here", "here2", "here3"][: options.hosts], ["there", "there2", "there3"][: options.hosts])
        sources = {name: self.lab.local(name, devices=2) for name in here}
        targets = {"there": self.there.config, **{name: self.lab.host(name, devices=2).config for name in there[1:]}}
        groups = f"targets:\n  old: {{type: hosts, hosts: {json.dumps(here)}}}\n"
        groups += f"  new: {{type: hosts, hosts: {json.dumps(there)}}}\n"
        self.ends = ("old", "new") if options.hosts > 1 else ("here", "there")
        self.fleets = {}
        for name, env in (("even", None), ("throttled", {"PYTHONPATH": str(slow)})):
            file = self.lab.fleet_file(
                **{host: replace(config, env=env or config.env) for host, config in sources.items()}, **targets
            )
            file.write_text(file.read_text() + (groups if options.hosts > 1 else ""))
            self.fleets[name] = file.rename(file.with_name(f"{name}.yaml"))
        self.roots = Path(sources["here"].root), Path(self.there.config.root)
        keep = f"[{{every: {self.saved}, until: {self.saved}}}]"
        self.flags = (
            *(_layers(options.mib) if options.layers else _embedding(options.mib)),
            "--model.seq_len", "16", "--trainer.train_batch_size", str(2 * options.hosts),
            "--trainer.num_train_steps", "100000",
            "--trainer.checkpointer.save_interval", "1h", "--trainer.checkpointer.keep", keep,
        )  # fmt: skip

    def _over_cable(self) -> SshServer:
        made = self.closing.enter_context(cable())
        made.limit(self.options.mbit)
        return self.lab.host("there", devices=2, address=made.there, space=made.space)

    def _over_proxy(self) -> SshServer:
        server = self.lab.host("there", devices=2)
        proxy = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests/simulators/link.py"), str(server.port),
             str(self.options.milliseconds), str(self.options.mbit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.closing.enter_context(proxy)
        self.closing.callback(proxy.kill)
        assert proxy.stdout is not None
        return through(server, int(proxy.stdout.readline()))

    def close(self) -> None:
        self.closing.close()

    # ------------------------------------------------------------------------------------------ migrations

    def move(self, mode: str, number: int) -> dict[str, Any]:
        """One migration of a run of its own: ``{downtime, bytes, measured, predicted}``, seconds and bytes."""
        run_id = f"{mode.replace(' ', '')}{number}"
        source, target = (Run(root, run_id) for root in self.roots)
        fleet = self.fleets["throttled" if mode == "live" else "even"]
        self._midstream("--fleet", fleet, "--launch", TINY, "--on", self.ends[0], "--run-id", run_id, "--", *self.flags)
        try:
            source.wait(lambda run: f"step-{self.saved}-a001" in run.checkpoints(), "a checkpoint", self.patience)
            source.wait_step(self.options.before, self.patience)
            if mode == "by hand":
                return self._by_hand(source, target)
            printed = self._midstream(
                "--fleet", fleet, "--migrate", run_id, "--to", self.ends[1], "--mode", mode, "--certify-steps", "1",
                "--healthy-steps", "1", "--json",
            )  # fmt: skip
            result = [json.loads(line) for line in printed.splitlines()][-1]
            sealed = result["certificate"]["step"]
            first = next(row for row in target.rows() if row["global_step"] == sealed)
            return {
                "downtime": max(0.0, first["time"] - source.rows(1)[-1]["time"]),
                "bytes": target.manifest(f"step-{sealed}-a001").size,
                "outcome": result["outcome"],
                "measured": result["downtime"]["measured"],
                "predicted": sum(result["downtime"]["predicted"].values()),
                "shards": _shards(result["certificate"]),
            }
        finally:
            for run in (source, target):
                run.kill()
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(run.paths.dir)

    def _midstream(self, *arguments: str | Path) -> str:
        argv = [sys.executable, "-m", "midstream", *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=self.patience, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv[2:])}: {done.returncode}\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
        return done.stdout

    def _by_hand(self, source: Run, target: Run) -> dict[str, Any]:
        """Stop, ``scp -r``, start: as a shell script would, without a pause for thought."""
        config = str(self.there.directory / "ssh_config")
        ssh, name = ["ssh", "-F", config, self.there.name], self.there.name
        root, run_id = self.roots[1], source.paths.run_id
        if not (root / "data").exists():  # it is there before the run stands still
            subprocess.run([*ssh, f"mkdir -p {root}"], check=True)
            subprocess.run(["scp", "-q", "-r", "-F", config, str(self.roots[0] / "data"), f"{name}:{root}"], check=True)
        subprocess.run([*ssh, f"mkdir -p {target.paths.checkpoints}"], check=True)
        status = source.status()
        assert status is not None
        os.kill(status.pid, signal.SIGTERM)
        source.wait(lambda run: not run.running, "its end", self.patience)
        saved = source.checkpoints()[-1]
        here = [source.paths.checkpoint(saved), target.paths.checkpoints], [source.paths.config, target.paths.dir]
        for what, where in here:
            subprocess.run(["scp", "-q", "-r", "-F", config, what, f"{name}:{where}"], check=True)
        words = {
            "MIDSTREAM_ROOT": str(root), "PYTHONPATH": str(REPOSITORY / "engine"), "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        }  # fmt: skip
        said = " ".join(f"{key}={value}" for key, value in words.items())
        train = f"{sys.executable} -m midstream_engine.train --config_path {target.paths.config} --trainer.id {run_id}"
        subprocess.run([*ssh, f"{said} setsid {train} > {root}/log 2>&1 < /dev/null & true"], check=True)
        target.wait(lambda run: bool(run.attempt and run.rows()), "the first step there", self.patience)
        rows = target.rows()
        return {
            "downtime": rows[0]["time"] - source.rows(1)[-1]["time"],
            "bytes": target.manifest(saved).size,
            "outcome": "completed" if rows[0]["global_step"] == len(source.rows(1)) else "lost steps",
        }


def _shards(certificate: dict[str, Any]) -> int:
    """Return how many processes of a replica have compared their own shards."""
    drift = certificate["claims"][-1]["evidence"].get("parameter_drift") or {}
    return len(drift.get("shards", []))


def _embedding(mib: int) -> tuple[str, ...]:
    """Return flags of a model of ``mib`` MiB: parameters and two moments of four bytes, nearly all of the embedding."""
    words = max(1024, mib * MIB // 12 // HIDDEN // 1024 * 1024)
    return "--model.hidden_dim", str(HIDDEN), "--model.num_layers", "1", "--model.pad_vocab_to_multiple", str(words)


def _layers(mib: int) -> tuple[str, ...]:
    """Return flags of a model of ``mib`` MiB: parameters, two moments and an average of four bytes.

    A layer has 12 times the square of its width parameters.
    """
    layers = max(1, round(mib * MIB / 16 / (12 * WIDE**2)))
    return (
        "--model.hidden_dim", str(WIDE), "--model.num_heads", "8", "--model.num_layers", str(layers),
        "--trainer.model_averaging.type", "ema",
    )  # fmt: skip


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--mib", type=int, default=1024, help="of state")
    flags.add_argument("--layers", action="store_true", help="many layers and an average instead of an embedding")
    flags.add_argument("--mbit", type=float, default=1000.0, help="the link's rate")
    flags.add_argument("--milliseconds", type=float, default=10.0, help="the link's round trip")
    flags.add_argument("--cable", action="store_true", help="the kernel limits the rate; no delay, as root")
    flags.add_argument(
        "--throttle", type=float, default=2.0, help="seconds that the source of a live migration sleeps per step"
    )
    flags.add_argument("--before", type=int, default=6, help="steps of the source before the migration begins")
    flags.add_argument("--rounds", type=int, default=1)
    flags.add_argument("--hosts", type=int, default=1, choices=(1, 2, 3), help="of each end, with a process each")
    flags.add_argument("--only", nargs="*", choices=MODES, default=MODES)
    options = flags.parse_args()
    if options.hosts > 1 and "by hand" in options.only:
        flags.error("--hosts is of migrations alone: --only warm cold live")
    with session(options) as bench:
        found = {mode: [bench.move(mode, n) for n in range(options.rounds)] for mode in options.only}
    report = summary(found, options)
    print(json.dumps(report, indent=1))
    return 0


@contextlib.contextmanager
def session(options: argparse.Namespace) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as name:
        os.environ["MIDSTREAM_STATE"] = f"{name}/state"
        bench = Bench(Path(name), options)
        try:
            yield bench
        finally:
            bench.close()


def summary(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians, and the ratios that are aimed at."""
    down = {mode: statistics.median(one["downtime"] for one in each) for mode, each in found.items()}
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("jax", "paramiko")}},
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "link": {
            "mbit": options.mbit,
            "milliseconds": 0.0 if options.cable else options.milliseconds,
            "limited by": "the kernel" if options.cable else "a proxy",
        },
        "throttle": options.throttle,
        "hosts of each end": options.hosts,
        "model": "layers" if options.layers else "embedding",
        "downtime": {mode: round(seconds, 2) for mode, seconds in down.items()},
        "moves": found,
    }
    if "warm" in found:
        best = min(found["warm"], key=lambda one: one["downtime"])
        restore = best["measured"]["restore"]
        floor = best["bytes"] * 8 / (options.mbit * 1e6) + restore
        report |= {"mib": round(best["bytes"] / MIB), "floor": round(floor, 2)}
        report["warm / floor (aim: 1.15 at most)"] = round(down["warm"] / floor, 2)
        if "by hand" in down:
            report["warm / by hand (aim: 0.25 at most)"] = round(down["warm"] / down["by hand"], 2)
    return report


if __name__ == "__main__":
    sys.exit(main())
