"""Places of plausible changes, foreseen from the names of the files alone.

On 2026-11-29 a reader who had seen the list of files alone named the place of each change. A commit that moves a
file changes its name here; a new reading replaces ``foreseen``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from support.paths import REPOSITORY


class Change(NamedTuple):
    """A change, its place, and the place that the reader named where that is another."""

    what: str
    place: str
    foreseen: str


CHANGES = (
    Change(
        "A new flag `--since` for an existing headless mode: where is it declared?",
        "app/midstream/flags.py",
        "",
    ),
    Change(
        "The record of the fence gets one more field on disk.",
        "engine/midstream_core/records/fence.py",
        "",
    ),
    Change(
        "The learning-rate schedule gets a new shape, in the engine and the app: where is its formula?",
        "engine/midstream_core/learning_rate.py",
        "",
    ),
    Change(
        "A host should also report the temperature of its disks in each poll: where is it read on the host?",
        "engine/midstream_host/machine/gauges.py",
        "",
    ),
    Change(
        "The certificate should make one more claim about the data of a run: in which folder?",
        "app/midstream/migrate/proof/",
        "",
    ),
    Change(
        "The rollback should also release a lock that it holds: which file?",
        "app/midstream/migrate/phases/rollback.py",
        "",
    ),
    Change(
        "Before a migration, the preflight should run one more check: which file lists its checks?",
        "app/midstream/migrate/planning/preflight.py",
        "",
    ),
    Change(
        "A SLURM word for a new state of a job should count as 'ended'.",
        "engine/midstream_host/runs/slurm_states.py",
        "",
    ),
    Change(
        "GPT-NeoX checkpoints write one more argument that must be refused.",
        "engine/midstream_engine/interop/neox/arguments.py",
        "",
    ),
    Change(
        "The S3 client should take one more error for a passing one.",
        "engine/midstream_core/object_store/s3_errors.py",
        "",
    ),
    Change(
        "A checkpoint of Hugging Face's Trainer should be complete by another rule.",
        "engine/midstream_host/driver/checkpoints/huggingface.py",
        "",
    ),
    Change(
        "The defaults of Lightning runs (command, metrics, resume flag) change.",
        "app/midstream/trainers/lightning.py",
        "",
    ),
    Change(
        "A live migration should give up earlier when the replica cannot catch up.",
        "app/midstream/migrate/steps/replica.py",
        "",
    ),
    Change(
        "The axis labels of loss curves in the terminal UI should change.",
        "app/midstream/tui/widgets/plot_axes.py",
        "",
    ),
    Change(
        "An option of the SSH configuration is resolved in another way for an entry of the fleet file.",
        "app/midstream/hosts/ssh/resolved_options.py",
        "",
    ),
    Change(
        "The number of streams of a copy should follow the speed of the link in another way.",
        "app/midstream/transfer/link.py",
        "app/midstream/transfer/stream_pool.py",
    ),
    Change(
        "The supervisor beside each engine should record the signal that ended it in another way.",
        "engine/midstream_host/supervise.py",
        "",
    ),
    Change(
        "TPU slices should be looked up with one more field of the service.",
        "app/midstream/providers/tpu/lookup.py",
        "",
    ),
    Change(
        "The page of the command line reference should group flags in another way: which file makes it?",
        "tools/pages/cli_page.py",
        "",
    ),
    Change(
        "The Llama model gets another form of its gate.",
        "engine/midstream_engine/models/llama.py",
        "",
    ),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.place)
def test_places_exist(change: Change) -> None:
    assert (REPOSITORY / change.place).exists()


def test_architecture_has_the_score() -> None:
    right = sum(not change.foreseen for change in CHANGES)
    assert right >= 18
    page = (REPOSITORY / "docs/explanation/architecture.md").read_text()
    assert re.findall(r"named (\d+) of (\d+) places", page) == [(str(right), str(len(CHANGES)))]
