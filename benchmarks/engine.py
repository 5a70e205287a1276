"""One update of a language model: midstream's beside the same written by hand, in torch, and Levanter's, in one run.

    python benchmarks/engine.py [--shape gpt2-10m] [--rounds 7] [--steps 5] [--torch PYTHON] [--levanter PYTHON]
    python benchmarks/engine.py --only startup | loop | steps [--base CHECKOUT]
    python benchmarks/engine.py --sweep FILE [--budget SECONDS] [--shape llama-1b] [--torch PYTHON]

*steps*: every contestant is a process of its own (``benchmarks/steps/``) with the same initial parameters and batches;
they take turns, a few updates each, and the medians over all turns are compared. An update is what a training loop
does: put the batch on the device, update, read the loss. All start with the same environment, which is in the first
line of the output; on a CPU it has the engine's settings of the allocator. The hand-written step is the limit: plain
jax for this one model, no options. A ratio is a contestant's time over midstream's: above 1 midstream is faster.
Processor seconds, of all threads, say the same of a CPU whatever else it is busy with. The losses must agree.

*loop*: the engine itself, as a run: how much of an update is spent waiting for data, and how much longer it is than the
bare step.

*startup*: a fresh process that resumes a run with a warm compile cache, until its first update is done, beside one that
does nothing but import the same packages and restore the same checkpoint, and with ``--base`` one of another checkout
of midstream, which has its own environment (``make setup``). Processor seconds are those of all threads from the
start of the process until its first row is written.

*sweep*: for an accelerator that is lent for a short time: attention, rematerialisation and batch, documents' ends and
preallocation on and off, save and restore from device memory, torch. One process and one JSON line in FILE for each
point; started again, it continues (``benchmarks/steps/sweep.py``).

Without ``--shape``: gpt2-10m on a CPU; gpt2-124m and llama-1b, in bfloat16 and with MFU, on an accelerator.
``--torch`` and ``--levanter`` name interpreters that have these packages; without, the one that runs this is tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "engine")]

from steps import sweep as sweeping  # noqa: E402
from steps.shape import SHAPES, Shape  # noqa: E402

from midstream_engine.runtime.host_memory import devices_are_cpus, tunables  # noqa: E402

HERE = Path(__file__).parent / "steps"
AGREEMENT = {"float32": 1e-4, "bfloat16": 2e-2}  # largest relative difference of losses from those of midstream


def environment() -> dict[str, str]:
    """Return the environment of every process that is measured, the same for all contestants.

    One GPU, of which jax takes memory as it needs it, because others share it. On a CPU the allocator's settings of the
    engine, which it would otherwise have alone.
    """
    # Modules are compiled once, as for a user, also where the environment forbids Python to keep them.
    dropped = ("MIDSTREAM_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    own = {"CUDA_VISIBLE_DEVICES": device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONWARNINGS": "ignore"}
    if devices_are_cpus(os.environ):
        own["GLIBC_TUNABLES"] = tunables()
    return {**kept, **own}


def settings() -> dict[str, str]:
    """Return what the output says of that environment."""
    names = ("CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES", "JAX_PLATFORMS", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE")
    return {name: value for name, value in environment().items() if name in names}


class Contestant:
    """A process that holds a model and does steps on command."""

    def __init__(self, name: str, python: str, shape: Shape, directory: Path) -> None:
        self.name, self.seconds, self.processor, self.losses = name, [], [], []
        self._errors = (directory / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            [python, str(HERE / "worker.py"), name, shape.to_json(), str(directory)],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self.facts = self._answer()
        self.missing: str | None = self.facts.get("missing")
        if self.missing is None:
            self.losses += self.facts["losses"]

    def run(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.seconds += answer["seconds"]
        self.processor += answer["processor"]
        self.losses += answer["losses"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"{self.name} ended with {self._process.wait(60)}:\n{self._errors.read()[-3000:]}")
        return json.loads(line)


def contest(shape: Shape, rounds: int, steps: int, pythons: dict[str, str]) -> None:
    """Print one JSON line for each contestant."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as name:
        # midstream first: it writes the initial parameters.
        contestants = [Contestant(each, python, shape, Path(name)) for each, python in pythons.items()]
        try:
            for each in contestants:
                if each.missing:
                    say(contestant=each.name, missing=each.missing)
            running = [each for each in contestants if not each.missing]
            for number in range(rounds):
                # Not always in the same order: what is hot, or asleep, then hits each of them.
                for each in running if number % 2 else running[::-1]:
                    each.run(steps)
            compare(shape, running)
        finally:
            for each in contestants:
                each.close()


def compare(shape: Shape, contestants: list[Contestant]) -> None:
    ours = contestants[0]
    facts, median = ours.facts, statistics.median(ours.seconds)
    for each in contestants:
        own = statistics.median(each.seconds)
        row: dict[str, Any] = {
            "contestant": each.name,
            "time / midstream's": round(own / median, 3),
            "tokens_per_second": round(shape.tokens / own),
            "step_ms": {"median": round(1000 * own, 2), "least": round(1000 * min(each.seconds), 2)},
            "least / midstream's": round(min(each.seconds) / min(ours.seconds), 3),
            "processor / midstream's": round(statistics.median(each.processor) / statistics.median(ours.processor), 3),
            "processor_ms": round(1000 * statistics.median(each.processor), 2),
            "ready_seconds": round(each.facts["ready"], 2),
            "versions": each.facts["versions"],
        }
        if facts["peak"]:
            peak = facts["peak"] * facts["devices"]
            for name, per_token in facts["utilisation"].items():
                row[name] = round(per_token * shape.tokens / own / peak, 3)
        difference = max(abs(a - b) / b for a, b in zip(each.losses, ours.losses, strict=True))
        row["loss_difference"] = float(f"{difference:.2g}")
        say(**row)
        if each.name != "levanter" and difference > AGREEMENT[shape.compute]:  # it has initial parameters of its own
            raise SystemExit(f"{each.name} trains something else: losses differ by {difference:.2g}")


class Run:
    """A run of the engine itself, as processes, one attempt after the other."""

    def __init__(self, shape: Shape, directory: Path, checkout: Path = ROOT) -> None:
        from steps import midstream

        self._python = sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")
        self._engine, self.processor = str(checkout / "engine"), 0.0  # seconds of the last attempt
        directory.mkdir(exist_ok=True)

        text = directory / "text.txt"
        words = shape.batches().next().ravel().tolist() * (1 + 400_000 // shape.tokens)
        text.write_text(" ".join(f"w{word}" for word in words))
        self.directory = directory / "runs" / "r"
        self.flags = [
            *midstream.flags(shape, directory), "--data.train_urls", str(text), "--trainer.id", "r",
            "--trainer.root", str(directory), "--trainer.checkpointer.keep", "[]",
            "--trainer.num_train_steps", "1000000",  # the same in every attempt: a run that is taken up again
        ]  # fmt: skip
        self.attempts = 0

    def train(self, updates: int) -> tuple[float, list[dict[str, Any]]]:
        """Run one attempt of at least ``updates`` updates, then stop it.

        Return the start of its process (UTC seconds) and the rows of its metrics.
        """
        self.attempts += 1
        path = self.directory / "attempts" / f"{self.attempts:03d}" / "metrics.jsonl"
        with open(self.directory.parents[1] / "engine.log", "wb") as log:
            began = time.time()
            command = [self._python, "-m", "midstream_engine.train", *self.flags]
            process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=subprocess.STDOUT)
            while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") >= updates):
                time.sleep(0.02)
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            self.processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            process.send_signal(signal.SIGTERM)
            if process.wait():
                raise SystemExit(f"the engine ended with {process.returncode}:\n{Path(log.name).read_text()[-3000:]}")
        return began, [json.loads(line) for line in path.read_text().splitlines()]

    def bare(self) -> tuple[float, float]:
        """Seconds until everything is imported, and seconds to restore, of a process that does nothing else."""
        began = time.time()
        found = json.loads(self._done([sys.executable, str(HERE / "bare_restore.py"), "r", *self.flags]))
        return found["imported"] - began, found["restore"]

    def _environment(self) -> dict[str, str]:
        paths = [self._engine, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {**environment(), "PYTHONPATH": os.pathsep.join(paths)}

    def _done(self, command: list[str]) -> str:
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:3])} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout


def loop(run: Run, steps: int) -> None:
    """One attempt from step 0: the parts of an update besides the step."""
    _, rows = run.train(steps)
    rows = rows[3:]  # the first ones find caches cold
    spans = [after["time"] - before["time"] for before, after in itertools.pairwise(rows)]
    update, duration = statistics.median(spans), statistics.median(row["throughput/duration"] for row in rows)
    loading = sum(row["throughput/loading_time"] for row in rows) / sum(row["throughput/duration"] for row in rows)
    ratios = {"loading_time / duration": round(loading, 5), "update / step": round(update / duration, 4)}
    say(loop=ratios, updates=len(rows), step_ms=round(1000 * duration, 2))


def startup(run: Run, rounds: int, base: Run | None = None) -> None:
    """Resume the run again and again, in turns with processes that only import and restore."""
    found: dict[str, list[float]] = {}

    def note(**values: float) -> None:
        for name, value in values.items():
            found.setdefault(name, []).append(value)

    for number in range(rounds + 1):
        imports, restore = run.bare()
        began, rows = run.train(1)
        done = rows[0]["time"] - began
        if number:  # the first round warms up
            begins = done - rows[0]["throughput/duration"]
            note(imports=imports, restore=restore, done=done, begins=begins, processor=run.processor)
        if base is not None:
            began, rows = base.train(1)
            if number:
                note(base_done=rows[0]["time"] - began, base_processor=base.processor)
    seconds = {name: statistics.median(values) for name, values in found.items()}
    least = seconds["imports"] + seconds["restore"]
    beside = {
        f"{name} / base": round(statistics.median(found[key]) / statistics.median(found[f"base_{key}"]), 3)
        for name, key in (("first update done", "done"), ("processor seconds to the first row", "processor"))
        if base is not None
    }
    say(
        startup={
            **beside,
            "first update begins / (imports + restore)": round(seconds["begins"] / least, 3),
            "first update done / (imports + restore)": round(seconds["done"] / least, 3),
        },
        seconds={name: round(value, 3) for name, value in seconds.items()},
    )


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--shape", choices=sorted(SHAPES), action="append")
    flags.add_argument("--rounds", type=int, default=7)
    flags.add_argument("--steps", type=int, default=5, help="updates a turn")
    flags.add_argument("--updates", type=int, default=40, help="of the run")
    flags.add_argument("--torch", metavar="PYTHON", default=sys.executable)
    flags.add_argument("--levanter", metavar="PYTHON", default=sys.executable)
    flags.add_argument("--base", type=Path, metavar="CHECKOUT", help="start its engine, too")
    flags.add_argument("--only", choices=("steps", "loop", "startup"))
    flags.add_argument("--sweep", type=Path, metavar="FILE")
    flags.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="of the sweep")
    options = flags.parse_args()
    accelerated = not devices_are_cpus(os.environ)
    names = options.shape or (["gpt2-124m", "llama-1b"] if accelerated else ["gpt2-10m"])
    pythons = {
        "midstream": sys.executable, "plain_jax": sys.executable, "plain_torch": options.torch,
        "levanter": options.levanter,
    }  # fmt: skip
    say(
        python=platform.python_version(), cpus=os.cpu_count(), load=os.getloadavg()[0], rounds=options.rounds,
        environment=settings(),
    )  # fmt: skip
    for python in pythons.values():
        if shutil.which(python) is None:
            flags.error(f"{python} is no interpreter")
    if options.sweep is not None:
        accelerator = "gpu" if os.path.exists("/dev/nvidiactl") else "tpu"
        wanted = sweeping.points(names, accelerator if accelerated else "cpu")
        return sweeping.sweep(options.sweep, options.budget, wanted, environment(), torch=options.torch, say=say)
    for name in names:
        say(shape=name, **json.loads(SHAPES[name].to_json()))
        if options.only in (None, "steps"):
            contest(SHAPES[name], options.rounds, options.steps, pythons)
        if options.only in (None, "loop", "startup"):
            with tempfile.TemporaryDirectory(prefix="midstream-bench-") as directory:
                run = Run(SHAPES[name], Path(directory))
                loop(run, options.updates)
                if options.only != "loop":
                    base = None
                    if options.base is not None:
                        base = Run(SHAPES[name], Path(directory) / "base", options.base.resolve())
                        base.train(2)
                    startup(run, options.rounds, base)


if __name__ == "__main__":
    main()
