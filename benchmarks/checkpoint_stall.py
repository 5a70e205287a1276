"""Wait of training for a save: a copy of the state, beside a second program of the update.

    python benchmarks/checkpoint_stall.py [--mib 256] [--devices 4] [--rounds 12] [--updates 12] [--where DIR]

The engine copies the state in memory (``copy``) and then trains on in the state's memory, while the copy is written.
The alternative is a second program of the update, for the first update after a save. It writes its results elsewhere:
into the memory of another state, which the save before has left (``second state``), or into memory that it allocates
(``new memory``), of which saves have returned what was free to the system. It needs as much memory as the copy.

*Arithmetic*: AdamW's, on the state of checkpoint.py, an update that does nothing but pass through memory. ``stall`` is
the time of wait and first update, less the usual update, as a part of a synchronous save; nothing is written
until both are over. ``lost`` is the same until the save is on the disk, with what writing takes from training: the
time of all updates until then, less as many usual ones.

*Model*: the engine's own update of gpt2-10m on one device, in seconds: compiling it and the second program, the usual
update and the one into a second state, and the two parts of the engine's wait, reference losses and copy. ``equal``:
both programs computed the same state and loss, bit by bit.

Ways take turns, medians are compared; ``least``: the least times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "engine")]

from checkpoint_memory import bare_update  # noqa: E402
from checkpoints.midstream import Midstream  # noqa: E402
from checkpoints.state import MIB, Case  # noqa: E402

from midstream_engine.runtime.host_memory import keep_host_memory, release_free_memory  # noqa: E402

WAYS = ("copy", "second state", "new memory")


class Times:
    """Seconds by name."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def take(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Note the seconds until the result of ``work`` is computed; return it."""
        import jax

        began = time.perf_counter()
        result = jax.block_until_ready(work(*arguments))
        self.note(name, time.perf_counter() - began)
        return result

    def note(self, name: str, seconds: float) -> None:
        self._values.setdefault(name, []).append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self._values[name][1:])  # the first one warms up

    def least(self, name: str) -> float:
        return min(self._values[name][1:])


class Arithmetic:
    """A state, AdamW's arithmetic on it, and saves of it."""

    def __init__(self, case: Case) -> None:
        import jax
        import numpy as np

        self.times, self._case, self._way = Times(), case, Midstream(case)
        rate = np.float32(1e-3)
        shardings = {name: value.sharding for name, value in case.state.items()}
        own = jax.jit(bare_update, donate_argnums=0, out_shardings=shardings).lower(case.state, rate).compile()
        new = jax.jit(bare_update, out_shardings=shardings).lower(case.state, rate).compile()
        second = jax.jit(
            lambda _memory, state: bare_update(state, rate),
            donate_argnums=0, keep_unused=True, out_shardings=shardings,
        ).lower(case.state, case.state).compile()  # fmt: skip
        self._memory = jax.block_until_ready(jax.tree.map(lambda leaf: leaf + 0, case.state))
        self._usual = lambda: own(case.state, rate)
        self._first: dict[str, Callable[[], Any]] = {
            "copy": self._usual,
            "second state": lambda: second(self._memory, case.state),
            "new memory": lambda: new(case.state, rate),
        }

    def measure(self, way: str, *, lost: bool) -> None:
        """Do one save in a way; ``lost``: train while it is written."""
        case, directory = self._case, self._case.room / "state"
        os.sync()
        release_free_memory()  # as after the save before
        for _ in range(2):
            case.state = self.times.take("update", self._usual)
        old, tree = case.state, self._way.tree()
        began, updates = time.perf_counter(), 1
        pending = self._way.begin(directory, copy=way == "copy", tree=tree)
        if not lost:
            case.state = self._run(self._first[way])
            self.times.note(way, time.perf_counter() - began)
            pending.finish()
        else:
            with ThreadPoolExecutor(1) as thread:
                writing = thread.submit(pending.finish)
                case.state = self._run(self._first[way])
                while not writing.done():
                    case.state = self._run(self._usual)
                    updates += 1
            writing.result()
            self.times.note(f"{way}: lost", time.perf_counter() - began - updates * self.times.median("update"))
        shutil.rmtree(directory)
        if way == "second state":
            self._memory = old

    def save(self) -> None:
        """Save with nothing beside."""
        directory = self._case.room / "state"
        os.sync()
        self.times.take("save", lambda: self._way.save(directory))
        shutil.rmtree(directory)

    @staticmethod
    def _run(update: Callable[[], Any]) -> Any:
        import jax

        return jax.block_until_ready(update())


def arithmetic(case: Case, rounds: int) -> dict[str, Any]:
    """Return the row of the arithmetic: ratios to a synchronous save, and milliseconds."""
    subject = Arithmetic(case)
    for number in range(rounds + 1):
        subject.save()
        for way in WAYS if number % 2 else WAYS[::-1]:
            subject.measure(way, lost=False)
            if way != "new memory":
                subject.measure(way, lost=True)
    times, save = subject.times, subject.times.median("save")
    stalls = {way: times.median(way) - times.median("update") for way in WAYS}
    least = {way: times.least(way) - times.least("update") for way in WAYS}
    lost = {way: times.median(f"{way}: lost") for way in WAYS[:2]}
    return {
        "arithmetic": {
            "stall / save": {way: round(value / save, 3) for way, value in stalls.items()},
            "by least times": {way: round(value / times.least("save"), 3) for way, value in least.items()},
            "lost / save": {way: round(value / save, 3) for way, value in lost.items()},
        },
        "stall_ms": {way: round(1000 * value, 1) for way, value in stalls.items()},
        "least_stall_ms": {way: round(1000 * value, 1) for way, value in least.items()},
        "ms": {name: round(1000 * times.median(name), 1) for name in ("save", "update")},
        "state_MiB": case.bytes // MIB,
    }


def model(directory: Path, updates: int) -> dict[str, Any]:
    """Return the row of the model: seconds."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from steps import midstream
    from steps.shape import SHAPES

    from midstream_engine.checkpoint.saving.snapshot import Copy, snapshot
    from midstream_engine.computation import programs
    from midstream_engine.computation.setup import prepare
    from midstream_engine.computation.train_step import train_step
    from midstream_engine.config import load_config
    from midstream_engine.runtime.mesh import place

    shape, times = SHAPES["gpt2-10m"], Times()
    text = directory / "text.txt"
    words = shape.batches().next().ravel().tolist() * (1 + 400_000 // shape.tokens)
    text.write_text(" ".join(f"w{word}" for word in words))
    flags = ["--data.train_urls", str(text), "--trainer.id", "r", "--trainer.root", str(directory)]
    config = load_config([*midstream.flags(shape, directory), *flags]).config
    setup = prepare(config, str(directory), None, jax.devices()[:1])
    function = train_step(
        setup.optimizer, setup.schedule, setup.policy, setup.layout, eos=setup.eos, dropout=setup.dropout,
    )  # fmt: skip
    replicated = setup.layout.replicated()
    number = place(np.array(0, np.int32), replicated)
    batch = setup.batches.batch(0)
    tokens, mask = setup.cut.put(batch.tokens), setup.cut.put(batch.loss_mask)

    def compile_second() -> Any:
        abstract, example = setup.abstract, setup.cut.shape(setup.positions)
        step = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)
        with setup.layout.active():
            jitted = jax.jit(
                lambda _memory, *arguments: function(*arguments),
                donate_argnums=0, keep_unused=True, out_shardings=(setup.shardings, replicated),
            )  # fmt: skip
            return programs.compile_lowered(setup, jitted.lower(abstract, abstract, step, example, example))

    own, second = programs.compile_step(setup), compile_second()
    for _ in range(3):
        times.take("compile", programs.compile_step, setup)
        times.take("compile the second program", compile_second)
    reference = programs.compile_reference_losses(setup)
    state, result = own(setup.fresh_state(), number, tokens, mask)
    other, same = second(setup.fresh_state(), setup.fresh_state(), number, tokens, mask)
    pairs = zip(jax.tree.leaves((state, result)), jax.tree.leaves((other, same)), strict=True)
    equal = all(bool(jnp.array_equal(one, two)) for one, two in pairs)
    inputs = number, tokens, mask
    for _ in range(updates):
        state, _ = times.take("update", own, state, *inputs)
        times.take("reference losses", lambda model: reference.measure(model, batch).losses, state.model)
        times.take("copy", lambda tree: len(snapshot(tree, Copy.HOST)), state)
        state, _ = times.take("update", own, state, *inputs)
        memory, other = other, state
        state, _ = times.take("update into a second state", second, memory, other, *inputs)
    names = ("compile", "compile the second program", "update", "update into a second state", "reference losses")
    return {
        "model": {"second state / update": round(times.median(names[3]) / times.median("update"), 3), "equal": equal},
        "seconds": {name: round(times.median(name), 4) for name in (*names, "copy")},
    }


def main() -> None:
    """Print one JSON line for each part."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--mib", type=int, default=256, help="size of the state")
    flags.add_argument("--devices", type=int, default=4)
    flags.add_argument("--rounds", type=int, default=12, help="of the arithmetic")
    flags.add_argument("--updates", type=int, default=12, help="of the model; 0: without it")
    flags.add_argument("--where", type=Path, help="a directory on the disk to use (default: the system's temporary)")
    options = flags.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={2 * options.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    keep_host_memory()
    import warnings

    warnings.filterwarnings("ignore")
    import jax

    jax.config.update("jax_enable_compilation_cache", False)  # both programs are compiled
    with tempfile.TemporaryDirectory(prefix="midstream-bench-", dir=options.where) as name:
        case = Case(Path(name), options.mib, options.devices)
        print(json.dumps(arithmetic(case, options.rounds)), flush=True)
        del case
        if options.updates:
            print(json.dumps(model(Path(name), options.updates)), flush=True)


if __name__ == "__main__":
    main()
