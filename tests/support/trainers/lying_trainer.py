"""A training script without torch that deviates in one way, and its model, by which a test computes what is right.

``DEVIATION`` in its environment is the deviation, as JSON: see `draw`. Each update is written to ``TRUTH`` as it was
really done, apart from what the script logs.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

MODEL = '''
"""Linear regression by SGD with momentum; order of the data, noise and schedule are parts of the state."""

SAMPLES, BATCH, STEPS = 64, 4, 4000


def fresh(seed):
    return {"weights": [0.0] * 4, "momentum": [0.0] * 4, "step": 0, "position": 0, "random": seed}


def batch_of(state, size=BATCH):
    return [(state["position"] + index) * 37 % SAMPLES for index in range(size)]


def rate_of(step):
    return 0.02 * (1 - 0.5 * step / STEPS)


def advance(state, batch, rate):
    """Do one update; return its loss."""
    state["random"] = (state["random"] * 1103515245 + 12345) % (1 << 31)
    noise = state["random"] / (1 << 31)
    loss, slope = 0.0, [0.0] * 4
    for index in batch:
        inputs = [((index * 7 + each * 3) % 11) / 11 for each in range(4)]
        error = sum(w * x for w, x in zip(state["weights"], inputs)) - (index % 5) - noise
        loss += error * error / len(batch)
        slope = [old + 2 * error * x / len(batch) for old, x in zip(slope, inputs)]
    state["momentum"] = [0.5 * m + s for m, s in zip(state["momentum"], slope)]
    state["weights"] = [w - rate * m for w, m in zip(state["weights"], state["momentum"])]
    state["step"] += 1
    state["position"] += len(batch)
    return loss
'''

TRAIN = """
import argparse, copy, json, os, re, signal, sys, time
import model

flags = argparse.ArgumentParser()
flags.add_argument("--out", required=True)
flags.add_argument("--resume", default="")
options = flags.parse_args()
deviation = json.loads(os.environ["DEVIATION"])
kind, amount, every = deviation["kind"], deviation["amount"], deviation["every"]
tap = None
if deviation["tap"]:
    import midstream_tap
    tap = midstream_tap.Tap()

state = model.fresh(deviation["random"])
named = int(re.search(r"ckpt-(\\d+)", options.resume).group(1)) if options.resume else 0
history, size, schedule, began, resumed = [], model.BATCH, lambda step: step, 0, bool(options.resume)
if resumed and kind == "ignores, but counts on":
    state["step"], state["position"] = named, named * model.BATCH
elif resumed and kind != "ignores":
    with open(options.resume) as file:
        stored = json.load(file)
        stored = stored.get("inner", stored)
    stored["step"] += kind == "last index"
    history = stored.pop("history")
    previous = stored.pop("previous")
    if kind == "reads, and ignores":
        state["step"], state["position"] = stored["step"], stored["position"]
    elif kind == "older" and previous:
        state = previous
    elif kind == "older, renumbered" and previous:
        state = {**previous, "step": stored["step"]}
    else:
        state = stored
    if kind == "repeats":
        state["position"] -= amount * model.BATCH
    elif kind == "skips":
        state["position"] += amount * model.BATCH
    elif kind == "counter":
        began = state["step"]
    elif kind == "rate":
        schedule = None
    elif kind == "schedule lags":
        schedule = lambda step: step - amount
    elif kind == "schedule begins again":
        begun = state["step"]
        schedule = lambda step: step - begun
    elif kind == "batch":
        size = 2 if amount % 2 else 8
    elif kind == "seed":
        state["random"] = deviation["random"] + amount
    elif kind == "forgets momentum":
        state["momentum"] = [0.0] * 4

os.makedirs(options.out, exist_ok=True)
truth = open(os.path.join(os.environ["TRUTH"], "%s-%d.jsonl" % ("target" if resumed else "source", os.getpid())), "w")
stopping = []
if deviation["saves"]:
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
waiting = []

started, clock = time.time(), deviation["clock"]
def shown(when):
    return {"day": when, "milliseconds": when * 1e3, "of the step": 0.25, "since the start": when - started}[clock]

def write_rows():
    if deviation["source"] == "jsonl":
        path = os.path.join(options.out, "metrics.jsonl")
        if kind == "rotates" and os.path.exists(path) and os.path.getsize(path) > 2000:
            os.rename(path, path + ".1")
        with open(os.path.join(options.out, "metrics.jsonl"), "a") as file:
            for row in waiting:
                names = {deviation["step_name"]: row["step"], "loss": row["loss"], "learning_rate": row["rate"]}
                file.write(json.dumps({**names, "time": shown(row["time"])} if deviation["timed"] else names) + "\\n")
    elif deviation["source"] == "csv":
        path = os.path.join(options.out, "metrics.csv")
        new = not os.path.exists(path)
        with open(path, "a") as file:
            if new:
                file.write("step,loss,learning_rate,time\\n")
            for row in waiting:
                file.write("%d,%r,%r,%r\\n" % (row["step"], row["loss"], row["rate"], shown(row["time"])))
    else:
        end = "\\r" if kind == "bars" else "\\n"
        for row in waiting:
            sys.stdout.write("step %d loss %r rate %r%s" % (row["step"], row["loss"], row["rate"], end))
        if kind == "bars":
            sys.stdout.write("\\n")
        sys.stdout.flush()
    del waiting[:]

def log(step, loss, rate, when):
    row = {"step": step - began, "loss": loss, "rate": rate, "time": when}
    history.append({**row, "step": step})
    del history[:-30]
    waiting.append(row)
    if kind not in ("loses rows", "bars") or len(waiting) >= amount:
        write_rows()

if resumed and kind == "old rows" and deviation["source"] != "regex":
    for row in list(history):
        log(row["step"], row["loss"], row["rate"], time.time() if deviation["new_times"] else row["time"])

def save(what, number):
    if kind == "half" and number // every % 2 == 0:
        with open(os.path.join(options.out, "ckpt-%d.json" % number), "w") as file:
            text = json.dumps(what)
            file.write(text[: len(text) // 2])
        return
    if kind == "other name":
        number += amount
    elif kind == "last index":  # a common script: its loop goes on behind the step that it has saved
        number, what = number - 1, {**what, "step": what["step"] - 1}
    elif kind == "earlier name":
        number -= min(amount, number - 1)
    if "name" in kind:  # nothing but its name shows its step
        what = {"inner": what}
    path = os.path.join(options.out, "ckpt-%d.json" % number)
    with open(path + ".tmp", "w") as file:
        json.dump(what, file)
    os.replace(path + ".tmp", path)

before, due = None, []
while state["step"] < model.STEPS:
    step = state["step"]
    batch = model.batch_of(state, size)
    rate = model.rate_of(schedule(step)) if schedule else model.rate_of(step) * (1 + amount / 10)
    if tap:
        tap.batch(step, batch)
    loss = model.advance(state, batch, rate)
    truth.write(json.dumps({"step": step, "batch": batch, "rate": rate, "loss": loss, "state": state}) + "\\n")
    truth.flush()
    log(step, loss, rate, time.time())
    if state["step"] % every == 0 or stopping:
        kept = {**copy.deepcopy(state), "previous": before, "history": list(history)}
        before = copy.deepcopy(state)
        if kind in ("late", "late, with a later state") and not stopping:
            due.append((state["step"] + amount, state["step"], kept))
        else:
            save(kept, state["step"])
    if due and state["step"] >= due[0][0]:
        _, number, kept = due.pop(0)
        save(kept if kind == "late" else {**copy.deepcopy(state), "previous": before, "history": list(history)}, number)
    if stopping:
        sys.exit(0)
    time.sleep(deviation["pause"])
"""

RUN_FILE = """\
trainer: script
command: "{{python}} train.py --out {{out}}"
resume: "{{python}} train.py --out {{out}} --resume {{checkpoint}}"
steps: 4000
files: ["*.py"]
checkpoints: {{rule: glob, pattern: "ckpt-*.json"}}
metrics: {metrics}
stop: {{grace: 10, saves: {saves}}}
environment: {{variables: {{DEVIATION: {deviation}, TRUTH: {truth}}}}}
"""
METRICS = {
    "jsonl": '{source: jsonl, path: "{out}/metrics.jsonl*"}',
    "csv": '{source: csv, path: "{out}/metrics.csv"}',
    "regex": "{source: regex, "
    "pattern: 'step (?P<step>[0-9]+) loss (?P<loss>[^ ]+) rate (?P<learning_rate>[^ \\r\\n]+)'}",
}
HONEST, ON_RESUME, AT_THE_SOURCE = (
    ("honest", "last index", "rotates"),
    (
        "ignores", "ignores, but counts on", "reads, and ignores", "older", "older, renumbered", "repeats", "skips",
        "counter", "rate", "schedule lags", "schedule begins again", "batch", "seed", "forgets momentum", "old rows",
    ),
    ("loses rows", "late", "late, with a later state", "half", "other name", "earlier name", "bars"),
)  # fmt: skip
KINDS = (*HONEST, *ON_RESUME, *AT_THE_SOURCE)


def draw(rng: random.Random) -> dict[str, Any]:
    """Return a deviation, and the trainer that has it."""
    kind = rng.choice(KINDS)
    source = "regex" if kind == "bars" else rng.choice(("jsonl", "jsonl", "csv", "regex"))
    counted = source == "jsonl" and rng.random() < (0.5 if kind == "counter" else 0.05)
    amount = rng.randint(2, 12)
    if kind in ("other name", "rate") and rng.random() < 0.4:
        amount = 5000 if kind == "other name" else -rng.randint(1, 6)
    return {
        "kind": kind,
        "amount": amount,
        "source": source,
        "timed": rng.random() < 0.7,
        "step_name": "_step" if counted else "step",
        "new_times": rng.random() < 0.5,
        "saves": rng.random() < 0.3,
        "tap": rng.random() < 0.3,
        "every": rng.choice((15, 20, 25)),
        "pause": rng.choice((0.01, 0.02)),
        "random": rng.randrange(1 << 20),
        "clock": rng.choice(("day", "day", "day", "milliseconds", "of the step", "since the start")),
    }


def write_lying_script(directory: Path, deviation: dict[str, Any], truth: Path) -> Path:
    """Write the script and its run file; return the run file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    truth.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(TRAIN)
    (directory / "model.py").write_text(MODEL)
    file = directory / "run.yaml"
    file.write_text(
        RUN_FILE.format(
            metrics=METRICS[deviation["source"]],
            saves=str(deviation["saves"]).lower(),
            deviation=json.dumps(json.dumps(deviation)),
            truth=json.dumps(str(truth)),
        )
    )
    return file


def undisturbed(seed: int, steps: int) -> list[dict[str, Any]]:
    """Return the first updates of a run that nothing interrupts, as the script writes them to its truth."""
    model: dict[str, Any] = {}
    exec(MODEL, model)
    state = model["fresh"](seed)
    found: list[dict[str, Any]] = []
    for step in range(steps):
        batch, rate = model["batch_of"](state), model["rate_of"](step)
        loss = model["advance"](state, batch, rate)
        found.append({"step": step, "batch": batch, "rate": rate, "loss": loss, "state": {**state}})
    return found
