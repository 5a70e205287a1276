"""The start of the TPU guide: a run trains on a GPU server, and a slice can be created."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import TpuServer
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab, SshServer
from support.command_line import SLOWER, TINY, midstream

TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")


@dataclass(frozen=True)
class Guide:
    """The fleet file of the guide, with host ``gpu`` and target ``pod``.

    The slice's workers have an identity of their own, which can read and write the bucket; the GPU server has none.
    """

    file: Path
    gpu: SshServer
    pod: Slice


def begin(
    lab: Lab,
    service: TpuServer,
    bucket: BucketServer,
    run_id: str = "r",
    *,
    workers: int = 1,
    devices: int = 1,
    of_worker: int = 2,
    worker: str = "",
    **words: str,
) -> Guide:
    """Launch the run on the GPU server's ``devices``. ``worker`` and ``words`` are further fields of the target."""
    gpu, pod = lab.host("gpu", devices=devices), Slice(lab, "n", workers, bucket.environment)
    service.workers["n"] = pod.workers
    file = lab.fleet_file(gpu=gpu.config)
    fields = f"{{devices: {of_worker}, python: {sys.executable}, store: ckpt{worker}}}"
    target = target_text("pod", pod, lab.directory / "key", create="true", spot="true", worker=fields, **words)
    file.write_text(file.read_text() + "stores: {ckpt: {url: gs://runs/mine}}\ntargets:\n" + target)
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", run_id, "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    return Guide(file, gpu, pod)
