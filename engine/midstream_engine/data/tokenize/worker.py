"""Worker process that tokenizes units.

The command is ``python -m midstream_engine.data.tokenize.worker``.

The first line of stdin is the task for all units, each further line a unit; the answer to each is a line on stdout:
``{"done": record}`` or ``{"error": line}``. The end of stdin ends the process immediately, so that no worker outlives a
parent that was killed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from dataclasses import asdict

from midstream_core.json_types import JsonValue
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize import units
from midstream_engine.data.tokenize.tokenizer import load_tokenizer


def main() -> None:
    """Serve the parent until stdin ends."""
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    answers = sys.stdout
    sys.stdout = sys.stderr  # a library's output must not be read as an answer
    task = json.loads(lines.get())
    tokenizer = None
    while True:
        unit = units.Unit.from_json(json.loads(lines.get()))
        answer: dict[str, JsonValue]
        try:
            if tokenizer is None:
                tokenizer = load_tokenizer(task["tokenizer"], task["eos_token"], task["id"])
                if tokenizer.id != task["id"]:
                    raise DataError(f"data.tokenizer: {task['tokenizer']} has changed during use (hint: start again)")
            done = units.tokenize(unit, task["directory"], tokenizer, task["text_key"], task["max_bytes"])
            answer = {"done": asdict(done)}
        except DataError as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 (sent to the parent, which raises it)
            traceback.print_exc(file=sys.stderr)
            answer = {"error": f"{unit.pieces[0].source.path}: {type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
