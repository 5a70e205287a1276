"""Temporary."""

import glob
import json
import os
import re

from midstream_engine.foreign.run_file import below


class _Lines:
    def __init__(self, path, parse):
        self.path, self.parse, self.offset = path, parse, 0

    def read(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                data = f.read()
        except FileNotFoundError:
            return []
        done = data[: data.rfind(b"\n") + 1]
        self.offset += len(done)
        return [r for r in map(self.parse, done.decode(errors="replace").splitlines()) if r]


class _State:
    def __init__(self, directory):
        self.d, self.n = directory, {}

    def read(self):
        rows = []
        for p in sorted(glob.glob(os.path.join(self.d, "checkpoint-*", "trainer_state.json"))):
            if p in self.n:
                continue
            try:
                rows += json.load(open(p))["log_history"]
            except Exception:
                continue
            self.n[p] = 1
        return sorted(rows, key=lambda r: r["step"])


def open_reader(setup, log):
    m = setup.run.metrics
    path = below(setup.directory, m.path, setup.run.out)
    if m.source == "regex":
        pattern = re.compile(m.pattern)

        def parse(line):
            found = pattern.search(line)
            return (
                None
                if not found
                else {
                    "step": int(found["step"]),
                    **{k: float(v) for k, v in found.groupdict().items() if k != "step" and v},
                }
            )

        return _Lines(log, parse)
    if m.source == "trainer_state":
        return _State(setup.checkpoints)

    def jsonl(line):
        try:
            return json.loads(line)
        except ValueError:
            return None

    return _Lines(path, jsonl)
