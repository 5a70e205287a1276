"""Hostile contents of a host's disk: damaged records, odd kinds of files, odd names."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from simulators.hostile.values import ESCAPES, RAW, Mutator, dumps, raw

SECRET = "the operator's own secret, which no host may read out of him"
HUGE = 64 << 20  # bytes


def record_files(run: Path) -> list[Path]:
    """Return the JSON records of a run that commands read."""
    found = [run / "fence.json", run / "lineage.json", run / "store.json", run / "migration_lock.json"]
    attempts = sorted((run / "attempts").iterdir())
    found += [
        attempts[-1] / name for name in ("status-0.json", "launch.json", "exit-0.json", "command.json", "slurm.json")
    ]
    checkpoints = sorted((run / "checkpoints").iterdir())
    found += [checkpoints[-1] / name for name in ("manifest.json", "train.json")]
    found += sorted((run / "pins").glob("*.json")) or [run / "pins" / "m.json"]
    return found


def damage_record(run: Path, mutator: Mutator) -> tuple[Path, str]:
    """Replace a record of a run with other JSON, or with text that is no JSON."""
    rng = mutator.rng
    files = record_files(run)
    file = rng.choice(
        [*files, *files[:2] * 3, *[each for each in files if each.name in ("status-0.json", "manifest.json")] * 3]
    )
    before = json.loads(file.read_text()) if file.exists() else {"url": "gs://x/y", "epoch": 1, "owner": "x", "job": 3}
    if rng.random() < 0.35:
        action = rng.choice((*RAW[:8], "not UTF-8", "BOM", "large"))
        text = json.dumps(before).encode()
        if action == "not UTF-8":
            new = b'{"epoch": "\xff\xfe\x80"}'
        elif action == "BOM":
            new = b"\xef\xbb\xbf" + text
        elif action == "large":
            new = text[:-1] + b', "more": "' + b"z" * HUGE + b'"}'
        else:
            new = raw(text, action, rng)
        what = f"raw {action}"
    else:
        new = dumps(mutator.value(before))
        what = mutator.what
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(new)
    return file, what


def odd_kind(run: Path, rng: random.Random, secret: Path) -> tuple[Path, str]:
    """Replace a file of a run with a FIFO, a link, a device, a directory or a socket."""
    attempt = sorted((run / "attempts").iterdir())[-1]
    files = [*record_files(run)[:2], run / "run.yaml", attempt / "status-0.json", attempt / "metrics.jsonl",
             attempt / "log-0.txt", attempt / "restore.json", attempt / "launch.json", run / "store.json",
             sorted((run / "checkpoints").iterdir())[-1] / "manifest.json", run / "checkpoints",
             run / "pins"]  # fmt: skip
    file = rng.choice(files)
    kinds: dict[str, Callable[[], object]] = {
        "FIFO": lambda: os.mkfifo(file),
        "link to a secret": lambda: file.symlink_to(secret),
        "link to /dev/zero": lambda: file.symlink_to("/dev/zero"),
        "link to /dev/tty": lambda: file.symlink_to("/dev/tty"),
        "link to itself": lambda: file.symlink_to(file.name),
        "link to nothing": lambda: file.symlink_to("nowhere/at/all"),
        "link to /": lambda: file.symlink_to("/"),
        "directory": lambda: file.mkdir(),
        "socket": lambda: _socket(file),
    }
    kind = rng.choice(sorted(kinds))
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    kinds[kind]()
    return file, kind


def _socket(file: Path) -> None:
    """Bind a socket by a short name: its path may have at most 107 characters."""
    before = os.getcwd()
    os.chdir(file.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name)
    finally:
        os.chdir(before)


ROWS = (
    '{"global_step": "7", "train/loss": 1.0}', '{"global_step": -5, "train/loss": 1.0}', '{"global_step": 1e400}',
    '{"global_step": null, "train/loss": "x"}', '{"global_step": 3, "train/loss": NaN}', "[1, 2]", "7", "null", "{",
    '{"global_step": 3, "train/loss": {"a": 1}}', '{"global_step": [3], "train/loss": 2}', '{"train/loss": 1}',
    '{"global_step": 99999999999999999999999, "train/loss": 1}', '{"global_step": 4.5, "train/loss": 1}',
    '{"global_step": 5, "train/loss": "\\u001b]52;c;aGk=\\u0007"}', '{"global_step": 6, "\\u001b[2J": 1}',
    '{"global_step": 2, "global_step": 9, "train/loss": 1}', '{"global_step": true, "train/loss": true}',
    '{"global_step": 3, "train/loss": 1e999}', '{"global_step": 8, "eval/loss": "x", "time": "soon"}',
    "[" * 50000 + "]" * 50000, "\x1b[2J\x1b]0;owned\x07", "\u202e{}", "\ufeff{}",
)  # fmt: skip


def odd_rows(run: Path, mutator: Mutator) -> tuple[Path, str]:
    """Write malformed rows of metrics between valid ones."""
    rng = mutator.rng
    file = sorted((run / "attempts").iterdir())[-1] / "metrics.jsonl"
    lines = file.read_text().splitlines()
    if rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines)), '{"global_step": 1, "x": "' + "z" * HUGE + '"}')
        what = "a long row"
    elif rng.random() < 0.5:
        row = rng.choice(ROWS)
        lines.insert(rng.randrange(len(lines) + 1), row)
        what = ascii(row)[:50]
    else:
        at = rng.randrange(len(lines))
        lines[at] = dumps(mutator.value(json.loads(lines[at]))).decode(errors="replace")
        what = mutator.what
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return file, what


def odd_text(run: Path, mutator: Mutator) -> tuple[Path, str]:
    """Write a log or a configuration with terminal control sequences."""
    rng = mutator.rng
    attempt = sorted((run / "attempts").iterdir())[-1]
    file = rng.choice([attempt / "log-0.txt", attempt / "log-0.txt", run / "run.yaml"])
    text = file.read_bytes()
    new, what = rng.choice([
        (b"\n".join(each.encode("utf-8", "surrogatepass") for each in ESCAPES) + b"\n" + text, "escapes before"),
        (text + "\n".join(ESCAPES).encode() + b"\n", "escapes after"),
        (text.replace(b"model", b"mo\x1b[31mdel\xe2\x80\xae"), "escapes inside"),
        (b"\xff\xfe" + text.decode(errors="replace").encode("utf-16-le"), "UTF-16"),
        (b"x" * HUGE, "one long line"),
        (text + b"y" * HUGE + b"\n", "a long line at the end"),
        (b"", "empty"),
        (b"resolved configuration:\n\nx: !!python/object/apply:os.system ['" + mutator.shell[0].encode() + b"']\n"
         + text, "a YAML object"),
        (b"trainer: !!python/object/apply:os.system ['" + mutator.shell[2].encode() + b"']\n", "a YAML object alone"),
        (b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
            b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(8)),
         "YAML aliases"),
        (b"[" * 20000, "deep YAML"),
        (b"trainer: {train_batch_size: '\x1b]0;x\x07', num_train_steps: -1}\nmodel: 7\n", "other types"),
        (b"\0" * 100000 + b"\n", "NUL bytes"),
    ])  # fmt: skip
    file.write_bytes(new)
    return file, what


def odd_names(root: Path, run: Path, mutator: Mutator) -> tuple[Path, str]:
    """Create directories and files whose names a shell, a terminal or a parser could misinterpret."""
    rng = mutator.rng
    name = rng.choice([text for text in (*ESCAPES, *mutator.shell) if "/" not in text and "\0" not in text])
    name = name.encode("utf-8", "surrogatepass")[:200].decode(errors="ignore")
    place = rng.choice(("run", "run", "attempt", "checkpoint", "pin", "temporary", "partial", "not UTF-8", "many"))
    if place == "run":
        made = root / "runs" / name
        shutil.copytree(run, made)
    elif place == "attempt":
        made = run / "attempts" / rng.choice(("9" * 200, "0000", "003\n", "-01", "\u0663\u0663\u0663", name))
        made.mkdir()
        (made / "status-0.json").write_text(json.dumps({"state": "running", "step": 3}))
    elif place == "checkpoint":
        made = run / "checkpoints" / rng.choice(("step-9-a001\n", "step-" + "9" * 200 + "-a001", "step--1-a001", name))
        made.mkdir()
        (made / "manifest.json").write_text("{}")
    elif place == "pin":
        made = run / "pins" / (name + ".json")
        made.write_text('{"checkpoint": "step-1-a001", "expires": "soon"}')
    elif place == "temporary":
        made = run / "attempts" / "001" / (name + ".tmp-1-1")
        made.write_text("x")
    elif place == "partial":
        made = run / "checkpoints" / "step-99-a001"
        (made / name).mkdir(parents=True)
    elif place == "not UTF-8":
        made = root / "runs" / "odd"
        shutil.copytree(run, made)
        os.rename(os.fsencode(made), os.fsencode(root / "runs") + b"/r\xff\x1b[2J")
    else:
        made = root / "runs"
        for number in range(300):
            (made / f"many{number}" / "attempts").mkdir(parents=True)
    return made, f"{place} {ascii(name)[:40]}"


def leave_links(run: Path, rng: random.Random, secret: Path) -> tuple[Path, str]:
    """Create links that lead out of a run's directory. A hard link is equivalent to a file."""
    attempt = sorted((run / "attempts").iterdir())[-1]
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    objects = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name not in ("manifest.json",))
    file = rng.choice([attempt / "metrics.jsonl", attempt / "log-0.txt", run / "run.yaml", *objects[:3]])
    file.unlink()
    file.symlink_to(secret)
    return file, "link to a secret"
