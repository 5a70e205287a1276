"""``python -m midstream_engine.checkpoint DIR [--deep]``: show a checkpoint's arrays and verify its bytes."""

from __future__ import annotations

import argparse
import sys

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.verify import describe, verify_checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 where the checkpoint is sound, 1 where it is not. The tree goes to stdout, the verdict to stderr."""
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.checkpoint", description="Verify a checkpoint.")
    parser.add_argument("directory", help="a directory with a manifest.json")
    parser.add_argument("--deep", action="store_true", help="also decode every array and measure its norm")
    options = parser.parse_args(arguments)
    try:
        report = verify_checkpoint(options.directory, deep=options.deep)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    print(describe(report))
    for path in report.unlisted:
        print(f"note: {path} does not belong to the checkpoint", file=sys.stderr)
    for flaw in report.flaws:
        print(f"CORRUPT {flaw}", file=sys.stderr)
    if report.flaws:
        print(f"{len(report.flaws)} flaws: this checkpoint must not be used", file=sys.stderr)
        return 1
    print(f"sound: root digest {report.root_digest}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
