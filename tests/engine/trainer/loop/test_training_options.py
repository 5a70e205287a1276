"""Options of the trainer in complete attempts: one process runs all, tests read its files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from midstream_core import records
from midstream_engine.attempt.resume import find_origin, restore
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.computation.setup import make_plan
from midstream_engine.config import load_config
from midstream_engine.optim.averaging import ModelAverage
from midstream_engine.runtime.attempt_record import open_attempt
from support.checkpoints.checkpoint_states import save
from support.engines.engine_process import train_all
from support.engines.engine_runs import environment
from support.paths import CONFIGS

pytestmark = [
    pytest.mark.drawn,
    pytest.mark.timeout(600),  # the first test waits for all attempts, which a crowded machine makes slow
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
FLAGS = [
    "--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--model.seq_len", "16", "--model.hidden_dim", "16",
    "--model.num_heads", "2", "--trainer.jax_config.jax_persistent_cache_min_compile_time_secs", "0.0",
]  # fmt: skip


def run(name: str, steps: int, *flags: str) -> list[str]:
    return [*FLAGS, "--trainer.id", name, "--trainer.num_train_steps", str(steps), *flags]


AVERAGED = [
    "--trainer.checkpointer.keep",
    "[{every: 4}]",
    "--trainer.model_averaging.beta",
    "0.5",
    "--optimizer.skip_bad_steps",
    "4",
]
SKIPPING = ["--optimizer.skip_bad_steps", "{rolling_interval_length: 2, sigma_factor: 1.0e-9}"]
KEPT = ["--trainer.checkpointer.keep", "[{every: 3}]", *SKIPPING]
VALIDATED = ["--data.validation_urls", "stdlib:json/tool.py", "--trainer.max_eval_batches", "2"]


class Attempts:
    """Files of the attempts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        halves = [
            {"start": 0, "value": 8}, {"start": 2, "value": 4},
        ]  # fmt: skip
        begun = [
            "--trainer.initialize_model_from", str(root / "runs" / "planned"), *AVERAGED, "--trainer.seed", "9",
            "--data.train_urls", "stdlib:email/*.py",
        ]  # fmt: skip
        runs = {
            "rehearsed": run("rehearsed", 2, *VALIDATED),
            "first": run("grown", 3, *SKIPPING),
            "grown": run("grown", 6, *KEPT, "--trainer.train_batch_size", "16"),
            "shrunk": run("grown", 8, *KEPT, "--trainer.train_batch_size", "4"),
            "planned": run("planned", 4, "--trainer.train_batch_size", json.dumps(halves)),
            "averaged": run("averaged", 4, *AVERAGED, *VALIDATED, "--trainer.steps_per_eval", "2"),
            "averaged on": run("averaged", 6, *AVERAGED, *VALIDATED, "--trainer.steps_per_eval", "2"),
            "begun": run("begun", 2, *begun),
            "begun on": run("begun", 3, *begun),
            "profiled": run("profiled", 4, "--trainer.profiler", "true", "--trainer.profiler_start_step", "1",
                            "--trainer.profiler_num_steps", "2", "--trainer.profiler_perfetto_link", "true",
                            "--trainer.log_dir", str(root / "logs")),
            "no accelerator": run("refused", 2, "--trainer.require_accelerator", "true"),
            "no option": run("refused", 2, "--trainer.jax_config.jax_no_such_option", "1"),
            "no source": run("refused", 2, "--trainer.initialize_from", str(root / "nowhere")),
        }  # fmt: skip
        self.rehearsal = subprocess.run(
            [sys.executable, "-m", "midstream_engine.rehearse", *runs["rehearsed"], "--memory_limit=1GiB"],
            env=environment(root, 1), capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        self.rehearsed = self.listing()
        codes, self.log = train_all(root, [runs["rehearsed"]])
        self.after_run = self.listing()
        codes += train_all(root, list(runs.values())[1:])[0]
        self.codes = dict(zip(runs, codes, strict=True))

    def listing(self) -> set[str]:
        """All files under the root, except access times of programs."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.name.endswith("-atime")}

    def rows(self, run: str, attempt: int = 1) -> list[dict[str, Any]]:
        path = self.root / "runs" / run / "attempts" / f"{attempt:03d}" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def train(self, run: str, checkpoint: str) -> dict[str, Any]:
        return json.loads((self.root / "runs" / run / "checkpoints" / checkpoint / "train.json").read_text())["state"]

    def text(self, run: str, attempt: int) -> str:
        return (self.root / "runs" / run / "attempts" / f"{attempt:03d}" / "log-0.txt").read_text()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    return Attempts(tmp_path_factory.mktemp("root"))


def test_attempts_ended_as_expected(left: Attempts) -> None:
    refused = {"no accelerator": 2, "no option": 2, "no source": 1}
    assert left.codes == {name: refused.get(name, 0) for name in left.codes}


def test_rehearsal_reports_memory_and_touches_no_run(left: Attempts) -> None:
    assert left.rehearsal.returncode == 0, left.rehearsal.stderr
    (line,) = left.rehearsal.stdout.splitlines()
    report = json.loads(line)
    assert [program["name"] for program in report["programs"]] == [
        "step",
        "reference_losses",
        "evaluation",
        "initialisation",
    ]
    step = report["programs"][0]
    assert (step["batch"], step["per_device_parallelism"], step["accumulation"]) == (8, 8, 1)
    assert step["memory"]["arguments"] > report["parameters"] * 4 * 3  # parameters and two moments
    parts = ("arguments", "results", "temporary", "code")
    assert step["memory"]["total"] == sum(step["memory"][part] for part in parts)
    assert report["fits"] is True
    assert not [name for name in left.rehearsed if not name.startswith("compile-cache")]


def test_run_after_rehearsal_compiles_nothing(left: Attempts) -> None:
    programs = {name for name in left.after_run if name.startswith("compile-cache")}
    assert len(programs) > 4
    assert programs == {name for name in left.rehearsed if name.startswith("compile-cache")}


def test_search_finds_largest_batch_that_fits() -> None:
    from midstream_engine.computation.programs import compile_step
    from midstream_engine.rehearse import largest_that_fits, memory

    def needs(per_device: int) -> int:
        flags = ["--trainer.per_device_parallelism", str(per_device), "--trainer.model_axis_size", "8"]
        return memory(compile_step(make_plan(load_config([*FLAGS, *flags]).config)))["total"]

    config = load_config([*FLAGS, "--trainer.model_axis_size", "8"]).config
    four, eight = needs(4), needs(8)
    assert four < eight
    assert largest_that_fits(config, four) == 4
    assert largest_that_fits(config, eight - 1) == 4
    assert largest_that_fits(config, 1000) is None


def test_changed_batch_size_continues_at_the_same_data(left: Attempts) -> None:
    schedule = [{"start": 0, "size": 8}, {"start": 3, "size": 16}]
    assert left.train("grown", "step-6-a002")["batch_schedule"] == schedule
    assert left.train("grown", "step-6-a002")["next_sample"] == 3 * 8 + 3 * 16
    assert left.train("grown", "step-8-a003")["batch_schedule"] == [*schedule, {"start": 6, "size": 4}]
    tokens = [row["throughput/total_tokens"] // 16 for attempt in (1, 2, 3) for row in left.rows("grown", attempt)]
    assert tokens == [8, 16, 24, 40, 56, 72, 76, 80]
    assert "was 8, is now 8 from step 0, 16 from step 3" in left.text("grown", 2)
    evidence = records.Restore.read(records.RunPaths(str(left.root), "grown").attempt(3).restore)
    assert evidence.batch_digest == evidence.recorded_batch_digest
    assert evidence.losses_error == 0.0


def test_skipped_updates_are_not_in_optimizer_count(left: Attempts) -> None:
    for attempt, (step, name) in enumerate([(3, "step-3-a001"), (6, "step-6-a002"), (8, "step-8-a003")], 1):
        state = left.train("grown", name)
        skipped = left.rows("grown", attempt)[-1]["optim/skipped_updates"]
        assert (state["schedule_count"], state["optimizer_count"]) == (step, step - skipped)
    assert left.rows("grown", 3)[-1]["optim/skipped_updates"] > 0


def test_resume_reports_changed_configuration(left: Attempts) -> None:
    directory = left.root / "runs" / "grown" / "checkpoints" / "step-6-a002"
    config = json.loads((directory / "train.json").read_text())["provenance"]["config"]
    given = load_config(run("grown", 6, *KEPT, "--trainer.train_batch_size", "16")).config.resolved()
    assert {**config["trainer"], "root": None} == {**json.loads(json.dumps(given))["trainer"], "root": None}
    assert {key: config[key] for key in ("model", "data", "optimizer")} == {
        key: json.loads(json.dumps(given))[key] for key in ("model", "data", "optimizer")
    }
    changes = "trainer.num_train_steps: was 6, is now 8; trainer.train_batch_size: was 16, is now 4"
    assert f"the configuration differs from that of step-6-a002: {changes}\n" in left.text("grown", 3)
    assert "the configuration differs from that of" not in left.text("begun", 1)


def test_resume_reports_position_in_data(left: Attempts) -> None:
    assert "continuing at step 6: sample 72, epoch " in left.text("grown", 3)


def test_planned_schedule_changes_batch_at_its_step(left: Attempts) -> None:
    assert [row["throughput/total_tokens"] // 16 for row in left.rows("planned")] == [8, 16, 20, 24]
    assert left.train("planned", "step-4-a001")["next_sample"] == 24


def test_average_is_saved_evaluated_and_restored(left: Attempts) -> None:
    paths = records.RunPaths(str(left.root), "averaged")
    manifest = records.Manifest.read(os.path.join(paths.checkpoint("step-4-a001"), records.MANIFEST))
    names = {entry.name for entry in manifest.array_entries}
    assert "average/model/ln_f/weight" in names
    assert "optimizer/skipstep/losses" in names
    assert [("eval/loss" in row) for row in left.rows("averaged")] == [False, True, False, True]
    assert left.rows("averaged")[-1]["optim/skipped_updates"] == 0
    assert [row["global_step"] for row in left.rows("averaged", 2)] == [4, 5]


def test_run_starts_from_model_of_another_with_new_average(left: Attempts) -> None:
    assert [row["global_step"] for row in left.rows("begun")] == [0, 1]
    assert left.train("begun", "step-3-a002")["data_digest"] != left.train("planned", "step-4-a001")["data_digest"]
    assert [row["global_step"] for row in left.rows("begun", 2)] == [2]  # its own checkpoint comes first
    assert not os.path.exists(records.RunPaths(str(left.root), "begun").attempt(1).restore)
    assert os.path.exists(records.RunPaths(str(left.root), "begun").attempt(2).restore)
    manifest = read_manifest(str(left.root / "runs" / "begun" / "checkpoints" / "step-3-a002"))
    names = {entry.name for entry in manifest.array_entries}
    assert {"average/model/ln_f/weight", "optimizer/skipstep/losses"} <= names
    source = str(left.root / "runs" / "planned" / "checkpoints" / "step-4-a001")
    assert f"begins with the model of {source}" in left.text("begun", 1)


def test_run_starts_from_model_only_checkpoint(tmp_path: Path) -> None:
    config = load_config(
        [*FLAGS, *AVERAGED, "--trainer.initialize_model_from", str(tmp_path / "runs" / "plain")]
    ).config
    plan = make_plan(config)
    other = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, seed=5))
    paths, model = records.RunPaths(str(tmp_path), "plain"), make_plan(other).fresh_state().model
    saved = save(paths, {"model": model})
    origin = find_origin(open_attempt(str(tmp_path), "here", {}), config, None)
    assert origin is not None
    resumed, _ = restore(origin, plan)
    assert (resumed.step, resumed.root_digest) == (0, saved.root_digest)
    fresh, state = plan.fresh_state(), resumed.state
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    wanted = dataclasses.replace(fresh, model=model, average=ModelAverage(model, None))
    for name, array in flatten(wanted).items():
        np.testing.assert_array_equal(flatten(state)[name].value, array.value, err_msg=name)
    assert flatten(state).keys() == flatten(wanted).keys()
    before, after = jax.tree.leaves(fresh.model), jax.tree.leaves(state.model)
    assert not all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    at_rest = [leaf.sharding for leaf in jax.tree.leaves(fresh)]
    assert [leaf.sharding for leaf in jax.tree.leaves(state)] == at_rest


def test_profile_and_log_copy_are_in_log_directory(left: Attempts) -> None:
    directory = left.root / "logs" / "profiled"
    (trace,) = directory.glob("profiler/plugins/profile/*/*.xplane.pb")
    assert trace.stat().st_size > 0
    (perfetto,) = directory.glob("profiler/plugins/profile/*/perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(perfetto.read_bytes()))
    assert "finished at step 4" in (directory / "attempt-001.log").read_text()


def test_jax_config_numbers_reach_jax_as_numbers(tmp_path: Path) -> None:
    script = (
        "import sys, jax\nfrom midstream_engine.config import load_config\n"
        "from midstream_engine.runtime.jax_settings import configure_jax\n"
        "config = load_config(sys.argv[1:]).config\nprint(configure_jax(config, '/nowhere'))\n"
        "for name in ('min_compile_time_secs', 'min_entry_size_bytes', 'enable_xla_caches'):\n"
        "    print(repr(getattr(jax.config, f'jax_persistent_cache_{name}')))"
    )
    path = CONFIGS / "examples" / "compile_cache.yaml"
    done = subprocess.run(
        [sys.executable, "-c", script, "--config_path", str(path)],
        env=environment(tmp_path, 1), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["/path/to/your/jax_cache", "5.0", "1024", "'all'"]
