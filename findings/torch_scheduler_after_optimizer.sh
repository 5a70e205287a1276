#!/bin/sh
# A learning-rate scheduler that is created after the optimizer's state was loaded sets the rate of its first step.
# `scheduler.load_state_dict` does not set it back: the first update after the resume has the rate of step 0, while
# `get_last_lr()` reports the right one. Create the scheduler first, then load both.
#
# Seen with torch 2.13.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   undisturbed: next update at 0.7
#   scheduler created first: next update at 0.7
#   scheduler created after the load: next update at 0.1, get_last_lr() 0.7
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import torch

def ramp(step):
    return min(1.0, (step + 1) / 10)

def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)

def scheduler(of):
    return torch.optim.lr_scheduler.LambdaLR(of, ramp)

first = optimizer()
steps = scheduler(first)
for _ in range(6):
    first.step()
    steps.step()
saved = first.state_dict(), steps.state_dict()
right = first.param_groups[0]["lr"]
print(f"undisturbed: next update at {right:.1f}")

good = optimizer()
steps = scheduler(good)
good.load_state_dict(saved[0])
steps.load_state_dict(saved[1])
print(f"scheduler created first: next update at {good.param_groups[0]['lr']:.1f}")

bad = optimizer()
bad.load_state_dict(saved[0])
steps = scheduler(bad)
steps.load_state_dict(saved[1])
print(f"scheduler created after the load: next update at {bad.param_groups[0]['lr']:.1f}, "
      f"get_last_lr() {steps.get_last_lr()[0]:.1f}")
assert good.param_groups[0]["lr"] == right and abs(right - 0.7) < 1e-9
assert abs(bad.param_groups[0]["lr"] - 0.1) < 1e-9 and abs(steps.get_last_lr()[0] - 0.7) < 1e-9
EOF
venv/bin/python -W ignore finding.py
