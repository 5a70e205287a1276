"""A simulated nvidia-smi: a program of that name that reports GPUs, their MIG devices and their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

KIND = "NVIDIA A100-SXM4-80GB"
PROGRAM = """\
#!/bin/sh
case $1 in
--query-gpu=*)
    for index in {indices}; do
        line=
        for field in $(echo "${{1#--query-gpu=}}" | tr , ' '); do
            case $field in
            index) value=$index ;;
            uuid) value=GPU-$index$index$index$index ;;
            name) value="{kind}" ;;
            memory.total) value=81920 ;;
            driver_version) value=550.54.15 ;;
            compute_cap) value=8.0 ;;
            *) value="[N/A]" ;;
            esac
            line="$line${{line:+, }}$value"
        done
        echo "$line"
    done ;;
--query-compute-apps=*)
{apps} ;;
-L)
{listing} ;;
*) echo '| Driver Version: 550.54.15   CUDA Version: 12.4 |' ;;
esac
"""


def uuid(index: int) -> str:
    """Return the UUID of a simulated GPU."""
    return f"GPU-{str(index) * 4}"


def write_nvidia_smi(
    folder: Path,
    gpus: int,
    processes: Mapping[str, Sequence[int]] = {},
    parts: Mapping[int, Sequence[tuple[str, str]]] = {},
) -> Path:
    """Write the program and return its path.

    Args:
        folder: Where it is written.
        gpus: Number of GPUs.
        processes: UUID of a GPU or MIG device -> the processes on it.
        parts: Index of a GPU -> profile and UUID of each of its MIG devices.
    """
    apps = [f"echo '{device}, {pid}, 512, python'" for device, pids in processes.items() for pid in pids]
    listing: list[str] = []
    for index in range(gpus):
        listing.append(f"echo 'GPU {index}: {KIND} (UUID: {uuid(index)})'")
        for number, (profile, name) in enumerate(parts.get(index, ())):
            listing.append(f"echo '  MIG {profile}     Device  {number}: (UUID: {name})'")
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(
        PROGRAM.format(
            indices=" ".join(map(str, range(gpus))), kind=KIND, apps="\n".join(apps) or ":", listing="\n".join(listing)
        )
    )
    program.chmod(0o755)
    return program
