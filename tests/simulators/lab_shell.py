"""A shell in which midstream's Google Cloud side can be tried without an account: ``make lab``.

    python tests/simulators/lab_shell.py [--public] [COMMAND ...]

A Cloud TPU service, a bucket of Google's kind, one of S3's and SSH servers run on loopback for as long as the shell (or
the command) does. The fleet has a "GPU server" ``gpu`` of two virtual devices, another, ``cloud``, that stores
checkpoints in S3, and a target ``pod``: a slice of four workers that is not there yet.
Nothing is written outside a temporary directory.

With ``--public`` the buckets are those of services that nobody here wrote: gcp-storage-emulator, which ignores
conditions, and moto.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from simulators.google.slice import Slice, target_text  # noqa: E402
from simulators.google.tpu_api import TpuServer  # noqa: E402
from simulators.object_stores.bucket import BucketServer, bucket_server  # noqa: E402
from simulators.object_stores.public_services import gcs_emulator, moto  # noqa: E402
from simulators.object_stores.s3_server import S3Server, s3_server  # noqa: E402
from simulators.sshd import SSHD, Lab, environment  # noqa: E402

WORKERS = 4
WELCOME = """\
A Cloud TPU service, the buckets gs://lab-runs and s3://lab-runs and SSH servers run on this machine, until you leave
this shell (exit).

  midstream --status                                                     the fleet, and every slice
  midstream --launch {config} --on gpu --run-id guide -- --trainer.num_train_steps 100000
  midstream --migrate guide --to pod --yes                               asks for the slice; over the bucket
  midstream --migrate guide --to cloud                                   its checkpoints stream from gs:// to s3://
  midstream --verify guide                                               hashes the newest one in its bucket
  midstream --migrate guide --to gpu                                     and back to a disk
  midstream --delete pod --yes                                           gives the slice back
  midstream --clean                                                      what is left over

The fleet file: {fleet}
"""


@contextlib.contextmanager
def environment_of(opened: AbstractContextManager[BucketServer | S3Server]) -> Iterator[dict[str, str]]:
    """Context with a simulator; yields the environment of its clients."""
    with opened as server:
        yield server.environment


def main(command: list[str]) -> int:
    """Run the shell, or ``command``, and return its exit code."""
    public = command[:1] == ["--public"]
    command = command[public:]
    if not SSHD:
        sys.exit("the lab needs an SSH server: apt-get install openssh-server")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="midstream-lab-")))
        lab = Lab(directory)
        stack.callback(lab.close)
        service = stack.enter_context(TpuServer())
        google = stack.enter_context(gcs_emulator("lab-runs") if public else environment_of(bucket_server("lab-runs")))
        amazon = stack.enter_context(moto("lab-runs") if public else environment_of(s3_server("lab-runs")))
        gpu, pod = lab.host("gpu", devices=2), Slice(lab, "pod", WORKERS, google)
        service.workers["pod"] = pod.workers
        cloud = lab.host("cloud", devices=2, sshd=environment(**amazon))
        cloud.config = dataclasses.replace(cloud.config, store="s3")
        fleet = lab.fleet_file(gpu=gpu.config, cloud=cloud.config)
        worker = f"{{devices: 1, python: {sys.executable}, store: ckpt}}"
        words = {"create": "true", "spot": "true", "worker": worker, "price_per_hour": "8"}
        stores = "stores: {ckpt: {url: gs://lab-runs/mine}, s3: {url: s3://lab-runs/mine}}\n"
        fleet.write_text(
            fleet.read_text() + stores + "targets:\n" + target_text("pod", pod, directory / "key", **words)
        )
        variables = {
            **os.environ,
            **service.environment,
            **google,
            **amazon,
            "MIDSTREAM_FLEET": str(fleet),
            "MIDSTREAM_STATE": str(directory / "state"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        if not command:
            print(WELCOME.format(fleet=fleet, config=TESTS.parent / "configs" / "gpt2_tiny.yaml"), flush=True)
            command = [os.environ.get("SHELL") or "/bin/sh"]
        return subprocess.run(command, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
