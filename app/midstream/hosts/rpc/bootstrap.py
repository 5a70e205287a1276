"""Program that a host's Python runs: read modules, create them, run a function."""

from __future__ import annotations

# No module is ever imported from the directory that an interpreter happens to start in: -I leaves it out, and with it
# PYTHON* and the user's packages. What needs a client of a bucket needs those, and has the first line of the bootstrap
# instead, before which `sys` alone, a part of the interpreter, is imported (-P exists from Python 3.11 on).
CLIENTS = "bucket."
# stdout belongs to the answer: what a module prints by mistake goes to stderr. So do empty lines, every two seconds: a
# server may close a channel on which nothing moves (ChannelTimeout).
# Only the forks of this machine (`local_forks`) have modules already.
# A prepared call has no arguments in its job: they follow in a second line, or the interpreter ends.
# The clients of buckets make many objects that stay: the collector would walk through them again and again, and for
# 0.2 s as the interpreter exits.
BOOTSTRAP = """\
import sys; sys.path[:] = [place for place in sys.path if place]
import gc, json, types, os, time, _thread
gc.set_threshold(20000, 20, 20)
def beat():
    try:
        while True:
            time.sleep(2.0); os.write(2, b"\\n")
    except OSError: return
_thread.start_new_thread(beat, ())
out = os.fdopen(os.dup(1), "wb"); os.dup2(2, 1)
job, present = json.loads(sys.stdin.buffer.readline()), set(sys.modules)
for name, text in job["modules"]:
    if name in present: continue
    module = sys.modules.setdefault(name, types.ModuleType(name))
    if text is None: module.__path__ = []
    else: exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
    head, _, tail = name.rpartition(".")
    if head: setattr(sys.modules[head], tail, module)
function, arguments = getattr(sys.modules[job["module"]], job["function"]), job["arguments"]
if arguments is None: arguments = json.loads(sys.stdin.buffer.readline() or sys.exit(0))
if job["program"]:
    sys.stdout = types.SimpleNamespace(buffer=out, write=lambda text: out.write(text.encode()), flush=out.flush)
    out.write(b"\\0midstream\\n"); out.flush()
    code = function(**arguments); out.flush(); gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)
else:
    try: answer = {"value": function(**arguments)}
    except Exception as error: answer = {"error": str(error) or repr(error), "kind": type(error).__name__}
    plain = lambda value: value.to_json() if hasattr(value, "to_json") else vars(value)
    out.write(b"\\n" + json.dumps(answer, default=plain).encode() + b"\\n"); out.flush(); gc.freeze()
"""


def isolation(function: str) -> list[str]:
    """Return the interpreter's flags for ``midstream_host.<function>``."""
    return [] if function.startswith(CLIENTS) else ["-I"]
