"""Simulated SLURM commands for one machine: jobs are sessions, tasks are processes, nodes are names.

They support the flags that midstream uses, and no others.
"""

from __future__ import annotations

import sys
from pathlib import Path

COMMON = """#!{python}
import json, os, pathlib, re, signal, subprocess, sys, time
STATE = pathlib.Path({state!r})
def jobs(): return {{p.stem: json.loads(p.read_text()) for p in sorted(STATE.glob("*.json"))}}
def is_running(pid):
    try: return open(f"/proc/{{pid}}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError: return False
if "--version" in sys.argv: print("slurm stand-in 1"); sys.exit()
"""

SBATCH = """
words = sys.argv[1:]
script = words.pop()
if "--partition=none" in words: sys.exit("sbatch: error: invalid partition specified: none")
text = open(script).read()
flags = re.findall(r"^#SBATCH (--\\S+)", text, re.M) + words
flag = dict(word.lstrip("-").partition("=")[::2] for word in flags)
number = str(1000 + len(jobs()))
tasks = int(flag.get("nodes", 1)) * int(flag.get("ntasks-per-node", 1))
env = dict(os.environ, SLURM_JOB_ID=number, SLURM_NTASKS=str(tasks), SLURMD_NODENAME="127.0.0.1")
held = STATE / "hold"
out = open(flag["output"], "ab")
command = ["sh", "-c", 'while [ -e "$1" ]; do sleep 0.05; done; exec sh "$2"', "sh", str(held), script]
job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
(STATE / f"{number}.json").write_text(json.dumps({"pid": job.pid, "held": held.exists()}))
print(number + ";cluster")
"""

SRUN = """
kill = "--kill-on-bad-exit=1" in sys.argv
argv = [word for word in sys.argv[1:] if not word.startswith("--")]
count = int(os.environ["SLURM_NTASKS"])
tasks = [subprocess.Popen(argv, env=dict(os.environ, SLURM_PROCID=str(k))) for k in range(count)]
(STATE / ("tasks-" + os.environ["SLURM_JOB_ID"])).write_text(" ".join(str(task.pid) for task in tasks))
codes = {}
while len(codes) < len(tasks):
    for task in tasks:
        if task.poll() is not None and task.pid not in codes:
            codes[task.pid] = task.returncode
            if task.returncode and kill:
                for other in tasks:
                    if other.poll() is None: other.terminate()
    time.sleep(0.02)
sys.exit(max(abs(code) for code in codes.values()))
"""

SQUEUE = """
job = jobs().get(sys.argv[sys.argv.index("--jobs") + 1])
if job and is_running(job["pid"]):
    print("PENDING|Resources" if (STATE / "hold").exists() else "RUNNING|None")
"""

SACCT = """
job = sys.argv[sys.argv.index("--jobs") + 1]
if job in jobs(): print("FAILED|1:0")
"""

SCANCEL = """
name = next((sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--signal"), None)
job = sys.argv[-1]
if name is None:
    os.killpg(jobs()[job]["pid"], signal.SIGKILL)
else:
    for pid in (STATE / ("tasks-" + job)).read_text().split(): os.kill(int(pid), signal.Signals["SIG" + name])
"""

COMMANDS = {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE, "sacct": SACCT, "scancel": SCANCEL}


def write_slurm(directory: Path) -> Path:
    """Write the commands, and return their directory; ``hold`` in its ``state`` keeps jobs pending."""
    state = directory / "state"
    state.mkdir(parents=True)
    for name, body in COMMANDS.items():
        path = directory / name
        path.write_text(COMMON.format(python=sys.executable, state=str(state)) + body)
        path.chmod(0o755)
    return directory
