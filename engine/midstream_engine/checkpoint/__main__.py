"""Command line that shows a checkpoint's arrays and verifies its bytes.

``python -m midstream_engine.checkpoint CHECKPOINT [--deep] [--json]``, where ``CHECKPOINT`` is a directory with a
manifest.json, or the URL of a prefix in a bucket.
"""

from __future__ import annotations

import argparse
import json
import sys

from midstream_core.attempt.errors import CheckpointError
from midstream_engine.checkpoint.loading.verify import describe, lines, verify_checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Return exit code 0 for a sound checkpoint, else 1.

    The arrays go to stdout, the verdict to stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.checkpoint", description="Verify a checkpoint.")
    parser.add_argument(
        "directory",
        metavar="CHECKPOINT",
        help="a directory with a manifest.json, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX",
    )
    parser.add_argument("--deep", action="store_true", help="also decode every array and measure its norm")
    parser.add_argument("--json", action="store_true", help="one JSON object per line: arrays, then the verdict")
    options = parser.parse_args(arguments)
    try:
        report = verify_checkpoint(options.directory, deep=options.deep)
    except CheckpointError as error:
        print(json.dumps({"event": "problem", "message": str(error)}) if options.json else "", end="")
        print(error, file=sys.stderr)
        return 1
    if options.json:
        for value in lines(report):
            print(json.dumps(value))
        return 0 if report.sound else 1
    print(describe(report))
    for path in report.unlisted:
        print(f"note: {path} does not belong to the checkpoint", file=sys.stderr)
    for flaw in report.flaws:
        print(f"CORRUPT {flaw}", file=sys.stderr)
    if report.flaws:
        print(f"{len(report.flaws)} flaws: this checkpoint must not be used", file=sys.stderr)
        return 1
    if report.elsewhere:
        hosts = ", ".join(f"{count} on {host}" for host, count in sorted(report.elsewhere.items()))
        remote = f"{sum(report.elsewhere.values())} objects on other hosts ({hosts}) were not checked"
        print(f"sound on this host; {remote}", file=sys.stderr)
        return 0
    print(f"sound: root digest {report.root_digest}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
