#!/bin/sh
# Accelerate's seedable sampler draws the order of each epoch from seed and epoch, and `save_state` stores no epoch. After
# `load_state` in the third epoch the batches follow in the order of the first one, with `skip_first_batches` too: part of the data
# is trained twice and part never in that epoch. Call `loader.set_epoch(epoch)` after the load.
#
# Seen with torch 2.13.0, accelerate 1.15.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   undisturbed, third epoch after its first batch: [[2, 5], [1, 7], [3, 4]]
#   resumed, without set_epoch:                     [[3, 4], [1, 5], [2, 6]]
#   resumed, with set_epoch(2):                     [[2, 5], [1, 7], [3, 4]]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.state import AcceleratorState, GradientState


def build():
    AcceleratorState._reset_state(True)  # as in a new process
    GradientState._reset_state()
    settings = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=7)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=2, shuffle=True)
    return accelerator, accelerator.prepare(loader)

accelerator, loader = build()
epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
accelerator, loader = build()
for _ in range(2):
    for _ in loader:
        pass
accelerator.save_state("saved")
found = {}
for sets in (False, True):
    accelerator, loader = build()
    accelerator.load_state("saved")
    if sets:
        loader.set_epoch(2)
    found[sets] = [batch.tolist() for batch in skip_first_batches(loader, 1)]
print("undisturbed, third epoch after its first batch:", epochs[2][1:])
print("resumed, without set_epoch:                    ", found[False])
print("resumed, with set_epoch(2):                    ", found[True])
assert found[True] == epochs[2][1:] and found[False] == epochs[0][1:] != epochs[2][1:]
EOF
venv/bin/python -W ignore finding.py
