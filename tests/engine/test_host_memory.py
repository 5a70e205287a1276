"""The step's temporary memory on a CPU: it stays with the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.engine_runs import environment

SCRIPT = """
import resource, sys
from midstream_engine.trainer.runtime.host_memory import keep_host_memory
if sys.argv[1] == "kept":
    assert keep_host_memory()
import jax, jax.numpy as jnp
attend = jax.jit(lambda x: jax.nn.softmax(x @ x.T) @ x)  # 64 MiB in between
x = jnp.ones((4096, 8))
for call in range(6):
    if call == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    attend(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is that of Linux")
def test_a_step_faults_no_page_in_that_the_one_before_had(tmp_path: Path) -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", SCRIPT, how]
        done = subprocess.run(command, env=environment(tmp_path, 1), capture_output=True, text=True, check=True)
        return int(done.stdout)

    kept, usual = faults("kept"), faults("usual")
    assert kept < usual / 10, (kept, usual)


def test_where_jax_may_use_an_accelerator_nothing_is_changed() -> None:
    from midstream_engine.trainer.runtime.host_memory import keep_host_memory

    assert not keep_host_memory({})
    assert not keep_host_memory({"JAX_PLATFORMS": "cuda"})
