"""Compile the step for accelerators that are not here, and read the compiled program: memory, collectives, cycles.

    make compilers compilers-cuda
    python benchmarks/aot.py [--model llama-1b] [--topology v5e:4x4] [--option NAME=VALUE ...] [--set KEY=VALUE ...]
        [--peer levanter=PYTHON ...] [--peer-option NAME=VALUE ...] [--exposed] [--json]
    python benchmarks/aot.py --search FILE [--budget SECONDS] [--model llama-1b] [--topology v5e:4x4]

It needs neither a TPU nor a GPU: their compilers make the program that a slice, or hosts with GPUs (``--topology
h100x8``), would run. A program with a billion parameters takes 1 to 2 minutes on two idle cores and 2 GiB of memory,
that for GPUs 20 seconds; GPUs have no cycles, and what cuDNN needs beside operands and results is not in temporaries.
``--model`` is ``llama-1b`` (configs/llama_1b.yaml: batch 256 x 4096 tokens, micro-batches of 4 sequences a device,
everything computed again in the backward pass), ``gpt2-124m`` (configs/gpt2_small.yaml) or ``llama-tiny``. ``--option``
is one of the compiler; ``null`` removes one of the engine's. ``--set`` changes a key of the configuration.

Bytes are those that one device sends in one step (see midstream_engine.compiled_program.collectives); *exposed* are
those during which it computes nothing. *Ideal* is what fully sharded training has to send: for each micro-batch two
gathers of the parameters, forward and backward, and one reduce-scatter of the gradients, in the compute precision.
Cycles are the compiler's estimate of everything but collectives and kernels; *step* is the estimate of --compare.
``--exposed`` lists the collectives that nothing hides, by array.

``--peer`` compiles the step of another trainer for the same shape, in its own environment with the same jax: levanter
(``pip install marin-levanter jax==VERSION``) or maxtext (Python 3.12, ``pip install maxtext jax==VERSION`` with the
packages that it imports; Llama alone), with the compiler's defaults or ``--peer-option``. For GPUs that environment
needs jax's plugin (``pip install --no-deps jax-cuda12-plugin==VERSION jax-cuda12-pjrt==VERSION``). Levanter then takes
TransformerEngine where that is installed, else its own attention in jax (its loops have no estimated time); MaxText
takes cuDNN's attention, as its own configurations do by TransformerEngine, and is compiled for h100x8 alone.

``--search`` compiles with other rematerialisation, micro-batches, options of the compiler and blocks, and prints the
fastest by estimate that fits, as lines to paste into a configuration (``benchmarks/steps/program_search.py``). Each
program is a JSON line in FILE at once; started again, it continues. ``--budget`` ends it after the program that is
being compiled then, Ctrl-C at once; ``--budget 0`` prints the fastest of FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "engine")]
os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are those of the topology
GIB, GB = 1 << 30, 1e9

# The bytes tokenizer with a padded vocabulary has the shape of the model without its tokenizer's file.
MODELS = {
    "llama-1b": ("llama_1b.yaml", ("--model.pad_vocab_to_multiple", "128256")),
    "gpt2-124m": ("gpt2_small.yaml", ("--model.pad_vocab_to_multiple", "50304")),
    "llama-tiny": ("llama_tiny.yaml", ("--model.gradient_checkpointing", "true", "--trainer.mp", "p=f32,c=bfloat16")),
}
PEERS = ("levanter", "maxtext")
HEAD = (
    "| by | model | topology | options | arguments / temporary / peak GiB | sent GB | exposed | ideal | sent / ideal | "
    "cycles | step |"
)
DROPPED = ("tokenizer", "eos_token", "train_urls", "validation_urls", "cache_dir")


def plan_for(model: str, topology: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the engine's plan of a model on a topology; ``values`` by keys of the configuration."""
    from midstream_engine.compiled_program.gpu_topologies import gpu_devices, names_gpus
    from midstream_engine.compiled_program.topologies import tpu_devices
    from midstream_engine.computation.setup import make_plan

    config = configuration(model, values)  # what is wrong with it is reported before a compiler is looked for
    return make_plan(config, gpu_devices(topology) if names_gpus(topology) else tpu_devices(topology))


def measure(plan: Any, model: str, topology: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the program of one step on ``topology`` says of itself. Bytes are those of one device."""
    from midstream_engine.computation.programs import compile_step

    began = time.monotonic()
    compiled = compile_step(plan, options=options)
    seconds = time.monotonic() - began
    analysis = compiled.memory_analysis()
    memory = {
        "arguments": analysis.argument_size_in_bytes, "temporary": analysis.temp_size_in_bytes,
        "peak": analysis.peak_memory_in_bytes,
    }  # fmt: skip
    facts = {"by": "midstream", "options": dict(options), "compile_seconds": round(seconds)}
    return {**facts, **read(plan, model, topology, compiled.as_text()), **memory}


def read(plan: Any, model: str, topology: str, text: str) -> dict[str, Any]:
    """Return what the text of a program for the plan's shape says."""
    from steps.exposed_collectives import exposed

    from midstream_core.accelerator_types import GPU, parse
    from midstream_engine.compiled_program.collectives import by_kind, collectives, total_bytes
    from midstream_engine.compiled_program.gpu_roofline import gpu_step_time
    from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles
    from midstream_engine.compiled_program.roofline import step_time

    found, accelerators = collectives(text), parse(topology)
    shards, width = plan.layout.batch_shards, plan.policy.compute_dtype.itemsize
    times = None
    if accelerators is not None:
        # The attention of Levanter in jax is a loop with turns that depend on another loop: its time is not known.
        with suppress(ValueError):
            times = (gpu_step_time if accelerators.platform == GPU else step_time)(text, accelerators)
    return {
        "model": model, "topology": topology, "devices": plan.layout.mesh.size, "micro_batches": plan.cut.micro,
        "parameters": plan.parameters, "collective_bytes": total_bytes(found),
        "exposed_bytes": total_bytes(found, exposed=True),
        "ideal_bytes": 3 * plan.cut.micro * plan.parameters * width * (shards - 1) / shards,
        "by_kind": {kind: sent for kind, sent in by_kind(found).items() if sent},
        "exposed": exposed(found),
        "cycles": estimated_cycles(computations(text)),
        # Without the arithmetic of its kernels the time of a program is not known.
        "step_seconds": times.seconds if times is not None and times.kernels else None,
    }  # fmt: skip


def measure_peer(
    plan: Any, name: str, python: str, model: str, topology: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the same of another trainer's program for the plan's model, batch and topology.

    Raises:
        SystemExit: It does not compile.
    """
    from midstream_core.accelerator_types import parse
    from midstream_engine.compiled_program.gpu_topologies import cudnn_number, describe_gpus, names_gpus
    from midstream_engine.compiled_program.topologies import tpu_library

    gpus, accelerators = None, parse(topology)
    if names_gpus(topology):
        gpus = {**vars(describe_gpus(topology)), "cudnn": cudnn_number()}
    elif accelerators is None:
        raise SystemExit(f"aot.py: --peer {name}: {topology}: not in the table of accelerators")
    with tempfile.TemporaryDirectory(prefix="midstream-aot-") as directory:
        text = Path(directory, "program.txt")
        request = {
            "shape": shape_of(plan), "topology": topology, "gpus": gpus,
            "accelerators": None if gpus else rented_name(accelerators),
            "examples": plan.cut.size // plan.layout.batch_shards, "micro_batches": plan.cut.micro,
            "options": dict(options), "library": str(tpu_library()), "text": str(text),
        }  # fmt: skip
        script = REPOSITORY / "benchmarks" / "steps" / f"{name}_program.py"
        done = subprocess.run([python, str(script), json.dumps(request)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            raise SystemExit(f"aot.py: --peer {name}: {last[:500]}")
        facts = {"by": name, "options": dict(options), **json.loads(done.stdout.splitlines()[-1])}
        return {**facts, **read(plan, model, topology, text.read_text())}


def shape_of(plan: Any) -> dict[str, Any]:
    """Return a plan's model and batch as ``steps.shape.Shape`` has them."""
    model, trainer = plan.config.model, plan.config.trainer
    kind = "llama" if hasattr(model, "num_kv_heads") else "gpt2"
    return {
        "kind": kind, "vocab": model.padded_vocab(plan.tokenizer.vocab_size), "seq_len": model.seq_len,
        "hidden": model.hidden_dim, "layers": model.num_layers, "heads": model.num_heads, "kv_heads": model.kv_heads,
        "mlp": model.mlp_dim, "batch": plan.cut.examples, "compute": trainer.precision().compute,
        "remat": model.gradient_checkpointing is True,
    }  # fmt: skip


def rented_name(accelerators: Any) -> str:
    """Return the name of a slice with its number: ``v5e-16`` of ``v5e:4x4``."""
    from midstream_core.accelerator_types import parse

    generation = accelerators.topology.partition(":")[0]
    names = (f"{generation}-{number}" for number in range(1, 2 * accelerators.devices + 1))
    return next(name for name in names if _same(parse, name, accelerators.topology))


def _same(parse: Any, name: str, topology: str) -> bool:
    try:
        return parse(name).topology == topology
    except ValueError:
        return False


def search(model: str, topology: str, path: Path, budget: float) -> int:
    """Search the fastest configuration and print it; return the exit code."""
    from steps import program_search

    from midstream_core.accelerators import find_accelerator
    from midstream_engine.computation.compile_options import compile_options

    def measured(values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = measure(plan_for(model, topology, values), model, topology, {})
        except (ValueError, RuntimeError) as error:  # values that do not go together, or more memory than there is
            return {"error": " ".join(str(error).split())[:300]}
        return {name: value for name, value in found.items() if name not in ("options", "model", "topology")}

    def say(row: Mapping[str, Any]) -> None:
        print(json.dumps(row), file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for the compiler, and lose its program
    plan = plan_for(model, topology)
    grid = list(program_search.kinds(plan, compile_options(plan.layout, {})))
    device = find_accelerator(plan.layout.mesh.devices.flat[0].device_kind)
    name = {"model": model, "topology": topology}
    found = program_search.search(
        path, name, grid, measured, memory=device.memory if device else None, budget=budget, say=say
    )
    if found is None:
        print(f"aot.py: --search: no program that fits is in {path} (hint: a longer --budget)", file=sys.stderr)
        return 1
    first = program_search.rows_of(path)[program_search.key(name, {})]
    print(f"# {model} on {topology}: {estimate(found.row)}; the configuration as it is: {estimate(first)}")
    print(f"# {found.tried} programs; {found.left} more were not compiled within --budget")
    print(program_search.pasted(found.values) or "# nothing else is faster by estimate")
    return 0


def estimate(row: Mapping[str, Any]) -> str:
    """Return a program's estimate, and its memory on a device."""
    if "error" in row:
        return f"no program ({row['error']})"
    time = (
        f"{row['cycles'] / 1e9:.3g} G cycles" if row["step_seconds"] is None else f"{row['step_seconds']:.3g} s a step"
    )
    return f"{time}, {(row['arguments'] + row['temporary']) / GIB:.2f} GiB"


def configuration(model: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the configuration of a model, on the bytes tokenizer; ``values`` by keys of the configuration."""
    import yaml

    from midstream_engine.config import load_config

    name, flags = MODELS[model]
    content = yaml.safe_load((REPOSITORY / "configs" / name).read_text())
    content["data"] = {key: value for key, value in content["data"].items() if key not in DROPPED}
    content["data"] |= {"tokenizer": "bytes", "train_urls": ["stdlib:json/*.py"]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(content, file)
        file.flush()
        more = [word for key, value in (values or {}).items() for word in (f"--{key}", yaml_word(value))]
        return load_config(["--config_path", file.name, *flags, *more]).config


def yaml_word(value: Any) -> str:
    """Return a value as a flag has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def row(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    memory = " / ".join(f"{found[part] / GIB:.2f}" for part in ("arguments", "temporary", "peak"))
    sent, exposed, ideal = (found[f"{part}_bytes"] / GB for part in ("collective", "exposed", "ideal"))
    given = {**found.get("values", {}), **found["options"]}
    options = " ".join(f"{name}={value}" for name, value in given.items()) or "-"
    ratio = f"{sent / ideal:.2f}" if ideal else "-"
    step = "-" if found["step_seconds"] is None else f"{found['step_seconds']:.3g} s"
    return (
        f"| {found['by']} | {found['model']} | {found['topology']} | {options} | {memory} | {sent:.1f} | {exposed:.1f} "
        f"| {ideal:.1f} | {ratio} | {found['cycles'] / 1e9:.2f} G | {step} |"
    )


def exposed_rows(found: dict[str, Any]) -> list[str]:
    """Return the rows of the exposed collectives of a program."""
    name = f"{found['by']} | {found['model']} | {found['topology']}"
    return [
        f"| {name} | {one['kind']} | {one['array']} | {one['runs']} | {one['bytes'] / GB:.2f} |"
        for one in found["exposed"]
    ]


def pairs(parser: argparse.ArgumentParser, flag: str, values: list[str]) -> dict[str, str]:
    """Return the values NAME=VALUE of a flag."""
    wrong = [value for value in values if "=" not in value]
    if wrong:
        parser.error(f"{flag} {wrong[0]}: write NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-1b")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--peer-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--search", type=Path, metavar="FILE")
    parser.add_argument("--budget", type=float, default=3600.0, metavar="SECONDS", help="of --search; default 3600")
    parser.add_argument("--exposed", action="store_true", help="list the collectives that nothing hides")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options: dict[str, Any] = pairs(parser, "--option", given.option)
    options = {name: None if value == "null" else value for name, value in options.items()}
    values = pairs(parser, "--set", given.set)
    peers, theirs = (
        pairs(parser, f"--{name}", getattr(given, name.replace("-", "_"))) for name in ("peer", "peer-option")
    )
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"--peer {unknown[0]}: write one of {', '.join(PEERS)}")
    from midstream_engine.config import ConfigError

    if given.search and (options or values or peers):
        parser.error("--search: it chooses the options; write it without --option, --set and --peer")
    try:
        if given.search:
            return search(given.model, given.topology, given.search, given.budget)
        plan = plan_for(given.model, given.topology, values)
        rows = [{**measure(plan, given.model, given.topology, options), "values": values}]
        rows += [
            measure_peer(plan, name, python, given.model, given.topology, theirs) for name, python in peers.items()
        ]
    except ConfigError as error:
        print(f"aot.py: {error}", file=sys.stderr)
        return 2
    if given.json:
        for found in rows:
            print(json.dumps(found))
    else:
        print(HEAD)
        print("|---" * 4 + "|---:" * 7 + "|")
        for found in rows:
            print(row(found))
        if given.exposed:
            print("\n| by | model | topology | exposed | array | runs | GB |\n" + "|---" * 5 + "|---:" * 2 + "|")
            for found in rows:
                print("\n".join(exposed_rows(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
