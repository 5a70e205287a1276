"""A training script of nanoGPT's kind, without torch: linear regression by SGD, with its data order and its state.

Each update consumes the next batch of a shuffled order; the state is parameters, position and random state. It is
exact: a run that resumes anywhere has the losses of one that was never interrupted.
"""

from __future__ import annotations

from pathlib import Path

from midstream_core import records

TRAIN = """
import argparse, json, os, random, signal, sys, time
from model import gradient

flags = argparse.ArgumentParser()
flags.add_argument("--out", required=True)
flags.add_argument("--steps", type=int, default=400)
flags.add_argument("--every", type=int, default=20)
flags.add_argument("--pause", type=float, default=0.02)
flags.add_argument("--resume", default="")
flags.add_argument("--save-on-signal", action="store_true")
flags.add_argument("--forget-data", action="store_true")  # as a plain shuffled loader does
flags.add_argument("--ignore-checkpoint", action="store_true")  # as a script does that accepts --resume alone
flags.add_argument("--stop-at", type=int, default=0)
flags.add_argument("--own-directory", action="store_true")  # ranks after the first write beside its files
options = flags.parse_args()
if options.own_directory and os.environ.get("RANK", "0") != "0":
    options.out = os.path.join(options.out, "rank-" + os.environ["RANK"])
    os.makedirs(options.out, exist_ok=True)
try:
    import midstream_tap
    tap = midstream_tap.Tap() if os.environ.get("TAP") else None
except ImportError:
    tap = None

order = list(range(64))
random.Random(0).shuffle(order)
state = {"weights": [0.0] * 8, "step": 0, "position": 0, "random": None}
generator = random.Random(1)
if options.resume and not options.ignore_checkpoint:
    state = json.load(open(options.resume))
    generator.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
    if options.forget_data:
        state["position"] = 0

def save():
    kind, numbers, gauss = generator.getstate()
    state["random"] = [kind, list(numbers), gauss]
    path = os.path.join(options.out, "ckpt-%d.json" % state["step"])
    with open(path + ".tmp", "w") as file:
        json.dump(state, file)
    os.replace(path + ".tmp", path)

stopping = []
if options.save_on_signal:
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
log = open(os.path.join(options.out, "metrics.jsonl"), "a")
while state["step"] < options.steps:
    step = state["step"]
    batch = [order[(state["position"] + index) % len(order)] for index in range(4)]
    if tap:
        tap.batch(step, batch)
    rate = 0.05 * (1 - step / options.steps)
    loss, slope = gradient(state["weights"], batch, generator.random())
    state["weights"] = [weight - rate * each for weight, each in zip(state["weights"], slope)]
    state["step"], state["position"] = step + 1, state["position"] + 4
    log.write(json.dumps({"step": step, "loss": loss, "learning_rate": rate, "time": time.time()}) + "\\n")
    log.flush()
    if options.stop_at and step + 1 == options.stop_at:
        sys.exit(0)
    if state["step"] % options.every == 0 or stopping:
        save()
    if stopping:
        print("saved on a signal", flush=True)
        sys.exit(0)
    time.sleep(options.pause)
save()
"""

MODEL = '''
def gradient(weights, batch, noise):
    """Return loss and gradient of a batch; the noise makes each loss depend on the random state."""
    loss, slope = 0.0, [0.0] * len(weights)
    for index in batch:
        inputs = [((index * 7 + each * 3) % 11) / 11 for each in range(len(weights))]
        error = sum(weight * value for weight, value in zip(weights, inputs)) - (index % 5) - 0.01 * noise
        loss += error * error / len(batch)
        slope = [old + 2 * error * value / len(batch) for old, value in zip(slope, inputs)]
    return loss, slope
'''

RUN_FILE = """\
trainer: script
command: "{{python}} train.py --out {{out}} --steps {steps} --every {every} --pause {pause} {flags}"
resume: >-
  {{python}} train.py --out {{out}} --steps {steps} --every {every} --pause {pause} {flags} --resume {{checkpoint}}
steps: {steps}
files: ["*.py"]
checkpoints: {{rule: glob, pattern: "ckpt-*.json"}}
metrics: {{source: jsonl, path: "{{out}}/metrics.jsonl"}}
stop: {{grace: 10, saves: {saves}}}
{more}
"""


def write_script(
    directory: Path,
    *,
    steps: int = 400,
    every: int = 20,
    pause: float = 0.02,
    flags: str = "",
    saves: bool = False,
    more: str = "",
) -> Path:
    """Write the script and its run file, and return the run file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(TRAIN)
    (directory / "model.py").write_text(MODEL)
    file = directory / "run.yaml"
    flags += " --save-on-signal" * saves
    text = RUN_FILE.format(steps=steps, every=every, pause=pause, flags=flags, saves=str(saves).lower(), more=more)
    file.write_text(text)
    return file


def recorded(paths: records.RunPaths) -> list[str]:
    """Return the names of the complete checkpoints of a run on a disk."""
    directory = Path(paths.checkpoints)
    return sorted(path.parent.name for path in directory.glob(f"*/{records.MANIFEST}"))


NODE = """
import json, os, runpy, sys, time

rank = int(sys.argv.pop(1))
if rank == 0:
    runpy.run_path("train.py", run_name="__main__")
    sys.exit()
out = sys.argv[sys.argv.index("--out") + 1]
with open(os.path.join(out, "node-%d.json" % rank), "w") as file:
    json.dump({"pid": os.getpid(), "argv": sys.argv, "rank": os.environ["NODE_RANK"]}, file)
while True:
    time.sleep(0.05)
"""


def write_node_script(directory: Path, *, steps: int, every: int) -> Path:
    """Write the script as one that runs on several nodes, the first of which computes; return its run file's path."""
    file = write_script(directory, steps=steps, every=every, more="batch: {kept_by: trainer}")
    (directory / "node.py").write_text(NODE)
    text = (
        file.read_text().replace(" train.py ", " node.py {rank} ").replace("rule: glob,", "rule: glob, reshards: true,")
    )
    file.write_text(text)
    return file
