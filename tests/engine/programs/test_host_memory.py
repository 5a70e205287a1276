"""The step's temporary memory on a CPU stays with the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from midstream_engine.runtime import host_memory
from support.engines.engine_runs import environment

SCRIPT = """
import resource, sys
from midstream_engine.runtime.host_memory import keep_host_memory
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


FRAGMENTED = """
import ctypes
from midstream_engine.runtime.host_memory import keep_host_memory, release_free_memory
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert keep_host_memory()
blocks = []
for _ in range(64):
    blocks.append(malloc(4 << 20))
    ctypes.memset(blocks[-1], 1, 4 << 20)
    malloc(64)  # stays, between two large blocks
for block in blocks:
    free(block)
kept = resident()
release_free_memory()
print(kept - resident())
"""


linux = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is that of Linux")


def page_faults(root: Path, how: str, extra: dict[str, str]) -> int:
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, env=environment(root, 1, extra), capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> int:
    return page_faults(tmp_path_factory.mktemp("root"), "usual", {})


@linux
def test_step_reuses_pages_of_the_step_before(tmp_path: Path, usual: int) -> None:
    assert page_faults(tmp_path, "kept", {}) < usual / 10


@linux
def test_step_reuses_pages_with_the_settings_in_the_environment(tmp_path: Path, usual: int) -> None:
    """Other programs that are measured beside the engine get its settings that way."""
    assert page_faults(tmp_path, "usual", {"GLIBC_TUNABLES": host_memory.tunables()}) < usual / 10


@linux
def test_released_memory_includes_blocks_between_live_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FRAGMENTED]
    done = subprocess.run(command, env=environment(tmp_path, 1), capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200 << 20, "of 256 MiB"


def test_host_memory_is_kept_where_the_devices_are_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_NVIDIA_FILES", (str(tmp_path / "nvidia*"),))
    monkeypatch.setattr(host_memory, "_OTHER_FILES", (str(tmp_path / "accel*"),))
    monkeypatch.setattr(host_memory, "_PACKAGES", ("no_such_package", "json"))
    are_cpus = host_memory.devices_are_cpus
    assert are_cpus({})
    (tmp_path / "nvidia0").touch()
    assert not are_cpus({})
    assert are_cpus({"CUDA_VISIBLE_DEVICES": "-1"})
    assert are_cpus({"JAX_PLATFORMS": "cpu"})
    assert not are_cpus({"JAX_PLATFORMS": "cuda,cpu"})
    assert not host_memory.keep_host_memory({})
    monkeypatch.setattr(host_memory, "_PACKAGES", ("no_such_package",))
    assert are_cpus({}), "jax alone cannot use the GPU"
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(host_memory, "_PACKAGES", ("json",))
    assert not are_cpus({"CUDA_VISIBLE_DEVICES": ""})


ADVISED = """
import ctypes
from midstream_engine.checkpoint.host_buffers import advise_heap
from midstream_engine.runtime.host_memory import keep_host_memory

assert keep_host_memory()
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
advise_heap(256 << 20)
address = malloc(128 << 20) + (64 << 20)
with open("/proc/self/smaps") as file:
    for line in file:
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(text, 16) for text in first.split("-"))
        elif first == "VmFlags:" and begin <= address < end:
            print("hg" in line.split())
"""


@linux
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_restored_arrays_are_allocated_from_huge_pages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADVISED]
    done = subprocess.run(command, env=environment(tmp_path, 1), capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
