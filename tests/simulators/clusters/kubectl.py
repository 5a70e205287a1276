"""A stand-in for kubectl over processes of this machine: a pod is a directory, an exec a process with its environment.

It supports the commands and flags that midstream uses, and no others, with kubectl's messages and exit codes. Pods of
an applied Job start at once, or when ``ready`` is called.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

PROGRAM = """#!{python}
import json, os, pathlib, signal, subprocess, sys, threading
import yaml
STATE = pathlib.Path({state!r})


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def pods(namespace):
    found = []
    for path in sorted((STATE / "pods").glob("*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except FileNotFoundError:  # another process deletes it
            continue
    return [pod for pod in found if pod["metadata"]["namespace"] == namespace]


def write(path, value):
    new = path.with_name(path.name + "." + str(os.getpid()))
    new.write_text(json.dumps(value))
    new.replace(path)  # complete at any time, for the processes that read it


def selected(namespace, selector):
    wanted = dict(part.split("=", 1) for part in selector.split(",")) if selector else {{}}
    return [pod for pod in pods(namespace) if wanted.items() <= pod["metadata"]["labels"].items()]


def job_pods(manifest, namespace):
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    labels, spec = {{}}, manifest["spec"]
    if kind == "JobSet":
        [job] = spec["replicatedJobs"]
        labels["jobset.sigs.k8s.io/jobset-name"] = name
        spec, name = job["template"]["spec"], name + "-" + job["name"] + "-0"
    assert spec.get("completionMode") == "Indexed" and spec["parallelism"] == spec["completions"], spec
    for index in range(spec["completions"]):
        labels = {{**labels, **spec["template"]["metadata"].get("labels", {{}}), "batch.kubernetes.io/job-name": name,
                  "job-name": name, "batch.kubernetes.io/job-completion-index": str(index)}}
        yield {{"metadata": {{"name": name + "-" + str(index) + "-x7k2p", "namespace": namespace, "labels": labels}},
               "spec": spec["template"]["spec"],
               "status": {{"phase": "Pending" if (STATE / "hold").exists() else "Running"}}}}


def delete(words, namespace):
    path = STATE / "applied" / (words[2] + ".json")
    if not path.exists():
        if "ignore-not-found" in flags:
            return
        fail('Error from server (NotFound): %s "%s" not found' % (words[1], words[2]))
    for pod in list(pods(namespace)):
        name = pod["metadata"]["name"]
        if name.startswith(words[2] + "-"):
            for pid in (STATE / name).glob("pid-*"):
                try:
                    os.killpg(int(pid.name[4:]), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            (STATE / "pods" / (name + ".json")).unlink()
    path.unlink()
    print('%s "%s" deleted' % (words[1], words[2]))


flags, words = {{}}, []
arguments = sys.argv[1:]
while arguments:
    word = arguments.pop(0)
    if word == "--":
        break
    if word.startswith("--"):
        key, equals, value = word[2:].partition("=")
        flags[key] = value if equals else True
    elif word in ("-f", "-it"):
        flags[word] = arguments.pop(0) if word == "-f" else True
    else:
        words.append(word)
with open(STATE / "calls.jsonl", "a") as calls:
    calls.write(json.dumps([*words, flags]) + "\\n")
if (STATE / "down").exists():
    fail("Unable to connect to the server: dial tcp 127.0.0.1:6443: connect: connection refused")
if flags.get("context", "lab") != "lab":
    fail('error: context "%s" does not exist' % flags["context"])
namespace = flags.get("namespace", "default")
if words[:1] == ["get"] and words[1] in ("pod", "pods"):
    if len(words) > 2:
        found = [pod for pod in pods(namespace) if pod["metadata"]["name"] == words[2]]
        if not found:
            fail('Error from server (NotFound): pods "%s" not found' % words[2])
        print(json.dumps(found[0]))
    elif flags.get("output") == "name":
        phase = flags.get("field-selector", "").partition("=")[2]
        for pod in selected(namespace, flags.get("selector", "")):
            if phase in ("", pod["status"]["phase"]):
                print("pod/" + pod["metadata"]["name"])
    else:
        print(json.dumps({{"kind": "List", "items": selected(namespace, flags.get("selector", ""))}}))
elif words[:1] == ["apply"]:
    manifests = list(yaml.safe_load_all(sys.stdin.read()))
    for manifest in manifests:
        jobs = manifest["kind"] in ("Job", "JobSet")
        for pod in job_pods(manifest, manifest["metadata"].get("namespace", namespace)) if jobs else ():
            write(STATE / "pods" / (pod["metadata"]["name"] + ".json"), pod)
            (STATE / pod["metadata"]["name"]).mkdir(exist_ok=True)
        (STATE / "applied").joinpath(manifest["metadata"]["name"] + ".json").write_text(json.dumps(manifest))
        print("%s/%s created" % (manifest["kind"].lower(), manifest["metadata"]["name"]))
elif words[:1] == ["get"]:
    path = STATE / "applied" / (words[2] + ".json")
    if not path.exists():
        if "ignore-not-found" in flags:
            sys.exit()
        fail('Error from server (NotFound): %s "%s" not found' % (words[1], words[2]))
    print(path.read_text())
elif words[:1] == ["delete"]:
    named = [words[2]] if len(words) > 2 else []
    if "-f" in flags:
        named = [each["metadata"]["name"] for each in yaml.safe_load_all(sys.stdin.read())]
    for words in (["delete", "job", each] for each in named):
        delete(words, namespace)
elif words[:1] == ["exec"]:
    name = words[1].removeprefix("pod/")
    found = [pod for pod in pods(namespace) if pod["metadata"]["name"] == name]
    if not found:
        fail('Error from server (NotFound): pods "%s" not found' % name)
    if found[0]["status"]["phase"] != "Running":
        fail("error: cannot exec into a container in a completed pod; current phase is " + found[0]["status"]["phase"])
    containers = [one["name"] for one in found[0]["spec"]["containers"]]
    if flags.get("container", containers[0]) not in containers:
        fail("Error from server (BadRequest): container %s is not valid for pod %s" % (flags["container"], name))
    home = STATE / name
    env = {{key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}}
    env.update(HOME=str(home), HOSTNAME=name, **{{one["name"]: one["value"]
               for one in found[0]["spec"]["containers"][0].get("env", []) if "value" in one}})
    child = subprocess.Popen(arguments, env=env, cwd=str(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    (home / ("pid-%d" % child.pid)).touch()

    def pump(source, sink, close):
        try:
            while data := os.read(source, 1 << 16):
                while data:
                    data = data[os.write(sink, data):]
        except OSError:
            pass
        if close:
            child.stdin.close()

    if "stdin" in flags or "-it" in flags:
        threading.Thread(target=pump, args=(0, child.stdin.fileno(), True), daemon=True).start()
    else:
        child.stdin.close()
    pumps = [threading.Thread(target=pump, args=(pipe.fileno(), number, False), daemon=True)
             for pipe, number in ((child.stdout, 1), (child.stderr, 2))]
    for each in pumps:
        each.start()
    for each in pumps:
        while each.is_alive():
            if (STATE / "cut").exists():  # the connection breaks: the process in the pod goes on
                print("error: unexpected EOF", file=sys.stderr, flush=True)
                os._exit(1)
            each.join(0.02)
    child.wait()
    if child.returncode:
        code = child.returncode if child.returncode > 0 else 128 - child.returncode
        fail("command terminated with exit code %d" % code, code)
else:
    fail("error: unknown command %r" % words)
"""


class Cluster:
    """The state of the stand-in; ``program`` is a directory for the PATH."""

    def __init__(self, directory: Path) -> None:
        self.state, self.program = directory / "state", directory / "bin"
        for path in (self.state / "pods", self.state / "applied", self.program):
            path.mkdir(parents=True)
        kubectl = self.program / "kubectl"
        kubectl.write_text(PROGRAM.format(python=sys.executable, state=str(self.state)))
        kubectl.chmod(0o755)

    def pod(self, name: str, namespace: str = "default", phase: str = "Running", **labels: str) -> Path:
        """Create a pod, or change it; return its directory."""
        value = {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
            "status": {"phase": phase},
        }
        (self.state / "pods" / f"{name}.json").write_text(json.dumps(value))
        (self.state / name).mkdir(exist_ok=True)
        return self.state / name

    def set_flag(self, name: str, on: bool = True) -> None:
        """``down``: the server does not answer; ``cut``: connections break; ``hold``: pods stay pending."""
        path = self.state / name
        path.touch() if on else path.unlink(missing_ok=True)

    def ready(self) -> None:
        """Let all pods run."""
        self.set_flag("hold", on=False)
        for path in (self.state / "pods").glob("*.json"):
            value = json.loads(path.read_text())
            value["status"]["phase"] = "Running"
            new = path.with_name(f"{path.name}.new")
            new.write_text(json.dumps(value))
            new.replace(path)  # kubectl may be reading it

    def applied(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.state / "applied").glob("*.json"))]

    def calls(self) -> list[list[Any]]:
        path = self.state / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def parse_manifest(text: str) -> list[dict[str, Any]]:
    """Parse YAML documents."""
    return list(yaml.safe_load_all(text))
