#!/bin/sh
# A state of torchdata's StatefulDataLoader that is taken after an epoch's last batch, as a checkpoint at the end of an epoch is, is
# of a loader that is not at its end: the resumed loader yields an epoch without batches first. A loop that counts
# epochs trains one fewer; one that evaluates or steps a schedule each epoch does it once more.
#
# Seen with torch 2.13.0, torchdata 0.11.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   batches of the first three passes after the resume: 0 6 6
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torchdata==0.11.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
from torchdata.stateful_dataloader import StatefulDataLoader

def make():
    return StatefulDataLoader(list(range(12)), batch_size=2)

loader = make()
for number, _ in enumerate(loader, 1):
    if number == 6:  # the last batch: the step after it saves
        state = loader.state_dict()
loader = make()
loader.load_state_dict(state)
passes = [len(list(loader)) for _ in range(3)]
print("batches of the first three passes after the resume:", *passes)
assert passes == [0, 6, 6]
EOF
venv/bin/python -W ignore finding.py
