"""Cases of one function each: what the hostile host answers to every function that the app declares.

`WAYS` are the commands and callers that meet a function with a real answer, or with a sample of one; the functions of
`operator_calls.SAMPLES` are called as they are. `NOT_COVERED` names the functions without a case, with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulators.hostile import cases, moves
from simulators.hostile.cases import Case
from simulators.hostile.fleet import BAD_RUN, Fleet
from simulators.hostile.operator_calls import CALLERS, SAMPLES
from simulators.hostile.values import RAW

HUGGING_FACE = '{"model_type": "gpt2", "n_embd": 64, "n_positions": 128, "n_layer": 2, "n_head": 2, "vocab_size": 300}'
LEVANTER = "model: {type: gpt2, hidden_dim: 64, num_layers: 2}\ntrainer: {num_train_steps: 9, train_batch_size: 4}\n"
NEOX = (
    "hidden_size: 64\nnum_attention_heads: 2\nseq_length: 128\nnum_layers: 2\ntrain_iters: 9\n"
    "train_micro_batch_size_per_gpu: 4\ndata_path: /nowhere/tokens\n"
)
SURVEYS: tuple[dict[str, Any], ...] = (
    {"kind": "huggingface", "configs": {"config.json": HUGGING_FACE}, "shapes": {}, "numbers": {"optimizer": 0}},
    {"kind": "levanter", "configs": {"/x/config.yaml": LEVANTER}, "shapes": {}, "numbers": {}},
    {
        "kind": "neox", "configs": {"neox.yml": NEOX}, "shapes": {"embedding": [384, 64], "mlp": [256, 64]},
        "numbers": {"optimizer": 1, "data_parallel": 1, "model_parallel": 1},
    },
)  # fmt: skip
# Texts that take much memory or time to read: in the files of a checkpoint that would be imported.
CONFIGS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b]\n"
    "d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nmodel: {type: [*e, *e, *e]}\n",
    "a: &a {x: 1}\nb: &b {<<: [*a, *a, *a, *a, *a, *a]}\nmodel: &m {type: gpt2, n: *m}\n",
    "model: {type: gpt2, hidden_dim: .inf}\n", "model: {num_layers: 99999999999999999999}\n", "- " * 60000 + "x\n",
    "trainer: {num_train_steps: .inf}\n", "trainer: {num_train_steps: 1e5, train_batch_size: 9999999999999}\n",
    "trainer: [1]\nmodel: 7\n", "!!python/object/apply:os.system ['true']\n", "model: {num_heads: 0}\n", "\x1b[2J: x\n",
    "trainer: {train_batch_size: [{start: 0, value: -1}]}\n", "model: {hidden_dim: -64}\n", "x: " + "y" * (300 << 10),
)  # fmt: skip
BUILT: tuple[dict[str, Any], ...] = (
    {"event": "line", "text": "Collecting jax==0.10.2"},
    {"event": "done", "python": "/envs/a/bin/python", "how": "pip"},
)
ESTIMATE = (
    '{"event": "estimate", "accelerators": "v5e-4", "fits": true, "fits_as_configured": true, "configured": 4, '
    '"largest": 8, "needed": null, "compile_seconds": 9.5, "devices": 4, "device_kind": "TPU v5 lite", '
    '"device_memory": 17179869184, "parameters": 1000, "state_bytes": 12000, "batch": 16, "tokens": 2048, '
    '"steps": 100, "per_device_parallelism": 4, "accumulation": 1, "step_seconds": 0.5, "step_seconds_low": 0.4, '
    '"step_seconds_high": 0.6}'
)
COMPILED: tuple[dict[str, Any], ...] = (
    {"event": "line", "text": '{"event": "compiling", "per_device_parallelism": 4, "accumulation": 1}'},
    {"event": "running", "memory": 1000},
    {"event": "line", "text": ESTIMATE},
    {"event": "done", "code": 0, "error": "", "seconds": 9.5, "memory": 1000},
)
DIVIDED: tuple[dict[str, Any], ...] = (
    {"event": "progress", "done": 4, "total": 8},
    {
        "event": "done", "ranks_before": 4, "ranks": 2, "files": 3, "bytes": 8, "digests": [["fp32", "ab" * 32]],
        "continued": 0,
    },
)  # fmt: skip
COPY_LINES: tuple[dict[str, Any], ...] = (
    {"event": "listening", "port": 7, "addresses": ["127.0.0.1"]},
    {"event": "present", "objects": ["arrays/a"]},
    {"event": "part", "path": "arrays/b", "chunks": [[0, 4, "ab"]]},
    {"event": "landed", "bytes": 4, "received": 4, "objects": ["arrays/c"], "ranges": [["arrays/b", 0, 4]]},
    {"event": "connected"},
    {"event": "done"},
)


@dataclass(frozen=True)
class Way:
    """Use of an answer: the functions, and the name of a caller, or a command line."""

    functions: tuple[str, ...]
    command: tuple[str, ...]
    lines: tuple[dict[str, Any], ...] = ()  # a program's, which does not run
    beat: bool = False  # the probe's lines of the host's own metrics


WAYS: Mapping[str, Way] = {
    "cost": Way(("runs.run_times.read",), ("--cost",)),
    "repair": Way(("runs.record_repair.evidence",), ("--repair", BAD_RUN, "--on", "bad")),
    "check": Way(("machine.environments.run_command",), ("--check", "bad")),
    "import": Way(("trainers.checkpoint_survey.survey",), ("--migrate", "bad:/x", "--to", "good", "--dry-run")),
    "system series": Way(("machine.probe.main",), ("--metrics", BAD_RUN, "--system", "1"), beat=True),
    "log page": Way(("runs.log_pages.page",), ("log page",)),
    "log search": Way(("runs.log_pages.search",), ("log search",)),
    "inputs": Way(("machine.run_inputs.problems",), ("inputs",)),
    "environment": Way(("machine.environments.find", "machine.environments.ready"), ("environment",)),
    "packages": Way(("machine.environments.run_command",), ("packages",)),
    "links": Way(("machine.network.reach",), ("links",)),
    "links of good": Way(("machine.network.reach",), ("links of good",)),
    "listen": Way(("machine.network.listen",), ("links",)),
    "file systems": Way(
        ("machine.network.write_token", "machine.network.find_tokens", "machine.network.delete_token"),
        ("file systems",),
    ),
    "worker": Way(("machine.preemption_notices.worker",), ("worker",)),
    "build": Way(("machine.environments.build",), ("build",), BUILT),
    "conda tool": Way(("machine.conda_environments.find",), ("conda tool",)),
    "conda build": Way(("machine.conda_environments.build",), ("conda build",), BUILT),
    "estimate": Way(("machine.compilation.estimate",), ("estimate",), COMPILED),
    "divide": Way(("driver.reshard.program.divide",), ("divide",), DIVIDED),
    **{
        name: Way((name,), (name,), COPY_LINES)
        for name in (
            "bucket.session.serve",
            "bucket.disk_upload.upload",
            "bucket.disk_download.download",
            "bucket.receiver.receive",
            "bucket.sender.send",
            "copy.stream_server.receive",
            "copy.stream_server.send",
            "copy.tls_peer.answer",
        )
    },
    **{name: Way((name,), (name,)) for name in SAMPLES if name != "machine.preemption_notices.worker"},
}
NOT_COVERED: Mapping[str, str] = {}


def covered() -> set[str]:
    """Return the functions that some case of the campaign has the hostile host answer."""
    found = {name for names in (*cases.CALLS.values(), *cases.REPORTS.values()) for name in names}
    found |= {name for way in WAYS.values() for name in way.functions}
    programs = ("machine.probe.main", "copy.sender.send", "copy.growing_checkpoint.follow")
    return found | {*moves.CALLED, *programs}


def draw(fleet: Fleet, seed: int, number: int) -> Case:
    """Return the case of a number, always the same: each way has its turn."""
    rng = random.Random(f"{seed}-{number}-call")
    name = sorted(WAYS)[number % len(WAYS)]
    way = WAYS[name]
    function = rng.choice(way.functions)
    spec: dict[str, Any] = {"place": "rpc", "seed": f"{seed}-{number}", "function": function}
    raw = rng.choice(RAW[:10])
    action = rng.choice(("value", "value", "value", "value", "value", raw))
    if way.beat:
        spec.update(place="probe", event="beat", at=rng.choice((0, 1)), keep=["event"])
    elif way.lines or function == "machine.network.listen":
        spec.update(place="report", at=rng.randrange(max(1, len(way.lines))), keep=rng.choice(([], ["event"])))
        spec.update({"lines": way.lines} if way.lines else {})
    else:
        action = rng.choice((action, action, action, "envelope", "error"))
    if name == "import":
        survey = {"directory": "/x", "step": 5, "size": 1 << 20, **rng.choice(SURVEYS)}
        if rng.random() < 0.5:
            text = rng.choice(CONFIGS)
            survey, action = {**survey, "configs": dict.fromkeys(survey["configs"], text)}, "as it is"
        spec["answer"] = survey
    elif function in SAMPLES and name == function:
        spec["answer"] = SAMPLES[function]
    spec["action"] = action
    command = [*way.command]
    if not command[0].startswith("--"):
        command = ["call", command[0], str(fleet.file)]
    elif rng.random() < 0.3:
        command.append("--json")
    assert command[0] != "call" or way.command[0] in CALLERS or way.command[0] in (*SAMPLES, function)
    return Case("call", f"{name}: {function}: {action}", [command], spec, shared=True)
