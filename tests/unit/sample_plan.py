"""A plan for tests that need one and no host."""

from __future__ import annotations

from midstream.migrate.model import Change, Plan

PLAN = Plan(
    migration="m", run_id="r", mode="cold", source="a", source_attempt=1, source_state="training", source_step=9,
    target="b", target_host="b", source_epoch=1, epoch=2, checkpoint="now", checkpoint_step=None, source_devices=2,
    target_devices=4, train_batch_size=8, per_device_parallelism=2, accumulation=1, overrides=(),
    changes=(Change("precision", "f32", "f32"),), route="", checkpoint_bytes=1, data_digests=(), data_bytes=0,
    steps_lost=0, predicted_seconds={},
)  # fmt: skip
