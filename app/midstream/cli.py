"""The command line: dispatch flags to one mode.

Each mode imports its own packages inside its function, so that `--help` loads no screen, SSH or Google module.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError
from midstream.flags import parse, parser
from midstream_core.object_store.urls import in_bucket

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.output import Output

# Flags that select a mode and need the fleet file.
MODES = (
    "status", "cost", "metrics", "log", "check", "launch", "adopt", "init_run", "migrate", "guard", "stop", "restart",
    "repair", "verify", "diff", "compare", "delete", "serve_metrics", "watch", "report", "export", "reshard",
    "config",  # the last, because --migrate PATH has a --config too
)  # fmt: skip


OPEN_FILES = 1024
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        return _run(words)
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        if error.errno not in FULL:
            raise
        _report_full_disk(error)
        _drop_output()
    return int(Exit.FAILED)


def _open_streams() -> None:
    """Open the standard streams that the caller has closed, on /dev/null.

    A file that is opened later would get the number of one, and with it what programs write there. Child processes have
    them too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, errors="backslashreplace")  # noqa: SIM115 (as long as the process)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _run(words: Sequence[str]) -> int:
    """Run one command and return its exit code.

    OSError if the output cannot be written; SystemExit as `parse`.
    """
    if words[:1] == ["--print-names"]:  # from the scripts of shell completion
        return _print_names(words[1:])
    options, engine = parse(words)
    from midstream.output import Output
    from midstream.state_directory import close_state_directory
    from midstream_core import records

    _raise_file_limit()
    close_state_directory()
    output = Output(options.json)
    try:
        return int(_dispatch(options, engine, output))
    except MidstreamError as error:
        output.error(error)
        return int(error.code)
    except records.RecordError as error:
        output.error(MidstreamError(str(error), "the file is damaged or of another version"))
        return int(Exit.FAILED)
    except OSError as error:
        if error.errno not in UNWRITABLE or not error.filename:  # without a name it is the output
            raise
        hint = "free some space" if error.errno in FULL else "its owner and mode, or MIDSTREAM_STATE=DIRECTORY"
        output.error(MidstreamError(f"{error.filename} cannot be written: {error.strerror}", hint))
        return int(Exit.FAILED)
    except KeyboardInterrupt:
        output.message("midstream: interrupted")
        return int(Exit.INTERRUPTED)


def _report_full_disk(error: OSError) -> None:
    """Report that a file, or stdout where it is one, has no room left, if stderr has."""
    from midstream.output import Output

    with contextlib.suppress(OSError):
        Output(False).message(
            f"midstream: {error.filename or 'the output'} cannot be written: {error.strerror} (hint: free some)"
        )


def _drop_output() -> None:
    """Drop what stdout did not take."""
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter would try again as it exits, and report that
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _print_names(words: Sequence[str]) -> int:
    from midstream.completion_names import FLAGS, KINDS, flag_names, local_names

    if not words or words[0] not in KINDS:
        return Exit.USAGE
    kind, *rest = words
    print(*(flag_names(parser(), rest) if kind == FLAGS else local_names(kind, rest)), sep="\n", flush=True)
    return Exit.DONE


def _raise_file_limit() -> None:
    """Permit `OPEN_FILES` open files, as Linux does.

    macOS permits 256, and each watched host takes a few.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # a system with a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _dispatch(options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    code = _without_fleet(options, output)
    if code is not None:
        return code
    chosen = _mode(options)
    if chosen is None:
        return _screen(options)
    fleet = _with_rented(_load_fleet(options), options)
    if (fleet.has_slices or fleet.has_pods) and not _needs_no_slices(options):
        from midstream.headless.target_creation import with_target

        fleet = with_target(fleet, options, output, engine)
    from midstream import headless

    if chosen in ("launch", "migrate") and (fleet.has_slices or fleet.has_pods):
        return _on_slices(headless.mode(chosen), fleet, options, engine, output)
    if chosen in ("check", "compare", "launch", "migrate", "restart"):
        return headless.mode(chosen)(fleet, options, engine, output)
    return headless.mode(chosen)(fleet, options, output)


def _mode(options: argparse.Namespace) -> str | None:
    """Return the mode that the flags select; None for the terminal UI."""
    if options.clean is not None:
        return "clean"
    for mode in ("watch", "label"):  # their RUN may be missing
        if getattr(options, mode) is not None:
            return mode
    if options.checkpoints is not None:
        return "show_tree" if options.tree or options.deep or ":" in options.checkpoints else "checkpoints"
    return next((mode for mode in MODES if getattr(options, mode)), None)


def _without_fleet(options: argparse.Namespace, output: Output) -> int | None:
    """Run a mode without a fleet file and return its exit code; None for other modes."""
    if options.demo:
        from midstream.run_demo import run_demo

        return run_demo(options, output)
    if options.replay:
        return _replay(options)
    here = options.init_run and ":" not in options.init_run
    if options.reshard and ":" not in options.reshard.split("/")[0]:  # a path of this machine
        from midstream import headless

        return headless.mode("reshard")(None, options, output)
    if options.undo:
        from midstream import headless

        return headless.mode("undo_label")(options, output)
    if not any((options.init, here, options.doctor, options.continue_, options.rollback, options.verify, options.diff)):
        if not (options.checkpoints and is_local_or_bucket(options.checkpoints)):
            return None
        from midstream import headless

        return headless.mode("show_tree")(_stores(options, options.checkpoints), options, output)
    from midstream import headless

    if options.init:
        return headless.mode("init")(options.fleet, output)
    if options.init_run:
        return headless.mode("init_run")(None, options, output)
    if options.doctor:
        return headless.mode("doctor")(options, output)
    if options.continue_ or options.rollback:
        # A migration has a copy of the fleet file that it was planned with.
        return headless.mode("resume")(options, output)
    if options.diff:
        checkpoints = options.diff
        return (
            headless.mode("diff")(_stores(options, *checkpoints), options, output)
            if all(map(is_local_or_bucket, checkpoints))
            else None
        )
    if headless.mode("is_migration")(options.verify):
        return headless.mode("recheck")(options, output)
    return (
        headless.mode("verify")(_stores(options, options.verify), options, output)
        if is_local_or_bucket(options.verify)
        else None
    )


def _on_slices(
    mode: Callable[..., int], fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output
) -> int:
    """Run a mode; if it fails, report or delete a slice, or pods, created for it."""
    from midstream.headless.target_creation import settle_unused

    code = int(Exit.FAILED)
    try:
        code = int(mode(fleet, options, engine, output))
    except MidstreamError as error:
        code = int(error.code)
        raise
    finally:
        if code != Exit.DONE:
            settle_unused(fleet, options, code, output)
    return code


def _needs_no_slices(options: argparse.Namespace) -> bool:
    """Return True for the comparison of a config, which names its accelerators itself.

    A slice's accelerators are in the fleet file.
    """
    if not options.compare:
        return False
    from midstream import headless

    return bool(headless.mode("is_config")(options.compare))


def is_local_or_bucket(text: str) -> bool:
    """Return True for a local directory or a bucket URL, which need no fleet file."""
    if in_bucket(text):
        return True
    return "/" in text and ":" not in text.split("/")[0] and os.path.isdir(text)


def _stores(options: argparse.Namespace, *locations: str) -> Fleet | None:
    """Load the fleet file, if there is one, for the credentials of a bucket."""
    from midstream.fleet.fleet_file import load_fleet
    from midstream.fleet.fleet_path import default_fleet_path

    has_bucket = any(in_bucket(location) for location in locations)
    return load_fleet(options.fleet) if has_bucket and (options.fleet or default_fleet_path().exists()) else None


def _load_fleet(options: argparse.Namespace) -> Fleet:
    """Load the fleet file.

    Without one the terminal UI starts with an empty fleet and offers to create it.
    """
    from midstream.fleet.fleet import Fleet
    from midstream.fleet.fleet_file import load_fleet
    from midstream.fleet.fleet_path import default_fleet_path
    from midstream.output import has_screen

    screen = _mode(options) is None and has_screen()
    if (screen or _needs_no_slices(options)) and not options.fleet and not default_fleet_path().exists():
        return Fleet()
    return load_fleet(options.fleet)


def _with_rented(fleet: Fleet, options: argparse.Namespace) -> Fleet:
    """Return the fleet with the machines of SkyPilot and dstack that a flag names."""
    given = (options.to, options.on, options.check, options.with_, options.compile_on)
    names = [name.strip() for text in given if isinstance(text, str) for name in text.split(",")]
    if all(name in fleet.target_names for name in names if name):
        return fleet
    from midstream.fleet.rented_machines import with_rented

    return with_rented(fleet, names)


def _needs_a_terminal() -> None:
    from midstream.output import missing_screen

    if missing := missing_screen():
        raise MidstreamError(
            f"the terminal UI needs {missing}",
            "midstream --status prints the same once; --help lists the flags",
            Exit.USAGE,
        )


def _replay(options: argparse.Namespace) -> int:
    _needs_a_terminal()
    from midstream.tui.run_tui import replay_tui

    return replay_tui(options.replay, ascii_only=options.ascii)


def _screen(options: argparse.Namespace) -> int:
    gc.disable()  # until the first frame: there is nothing to free yet
    try:
        return _run_screen(options)
    finally:
        gc.enable()


def _run_screen(options: argparse.Namespace) -> int:
    from midstream.fleet.fleet_path import fleet_path
    from midstream.output import has_screen
    from midstream.watch.known_fleets import hosts_of_file

    file = fleet_path(options.fleet)
    hosts = hosts_of_file(file) if has_screen() and not options.record else None
    display = {"readonly": options.readonly, "ascii_only": options.ascii, "record": options.record}
    request = None
    while True:
        fleet = None if hosts is not None else _screen_fleet(options)
        from midstream.tui.base_app import RELOAD_EXIT_CODE
        from midstream.tui.fleet_session import UnopenedFleet
        from midstream.tui.run_tui import run_tui

        unopened = (
            UnopenedFleet(str(file), partial(_open_known_hosts, options), hosts)
            if fleet is None
            else UnopenedFleet(fleet.path, partial(_open_hosts, fleet))
        )
        code, request, _ = run_tui(unopened, **display, request=request)
        if code != RELOAD_EXIT_CODE:
            return code
        hosts = None


def _screen_fleet(options: argparse.Namespace) -> Fleet:
    """Load the fleet of the terminal UI. Create missing slices if the user agrees."""
    fleet = _with_rented(_load_fleet(options), options)
    _needs_a_terminal()
    if not fleet.has_slices:
        return fleet
    from midstream.headless.target_creation import with_target
    from midstream.output import Output

    return with_target(fleet, options, Output(False))


def _open_hosts(fleet: Fleet) -> HostPool:
    from midstream.hosts.host_pool import HostPool

    return HostPool(fleet)


def _open_known_hosts(options: argparse.Namespace) -> HostPool:
    """Open the hosts of a fleet file that was read in an earlier session too."""
    fleet = _with_rented(_load_fleet(options), options)
    if fleet.has_slices:
        raise MidstreamError(f"{fleet.path} has changed", "start midstream again", Exit.USAGE)
    return _open_hosts(fleet)


if __name__ == "__main__":
    sys.exit(main())
