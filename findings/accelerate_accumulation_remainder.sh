#!/bin/sh
# Accelerate's `save_state` within a window of gradient accumulation stores the count of micro-batches, and not their
# gradients. After `load_state` the count goes on: the first update is made of the rest of the window alone, still divided
# by its full length. With 2 of 4 micro-batches before the save, that update is half of what it was. Save only where
# `accelerator.sync_gradients` is true.
#
# Seen with torch 2.13.0, accelerate 1.15.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   undisturbed: update after micro-batch 8 of -1.0
#   resumed at 6 of 8: update after micro-batch 8 of -0.5
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState


def build():
    AcceleratorState._reset_state(True)  # as in a new process
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = torch.utils.data.DataLoader(torch.ones(16, 1), batch_size=1)
    return (accelerator, *accelerator.prepare(model, optimizer, loader))

def train(accelerator, model, optimizer, batches, first, last):
    updates = {}
    for number, batch in enumerate(batches, first + 1):
        before = model.weight.item()
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())  # a gradient of 1
            optimizer.step()
            optimizer.zero_grad()
        if model.weight.item() != before:
            updates[number] = model.weight.item() - before
        if number == last:
            break
    return updates

accelerator, model, optimizer, loader = build()
right = train(accelerator, model, optimizer, loader, 0, 8)
print(f"undisturbed: update after micro-batch 8 of {right[8]}")

accelerator, model, optimizer, loader = build()
train(accelerator, model, optimizer, loader, 0, 6)
accelerator.save_state("saved")
accelerator, model, optimizer, loader = build()
accelerator.load_state("saved")
resumed = train(accelerator, model, optimizer, skip_first_batches(loader, 6), 6, 12)
print(f"resumed at 6 of 8: update after micro-batch 8 of {resumed[8]}")
assert right == {4: -1.0, 8: -1.0} and resumed == {8: -0.5, 12: -1.0}
EOF
venv/bin/python -W ignore finding.py
