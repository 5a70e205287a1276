"""The command line: flags choose one mode. Imports no screen, no SSH and no Google module itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from midstream.errors import Exit, MidstreamError
from midstream.flags import parse
from midstream_engine import records

# Flags that are a mode of their own, and need the fleet file.
MODES = (
    "status", "metrics", "log", "config", "check", "launch", "migrate", "guard", "stop", "repair", "verify", "diff",
    "delete",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command."""
    options, engine = parse(sys.argv[1:] if arguments is None else arguments)
    from midstream.output import Output

    output = Output(options.json)
    try:
        return int(_dispatch(options, engine, output))
    except MidstreamError as error:
        output.error(error)
        return int(error.code)
    except records.RecordError as error:
        output.error(MidstreamError(str(error), "what lies on the disk is damaged, or of another version"))
        return int(Exit.FAILED)
    except KeyboardInterrupt:
        output.talk("midstream: interrupted")
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        return int(Exit.FAILED)


def _dispatch(options: argparse.Namespace, engine: tuple[str, ...], output) -> int:
    if options.demo:
        from midstream import demo

        return demo.run(options, output)
    if options.init:
        from midstream import headless

        return headless.init(options.fleet, output)
    if options.doctor:
        from midstream import headless

        return headless.doctor(options, output)
    if options.continue_ or options.rollback:
        from midstream import headless

        # A migration carries the fleet file that it was planned with.
        return headless.resume(options, output)
    if options.verify:
        from midstream.headless.verify_migration import is_migration, recheck

        if is_migration(options.verify):
            return recheck(options, output)
    if options.verify and headless_path(options.verify):
        from midstream import headless

        return headless.verify(_stores(options, options.verify), options, output)
    if options.diff and all(map(headless_path, options.diff)):
        from midstream import headless

        return headless.diff(_stores(options, *options.diff), options, output)
    if options.checkpoints and headless_path(options.checkpoints):
        from midstream import headless

        return headless.show_tree(_stores(options, options.checkpoints), options, output)
    if options.replay:
        return _replay(options)
    fleet = _load_fleet(options)
    if fleet.comes_and_goes:
        from midstream.headless.tpu_slices import with_slices

        fleet = with_slices(fleet, options, output, engine)
    chosen = next((mode for mode in MODES if getattr(options, mode)), None)
    if options.checkpoints is not None:
        chosen = "show_tree" if options.tree or options.deep or ":" in options.checkpoints else "checkpoints"
    if options.clean is not None:
        chosen = "clean"
    if chosen is None:
        return _screen(fleet, options)
    from midstream import headless

    if chosen in ("launch", "migrate") and fleet.comes_and_goes:
        return _on_slices(getattr(headless, chosen), fleet, options, engine, output)
    if chosen in ("check", "launch", "migrate"):
        return getattr(headless, chosen)(fleet, options, engine, output)
    return getattr(headless, chosen)(fleet, options, output)


def _on_slices(mode, fleet, options: argparse.Namespace, engine: tuple[str, ...], output) -> int:
    """A slice that was made for a command which then failed is not forgotten."""
    from midstream.headless.tpu_slices import made_in_vain

    code = int(Exit.FAILED)
    try:
        code = int(mode(fleet, options, engine, output))
    except MidstreamError as error:
        code = int(error.code)
        raise
    finally:
        if code != Exit.DONE:
            made_in_vain(fleet, options, code, output)
    return code


def headless_path(text: str) -> bool:
    """Whether it names a directory of this machine or a bucket: then no fleet file is needed."""
    import os

    if text.startswith("gs://"):
        return True
    return "/" in text and ":" not in text.split("/")[0] and os.path.isdir(text)


def _stores(options: argparse.Namespace, *places: str):
    """The fleet file, where a bucket is to be read and there is one: it may say in whose name."""
    from midstream.fleet.fleet_file import default_fleet_path, load_fleet

    wanted = any(place.startswith("gs://") for place in places)
    return load_fleet(options.fleet) if wanted and (options.fleet or default_fleet_path().exists()) else None


def _load_fleet(options: argparse.Namespace):
    """The fleet file. Where there is none yet, and a person sits at a screen, an empty fleet: the screen offers to
    write one."""
    from midstream.fleet.fleet import Fleet
    from midstream.fleet.fleet_file import default_fleet_path, load_fleet
    from midstream.output import has_screen

    screen = not any(getattr(options, mode) for mode in MODES) and options.checkpoints is options.clean is None
    if screen and not options.fleet and has_screen() and not default_fleet_path().exists():
        return Fleet()
    return load_fleet(options.fleet)


def _needs_a_terminal() -> None:
    from midstream.output import has_screen

    if not has_screen():
        raise MidstreamError(
            "the terminal UI needs a terminal",
            "midstream --status prints the same once; --help lists the flags",
            Exit.USAGE,
        )


def _replay(options: argparse.Namespace) -> int:
    _needs_a_terminal()
    from midstream.tui.app import replay_tui

    return replay_tui(options.replay, ascii_only=options.ascii)


def _screen(fleet, options: argparse.Namespace) -> int:
    _needs_a_terminal()
    from midstream.fleet.fleet_file import load_fleet
    from midstream.hosts.host_pool import Hosts
    from midstream.tui.app import run_tui
    from midstream.tui.screens.fleet.add_hosts import RELOAD

    look = {"readonly": options.readonly, "ascii_only": options.ascii, "record": options.record}
    move = None
    while True:
        hosts = Hosts(fleet)
        try:
            code, move, _ = run_tui(fleet, hosts, **look, move=move)
        finally:
            hosts.close()
        if code != RELOAD:
            return code
        fleet = load_fleet(options.fleet)
        if fleet.comes_and_goes:
            from midstream.headless.tpu_slices import with_slices
            from midstream.output import Output

            fleet = with_slices(fleet, options, Output(False))


if __name__ == "__main__":
    sys.exit(main())
