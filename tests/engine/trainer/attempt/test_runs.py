"""Attempts as processes: signals, commands, the fence, and resume from a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from midstream_core import records
from support.engines.engine_runs import Engine

STEPS = 200
FLAGS = ["--trainer.num_train_steps", str(STEPS)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root shared for its compile cache; each test has its own run id."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def uninterrupted_run(root: Path) -> Engine:
    """The uninterrupted run, on 2 devices."""
    with Engine(root, *FLAGS, run_id="uninterrupted_run") as engine:
        code, log = engine.finish()
    assert code == 0, log
    return engine


def losses(engine: Engine, attempt: int) -> dict[int, float]:
    return {row["global_step"]: row["train/loss"] for row in engine.rows(attempt)}


def digests(engine: Engine, attempt: int) -> dict[int, str]:
    return {row["global_step"]: row["batch_digest"] for row in engine.rows(attempt)}


@pytest.mark.drawn
def test_run_leaves_what_the_records_promise(uninterrupted_run: Engine) -> None:
    status = uninterrupted_run.status(1)
    assert status is not None
    assert (status.state, status.step, status.checkpoint) == ("finished", STEPS, f"step-{STEPS}-a001")
    assert len(status.devices) == 2
    assert status.compiled_seconds > 0
    saved = uninterrupted_run.paths.checkpoint(f"step-{STEPS}-a001")
    objects = records.read_json(f"{saved}/{records.MANIFEST}")["objects"]
    assert status.state_bytes == pytest.approx(sum(entry["size"] for entry in objects), rel=0.02)
    rows = uninterrupted_run.rows(1)
    assert [row["global_step"] for row in rows] == list(range(STEPS))
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.5
    assert set(rows[0]) == {
        "global_step", "train/loss", "optim/learning_rate", "grad/norm/total", "throughput/tokens_per_second",
        "throughput/duration", "throughput/loading_time", "throughput/total_tokens", "time", "batch_digest",
        records.START_NUMBER,
    }  # fmt: skip
    assert rows[-1]["throughput/total_tokens"] == STEPS * 8 * 32
    (entry,) = records.Lineage.read(uninterrupted_run.paths.lineage).entries
    assert (entry.first_step, entry.last_step, entry.devices, entry.checkpoint) == (0, STEPS, 2, None)
    resolved = yaml.safe_load(Path(uninterrupted_run.paths.config).read_text())
    assert (resolved["trainer"]["id"], resolved["trainer"]["root"]) == ("uninterrupted_run", None)
    assert resolved["optimizer"]["beta2"] == 0.95
    assert "resolved configuration" in Path(uninterrupted_run.paths.attempt(1).log()).read_text()


def test_run_saves_on_signals_and_restart_continues_exactly(root: Path, uninterrupted_run: Engine) -> None:
    long = [*FLAGS, "--trainer.checkpointer.keep", "[]"]
    with Engine(root, *long, run_id="signals") as engine:
        engine.until(engine.has_trained(1, 2))
        engine.process.send_signal(signal.SIGUSR1)
        saved = engine.until(lambda: ((s := engine.status(1)) and s.checkpoint and s) or None)
        assert saved.checkpoint is not None
        assert saved.root_digest is not None
        while engine.process.poll() is None:  # repeated signals until the end
            engine.process.send_signal(signal.SIGTERM)
            time.sleep(0.005)
        code, log = engine.finish()
    status = engine.status(1)
    assert status is not None
    assert code == 0, log
    key = records.parse_checkpoint_name(saved.checkpoint)
    assert key is not None
    assert status.state == "stopped"
    assert key[0] <= status.step < STEPS
    assert status.checkpoint == f"step-{status.step}-a001"
    assert set(losses(engine, 1)) == set(range(status.step))

    with Engine(root, *long, run_id="signals") as again:
        code, log = again.finish()
    assert code == 0, log
    evidence = records.Restore.read(again.paths.attempt(2).restore)
    assert (evidence.step, evidence.root_digest) == (status.step, status.root_digest)
    assert evidence.losses_error == 0.0
    assert evidence.batch_digest == evidence.recorded_batch_digest == digests(again, 2)[status.step]
    continued = {**losses(engine, 1), **losses(again, 2)}
    assert continued == losses(uninterrupted_run, 1)  # bit by bit, because the devices are the same
    end = again.status(2)
    reference = uninterrupted_run.status(1)
    assert end is not None
    assert reference is not None
    assert end.root_digest == reference.root_digest


@pytest.fixture(scope="module")
def sealed_once(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Path]:
    """A run on 2 devices with a command to stop and seal for ownership 2, and a copy of its directory."""
    with Engine(root, *FLAGS, run_id="moved", MIDSTREAM_TARGET="small") as engine:
        engine.until(engine.has_trained(1, 1))
        order = records.Command(records.STOP, epoch=2, owner="large", migration="m1", sequence=3)
        order.write(engine.paths.attempt(1).command_file)
        code, log = engine.finish()
    assert code == 0, log
    copy = tmp_path_factory.mktemp("sealed") / "run"
    shutil.copytree(engine.paths.dir, copy)
    return engine, copy


@pytest.fixture
def sealed(sealed_once: tuple[Engine, Path]) -> Engine:
    """The sealed run as it was, whatever another test has continued from it."""
    engine, copy = sealed_once
    shutil.rmtree(engine.paths.dir)
    shutil.copytree(copy, engine.paths.dir)
    return engine


def test_stop_command_with_epoch_seals_the_run(sealed: Engine) -> None:
    status = sealed.status(1)
    assert status is not None
    assert (status.state, status.acknowledged, status.epoch) == ("stopped", 3, 1)
    fence = records.Fence.read(sealed.paths.fence)
    handed_over = records.first_fence("small").sealed(2, "large", status.step)
    for field in ("epoch", "owner", "sealed_step", "seals"):  # starts of the new epoch are other tests'
        assert getattr(fence, field) == getattr(handed_over, field)
    manifest = records.Manifest.read(os.path.join(sealed.paths.checkpoint(status.checkpoint or ""), "manifest.json"))
    assert (manifest.step, manifest.root_digest) == (status.step, status.root_digest)
    assert fence.accepts(manifest.epoch, manifest.step, manifest.start)


@pytest.mark.usefixtures("sealed")
def test_sealed_source_refuses_to_continue(root: Path) -> None:
    with Engine(root, *FLAGS, run_id="moved", MIDSTREAM_EPOCH="1") as late:
        code, log = late.finish()
    assert code == records.EXIT_FENCED
    assert len(log.splitlines()) == 1
    assert "belongs to large" in log


@pytest.mark.drawn
def test_refused_attempt_reports_it_in_its_status(sealed: Engine, root: Path) -> None:
    for number, flags, code, said in [
        (3, [], records.EXIT_FENCED, "belongs to large"),
        (4, ["--trainer.sead", "1"], records.EXIT_CONFIG, "nearest: trainer.seed"),
    ]:
        os.makedirs(sealed.paths.attempt(number).dir)
        attempt = str(number)
        with Engine(root, *flags, run_id="moved", MIDSTREAM_ATTEMPT=attempt, MIDSTREAM_EPOCH="1") as engine:
            assert engine.finish()[0] == code
        status = engine.status(number)
        assert status is not None
        assert status.state == "failed"
        assert said in status.message


def restore_command(sealed: Engine, digest: str | None = None) -> records.Command:
    status = sealed.status(1)
    assert status is not None
    return records.Command(
        records.RESTORE, epoch=2, checkpoint=status.checkpoint, root_digest=digest or status.root_digest,
        step=status.step, owner="large", migration="m1", sequence=1,
    )  # fmt: skip


def start_with_command(
    sealed: Engine, root: Path, order: records.Command, number: int, *flags: str, devices: int
) -> Engine:
    attempt = sealed.paths.attempt(number)
    os.makedirs(attempt.dir)
    order.write(attempt.command_file)
    launch = {"MIDSTREAM_ATTEMPT": str(number), "MIDSTREAM_EPOCH": "2", "MIDSTREAM_TARGET": "large"}
    return Engine(root, *FLAGS, *flags, devices=devices, run_id="moved", **launch)


def test_command_with_other_root_digest_is_refused(sealed: Engine, root: Path) -> None:
    with start_with_command(sealed, root, restore_command(sealed, "0" * 64), 5, devices=2) as engine:
        code, _ = engine.finish()
    status = engine.status(5)
    assert code == 1
    assert status is not None
    assert status.state == "failed"
    assert "root digest" in status.message
    assert "\n" not in status.message
    assert not os.path.exists(engine.paths.attempt(5).metrics)


@pytest.mark.drawn
def test_migrated_run_continues_with_accumulation(sealed: Engine, root: Path, uninterrupted_run: Engine) -> None:
    flags = ["--trainer.per_device_parallelism", "1"]
    with start_with_command(sealed, root, restore_command(sealed), 6, *flags, devices=4) as engine:
        code, log = engine.finish()
    assert code == 0, log
    source, status = sealed.status(1), engine.status(6)
    assert source is not None
    assert status is not None
    assert (status.state, status.epoch, status.acknowledged) == ("finished", 2, 1)
    evidence = records.Restore.read(engine.paths.attempt(6).restore)
    assert evidence.root_digest == evidence.expected_root_digest == source.root_digest
    assert evidence.devices == 4
    assert evidence.losses_error < 1e-5
    entry = records.Lineage.read(engine.paths.lineage).entries[-1]
    assert (entry.target, entry.migration, entry.first_step) == ("large", "m1", source.step)
    joined, reference = {**losses(sealed, 1), **losses(engine, 6)}, losses(uninterrupted_run, 1)
    assert joined.keys() == reference.keys()
    assert {**digests(sealed, 1), **digests(engine, 6)} == digests(uninterrupted_run, 1)
    assert max(records.relative_difference(joined[step], reference[step]) for step in reference) < 1e-4


@pytest.mark.usefixtures("uninterrupted_run")
def test_other_data_order_is_refused(root: Path) -> None:
    for flags, said in [
        (["--model.seq_len", "16"], "model.seq_len is 16"),
        (["--trainer.seed", "3"], "trainer.seed is 3"),
        (["--data.next_token", "true"], "data.next_token is True"),
    ]:
        with Engine(root, *FLAGS, *flags, run_id="uninterrupted_run") as engine:
            code, log = engine.finish()
        assert code == 1
        assert said in log
        assert "Traceback" not in log


# The engine before it put the lengths and gaps of a tokenizer.json aside: the recorded id is the plain one.
EARLIER = """
import sys
from midstream_engine import train
from midstream_engine.computation import setup
load = setup.load_tokenizer
setup.load_tokenizer = lambda name, eos, recorded="": load(name, eos, "RECORDED")
sys.exit(train.main())
"""


@pytest.mark.drawn
def test_run_of_an_earlier_tokenizer_goes_on_with_its_tokens(root: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    letters = {letter: number for number, letter in enumerate("abcdefgh")}
    model = tokenizers.models.BPE({**letters, "<|endoftext|>": 8, "<gap>": 200}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.enable_truncation(20)
    file, text = tmp_path / "tokenizer.json", tmp_path / "text.jsonl"
    tokenizer.save(str(file))
    text.write_text("".join(json.dumps({"text": "abcdefgh" * (4 + line % 3)}) + "\n" for line in range(100)))
    plain = f"tokenizer.json:{hashlib.sha256(file.read_bytes()).hexdigest()}:<|endoftext|>"
    flags = ["--data.tokenizer", str(file), "--data.train_urls", f"[{text}]", "--data.validation_urls", f"[{text}]"]
    flags += ["--trainer.steps_per_eval", "2"]

    def rows(run_id: str, *stages: tuple[str, int]) -> list[tuple[float, str, float | None]]:
        found = []
        for attempt, (program, steps) in enumerate(stages, 1):
            more = [*flags, "--trainer.num_train_steps", str(steps), "--optimizer.lr_schedule", "constant"]
            with Engine(root, *more, devices=1, run_id=run_id, program=program.replace("RECORDED", plain)) as engine:
                code, log = engine.finish()
            assert code == 0, log
            found += [(row["train/loss"], row["batch_digest"], row.get("eval/loss")) for row in engine.rows(attempt)]
        return found

    assert rows("updated", (EARLIER, 3), ("", 6)) == rows("earlier", (EARLIER, 3), (EARLIER, 6))


# With JAX_DEFAULT_PRNG_IMPL=rbg, before that variable had no effect.
OTHER_GENERATOR = """
import sys
from midstream_engine import train
from midstream_engine.models import random_keys
random_keys.GENERATOR = "rbg"
sys.exit(train.main())
"""


@pytest.mark.drawn
def test_run_of_another_random_generator_is_named(root: Path) -> None:
    flags = ["--trainer.num_train_steps", "2"]
    with Engine(root, *flags, devices=1, run_id="generator", program=OTHER_GENERATOR) as engine:
        assert engine.finish()[0] == 0
    with Engine(root, "--trainer.num_train_steps", "4", devices=1, run_id="generator") as engine:
        code, log = engine.finish()
    assert code == 1
    assert "random numbers of the generator key<rbg>, and this midstream has threefry2x32 alone" in log


def test_corrupt_checkpoint_is_no_fresh_start(uninterrupted_run: Engine, root: Path) -> None:
    shutil.copytree(
        uninterrupted_run.paths.dir, root / "runs" / "rotten", ignore=shutil.ignore_patterns("attempts", "lineage.json")
    )
    directory = root / "runs" / "rotten" / "checkpoints" / f"step-{STEPS}-a001"
    packed = directory / records.PACKED
    data = bytearray(packed.read_bytes())
    data[-5] ^= 1
    packed.write_bytes(data)
    with Engine(root, "--trainer.num_train_steps", str(STEPS + 9), run_id="rotten") as engine:
        code, _ = engine.finish()
    status = engine.status(1)
    assert code == 1
    assert status is not None
    assert status.state == "failed"
    assert records.PACKED in status.message
    assert engine.rows(1) == []


@pytest.mark.drawn
def test_finished_run_started_again_compiles_nothing(uninterrupted_run: Engine, root: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted_run.paths.dir, root / "runs" / "again", ignore=shutil.ignore_patterns("attempts"))
    flags = ["--trainer.jax_compilation_cache_dir", str(tmp_path / "cache"), "--data.train_urls", "[missing.txt]"]
    with Engine(root, *FLAGS, *flags, run_id="again") as engine:
        code, log = engine.finish()
    assert code == 0, log
    assert f"step-{STEPS}-a001 has all of the {STEPS} steps" in log
    status, first = engine.status(1), uninterrupted_run.status(1)
    assert status is not None
    assert first is not None
    assert (status.state, status.step, status.checkpoint) == ("finished", STEPS, first.checkpoint)
    assert status.root_digest == first.root_digest
    assert not (tmp_path / "cache").exists()
    assert len(records.Lineage.read(engine.paths.lineage).entries) == 1


def test_indivisible_batch_exits_2_with_one_line(root: Path) -> None:
    with Engine(root, "--model.hidden_dim", "60", devices=8, run_id="odd") as engine:
        code, log = engine.finish()
    status = engine.status(1)
    assert code == records.EXIT_CONFIG
    assert status is not None
    assert status.state == "failed"
    assert "'embed' of size 60" in status.message
    assert "Traceback" not in log


def test_nan_loss_ends_run_with_one_line(root: Path) -> None:
    flags = ["--optimizer.learning_rate", "1e30", "--optimizer.max_grad_norm", "null", "--optimizer.warmup", "0"]
    with Engine(root, *FLAGS, *flags, run_id="nan") as engine:
        code, log = engine.finish()
    status = engine.status(1)
    assert code == 1
    assert status is not None
    assert status.state == "failed"
    assert "crash_on_" in status.message
    assert "Traceback" not in log
