"""Memory that is available for the copy of a state."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from midstream_engine.loop import copy_memory
from midstream_engine.loop.copy_memory import memory_shortage
from midstream_engine.runtime.available_memory import available_memory

GIB = 1 << 30


def system(root: Path, cgroup: str, files: dict[str, str]) -> str:
    texts = {"proc/meminfo": "MemTotal: 99999999 kB\nMemAvailable: 4194304 kB\n", "proc/self/cgroup": cgroup, **files}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def group(top: str, limit: int | str, used: int, droppable: int) -> dict[str, str]:
    return {
        f"{top}/memory.max": f"{limit}\n",
        f"{top}/memory.current": f"{used}\n",
        f"{top}/memory.stat": f"anon 1\ninactive_file {droppable}\n",
    }


def test_machine_without_groups_has_what_the_kernel_reports(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, "", {})) == 4 * GIB


def test_smallest_room_of_the_groups_above_counts(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup/job", 3 * GIB, 2 * GIB, GIB // 2) | group("sys/fs/cgroup/job/step", "max", GIB, 0)
    assert available_memory(system(tmp_path, "0::/job/step\n", files)) == GIB + GIB // 2


def test_container_sees_the_top_of_its_groups_alone(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup", 3 * GIB, 2 * GIB, 0)
    assert available_memory(system(tmp_path, "0::/docker/0123\n", files)) == GIB


def test_groups_of_version_1_are_read(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory/job"
    files = {
        f"{top}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"{top}/memory.usage_in_bytes": f"{GIB}\n",
        f"{top}/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}\n",
    }
    assert available_memory(system(tmp_path, "5:cpu,memory:/job\n", files)) == GIB + GIB // 4


def test_full_group_leaves_nothing(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, "0::/\n", group("sys/fs/cgroup", GIB, 2 * GIB, 0))) == 0


@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "MemAvailable: many kB\n"])
def test_machine_that_reports_nothing_is_unknown(tmp_path: Path, text: str) -> None:
    assert available_memory(system(tmp_path, "", {"proc/meminfo": text})) is None


def test_shortage_names_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_memory, "reusable_bytes", lambda: 0)
    state = {"x": jnp.zeros(32 << 20), "kept": np.zeros(3)}  # 128 MiB
    assert memory_shortage(state, lambda: None) == ""
    assert memory_shortage(state, lambda: 140 << 20) == ""
    assert memory_shortage(state, lambda: 130 << 20) == (
        "a copy of it needs 0.13 GiB of memory, 0.13 GiB are available"
    )
    monkeypatch.setattr(copy_memory, "reusable_bytes", lambda: 128 << 20)
    assert memory_shortage(state, lambda: 64) == ""  # the last copy's memory is used again


def test_small_state_is_copied_without_a_look() -> None:
    assert memory_shortage({"x": jnp.zeros(1 << 20)}, lambda: pytest.fail("looked")) == ""
