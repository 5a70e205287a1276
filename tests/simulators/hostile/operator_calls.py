"""Uses of the answer of one function by the operator's program: the app's own callers, and plain calls.

`SAMPLES` are well-formed answers of functions that do not run in a case: the hostile host changes and sends these.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from midstream.compare.compiler import Compiler
from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, HostConfig, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports, run_program
from midstream.hosts.rpc.report_types import BUILD, BUILD_CONDA, COPY
from midstream.hosts.rpc.result_checks import event_of
from midstream.install import conda_environment, environment, package_check
from midstream.install.install_progress import InstallProgress
from midstream.install.reporter import reporter_of
from midstream.launch import host_links
from midstream.launch.input_check import RunInputs, check_inputs
from midstream.operations import reshard
from midstream.watch import host_log
from midstream.watch.log_query import LogQuery
from midstream_core import accelerator_types, records
from support.remote_functions import function_of

IDENTITY: dict[str, Any] = {"boot_id": "x", "pid": 7, "start_ticks": 1}
STATUS: dict[str, Any] = {"state": "training", "step": 5, "process": 0, "heartbeat": 1.5, **IDENTITY}
STATE: dict[str, Any] = {"status": STATUS, "running": True}
FENCE: dict[str, Any] = {"format": 1, "epoch": 2, "owner": "good"}

SAMPLES: Mapping[str, Any] = {
    "copy.growing_checkpoint.commit": None,
    "copy.growing_checkpoint.tidy": None,
    "copy.history.set_aside": "attempts/001/metrics.jsonl.aside-0123456789ab",
    "bucket.access_problem.able": {"why": "403", "hint": "give the account access"},
    "bucket.tree.check": "another digest",
    "bucket.tree.describe": {"manifest": "{}", "problems": [["arrays/a", "missing"]]},
    "bucket.tree.digests": ["ab" * 32, None],
    "bucket.tree.missing": [["arrays/a", "missing"]],
    "trainers.checkpoint_survey.sizes": [4096, None],
    "trainers.output_survey.survey_output": {
        "checkpoints": ["out/step-1"],
        "metrics": [{"path": "out/a.csv", "source": "csv", "first": 1}],
        "complete": True,
    },
    "trainers.program_help.read_help": {"text": "usage: train.py [--lr LR]", "problem": ""},
    "machine.checks.rehearse": {"code": 0, "output": '{"event": "rehearsal"}', "error": ""},
    "machine.environments.find": {
        "uv": None, "python": "/usr/bin/python3.11", "version": "3.11.7", "machine": "x86_64", "newest": "3.11.7",
    },
    "machine.environments.ready": {"python": "/envs/a/bin/python", "how": "pip", "base": "/usr/bin/python3.11"},
    "machine.google_identity.own": {"account": "a@b.iam.gserviceaccount.com", "source": "its metadata server"},
    "machine.preemption_notices.read": {"kind": "shutdown", "message": "shutdown at 12:00"},
    "machine.preemption_notices.worker": 0,
    "runs.engine_archive.install": "/root/engines/a",
    "runs.engine_archive.installed": "/root/engines/a",
    "runs.attempts.release_claim": None,
    "runs.attempt_secrets.remove_secrets": None,
    "runs.attempts.start": IDENTITY,
    "runs.attempts.submit": "17",
    "runs.writers.writers": [{"attempt": 7, "process": 0, "state": "running", "why": "runs", "epoch": 1, "start": 1}],
    "runs.leftovers.leftovers": [
        {"path": "checkpoints/step-4-a001", "kind": "partial", "bytes": 40, "kept": "", "changed": 1.5},
    ],
    "runs.leftovers.remove": ["checkpoints/step-4-a001"],
    "runs.losses.rows": [{"global_step": 5, "train/loss": 2.5, "batch_digest": "ab", "time": 1.5}],
    "runs.ownership.acquire": FENCE,
    "runs.ownership.adopt": "ownership.json.damaged-1",
    "runs.ownership.allow_start": None,
    "runs.ownership.put_chain": None,
    "runs.ownership.release": None,
    "runs.ownership.seal": {**FENCE, "sealed_step": 8},
    "runs.record_repair.put": "fence.json.damaged",
    "runs.run_state.attempt_of_migration": {**STATE, "attempt": 2, "epoch": 2, "action": "restore"},
    "runs.run_state.claim_attempt": 2,
    "runs.run_state.owner_records": {"fence": FENCE, "ownership": "{}", "problem": ""},
    "runs.run_state.signal": True,
    "runs.run_state.trainer_evidence": None,
    "runs.checkpoint_pins.unpin": None,
    "runs.slurm.allocation": {"starts": 1.5, "nodes": "n[1-2]", "partition": "gpu", "gres": ["gpu:h100:8(S:0-1)"]},
    "runs.slurm.commands": {"sbatch": "slurm 23.02", "squeue": "slurm 23.02"},
    "runs.slurm.job_of_attempt": {
        "job": "17", "state": "PENDING", "reason": "Priority", "started": 1.5, "ends": 2.5,
    },
    "runs.standby_state.await_answer": {**STATE, "answered": True},
    "runs.standby_state.command": {"action": "save", "epoch": 1, "migration": "m", "sequence": 1},
    "runs.standby_state.keep_config": None,
    "runs.standby_state.parameter_drift": None,
    "runs.standby_state.put_config": None,
    "runs.standby_state.renew": None,
    "runs.standby_state.take_over": {**STATE, "outcome": "sent", "sequence": 3},
    "runs.unknown_process.unknown_process": {"attempt": 1, "host": "n1", "mark": [1, 2]},
    "trainers.processes.end": [7],
    "trainers.processes.look": {
        "directory": "/x", "programs": ["train.py"], "imports": ["torch"], "run_file": "trainer: script", "processes": [
            {"pid": 7, "started": 9, "parent": 0, "words": ["python", "train.py"], "executable": "/a",
             "directory": "/x", "variables": ["PATH"], "distributed": {"WORLD_SIZE": "2"}}],
    },
    "trainers.recorded_epoch.recorded_epoch": {"step": 5, "sized": True},
    "trainers.stored_state.newest": {
        "directory": "/x", "step": 5, "size": 4096, "model": True, "optimizer": True, "scheduler": True,
        "random_states": 1,
        "data_position": "stored", "reshards": True, "advice": ["x"], "problem": "", "incomplete": [["a", "why"]],
        "loader_ranks": 2, "counted_name": 3, "words": ["streaming"], "elsewhere": "/tmp/soon", "unread": "",
        "model_ranks": 2,
    },
    "trainers.travelling_files.snapshot": {"digest": "ab" * 32, "files": 2, "size": 100},
    "verify.objects.check": "another digest",
    "verify.objects.digests": ["ab" * 32, None],
}  # fmt: skip


def _arguments(name: str, host: Host) -> dict[str, Any]:
    """Return arguments for a function that does not run: one for each of its required parameters."""
    values: dict[str, Any] = {
        "root": host.root, "run_id": "r", "attempt": 1, "number": 1, "migration": "m", "epoch": 1, "owner": "good",
        "directory": f"{host.root}/x", "access": {}, "seconds": 1.0, "patience": 1.0, "argv": ["true"], "env": {},
    }  # fmt: skip
    parameters = inspect.signature(function_of(name)).parameters.values()
    return {each.name: values.get(each.name, "x") for each in parameters if each.default is each.empty}


class Operator:
    """The fleet as the operator's program has it."""

    def __init__(self, fleet: Fleet, hosts: HostPool) -> None:
        self.fleet, self.hosts = fleet, hosts
        self.bad, self.good = hosts.get("bad"), hosts.get("good")
        self.config: HostConfig = fleet.hosts["bad"]
        self.log = records.RunPaths(self.bad.root, "r").attempt(1).log(0)


def call(at: Operator, name: str) -> None:
    """Run one of `CALLERS`, or call the function of that name and leave its result once it is checked."""
    if name in CALLERS:
        CALLERS[name](at)
    elif name in SAMPLES:
        at.bad.call(function_of(name))(**_arguments(name, at.bad))
    else:
        _read_lines(at, name)


def _page(at: Operator) -> None:
    host_log.read_page(at.bad, at.log, -65536, 1 << 40)


def _search(at: Operator) -> None:
    print(host_log.search(at.bad, at.log, LogQuery(("step",), (), True), 40).count)


def _inputs(at: Operator) -> None:
    texts = ({"field": "data.train_urls", "url": "/nowhere/*.txt", "files": ["/nowhere/*.txt"], "count": 1},)
    inputs = RunInputs("/nowhere/tokenizer.json", "x", "", texts, {"wandb": "trainer.tracker"})
    check_inputs([at.bad], [at.config], Target("bad", ("bad",)), "new", inputs, lambda line: None)


def _needs(at: Operator) -> None:
    environment.environment_needs(at.bad, dataclasses.replace(at.config, python=None, variant="cpu"))


def _packages(at: Operator) -> None:
    package_check.missing_modules(at.bad, at.config, "python3", ["wandb"])


def _build(at: Operator) -> None:
    arguments: dict[str, Any] = {"root": at.bad.root, "name": "x", "lock": "", "python": "x", "uv": None, "env": {}}
    with run_program(at.bad, BUILD)(**arguments) as lines:
        environment._built("bad", lines, InstallProgress("", {}), reporter_of(None))


def _conda_tool(at: Operator) -> None:
    found = conda_environment.find_tool(at.bad, at.config)
    listed = f"# platform: {found.platform}\n@EXPLICIT\nhttps://x.example/{found.platform}/a-1-0.conda#{'a' * 64}\n"
    print(conda_environment.described(found), conda_environment.list_for("bad", found.platform, listed).size)


def _conda_build(at: Operator) -> None:
    arguments: dict[str, Any] = {
        "root": at.bad.root, "name": "x", "packages": "", "requirements": "", "tool": "x", "kind": "conda", "env": {},
    }  # fmt: skip
    with run_program(at.bad, BUILD_CONDA)(**arguments) as lines:
        print([conda_environment.created("bad", line, reporter_of(None)) for line in lines])


def _estimate(at: Operator) -> None:
    compiler = Compiler(at.bad, at.config, "python3", at.bad.root)
    accelerators = accelerator_types.parse("v5e-4")
    assert accelerators is not None
    print(compiler.estimate("model: {}\n", (), accelerators, reporter_of(None)))


def _read_lines(at: Operator, name: str) -> None:
    """Start a program at one end of a copy, and read its lines as a copy does."""
    process = start_program(at.bad, function_of(name))(**_arguments(name, at.bad))
    try:
        for line in reports(process, name):
            event_of("bad", name, COPY, line)
    except ValueError as error:
        raise MidstreamError(f"bad: {name}: a line that is no JSON: {error}") from None
    finally:
        process.close()


def _divide(at: Operator) -> None:
    reshard.reshard(at.fleet, at.hosts, "bad:/x", "/y", 2, lambda done, total: None)


CALLERS: Mapping[str, Callable[[Operator], object]] = {
    "log page": _page,
    "log search": _search,
    "inputs": _inputs,
    "environment": _needs,
    "packages": _packages,
    "build": _build,
    "conda tool": _conda_tool,
    "conda build": _conda_build,
    "estimate": _estimate,
    "divide": _divide,
    "links": lambda at: host_links.all_links([at.bad, at.good], {}),
    "links of good": lambda at: host_links.meet(at.good, [at.bad]),
    "file systems": lambda at: host_links.group_by_file_system([at.bad, at.good]),
    "worker": lambda at: host_links.check_numbers([at.bad]),
}
