#!/bin/sh
# The state of torchdata's StatefulDataLoader with StatefulDistributedSampler has the number of samples, and not the epoch that
# `set_epoch` has set. A resume in the third epoch goes on in the order of the first one: samples are repeated and left
# out, without a word. Call `sampler.set_epoch(epoch)` before the first batch.
#
# Seen with torch 2.13.0, torchdata 0.11.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   undisturbed, rest of the third epoch: [[3, 7], [2, 0], [8, 5]]
#   resumed by the state alone:           [[5, 3], [2, 9], [10, 7]]
#   resumed with set_epoch(2):            [[3, 7], [2, 0], [8, 5]]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torchdata==0.11.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

def make():
    data = list(range(12))
    sampler = StatefulDistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=1)
    return sampler, StatefulDataLoader(data, batch_size=2, sampler=sampler)

sampler, loader = make()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for _ in loader:
        pass
sampler.set_epoch(2)
batches = iter(loader)
for _ in range(3):
    next(batches)
state = loader.state_dict()
rest = [batch.tolist() for batch in batches]
found = {}
for sets in (False, True):
    sampler, loader = make()
    loader.load_state_dict(state)
    if sets:
        sampler.set_epoch(2)
    found[sets] = [batch.tolist() for batch in loader]
print("undisturbed, rest of the third epoch:", rest)
print("resumed by the state alone:          ", found[False])
print("resumed with set_epoch(2):           ", found[True])
assert found[True] == rest != found[False]
EOF
venv/bin/python -W ignore finding.py
