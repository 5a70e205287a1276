"""The flags of the command line, and what goes with what."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from midstream import __version__
from midstream.errors import Exit

USAGE = """midstream [--fleet FILE]                                     the terminal UI
       midstream --demo [--headless] [--json]                       two local targets and a real run, ready to migrate
       midstream --init                                             write a fleet file from ~/.ssh/config
       midstream --status [--json]                                  hosts, runs, checkpoints, once
       midstream --doctor [--json]                                  is this machine's side in order?
       midstream --check TARGET [--rehearse [CONFIG]] [--json]      is a target fit? each fault with what mends it
       midstream --launch CONFIG --on TARGET [--run-id ID] [-- ENGINE FLAGS]
       midstream --migrate RUN --to TARGET [--mode warm|cold|live] [--checkpoint now|latest|STEP]
                 [--dry-run] [--yes]
       midstream --continue MIGRATION | --rollback MIGRATION | --stop RUN
       midstream --repair RUN [--on HOST] [--yes]                   records that cannot be read, from the evidence left
       midstream --guard RUN --to TARGET[,TARGET...] [--tries N] [--yes]
                                                                    move it when its machine is certainly gone or going
       midstream --delete TARGET|PROJECT/ZONE/NAME [--yes]          delete a TPU slice
       midstream --checkpoints [RUN] | --checkpoints RUN|CHECKPOINT --tree [--deep]
       midstream --metrics RUN[,RUN...] | --log RUN [--process P] | --config RUN [--attempts A[,B]] [--json]
       midstream --verify CHECKPOINT|MIGRATION [--deep] | --diff A B | --clean [RUN] [--yes]"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(int(Exit.USAGE), f"midstream: {message} (midstream --help lists the flags)\n")


def parser() -> argparse.ArgumentParser:
    """All flags. Modes exclude each other; no mode is the terminal UI."""
    result = _Parser(
        prog="midstream",
        usage=USAGE,
        description="Move a training run to other accelerators in mid-run, and prove that nothing was lost.",
        epilog="Exit codes: 0 done, 1 failed or rolled back, 2 usage or config, 3 preflight refused, "
        "4 interrupted or rollback incomplete (can be continued), 5 not certified, rolled back.",
        allow_abbrev=False,
    )
    modes = result.add_argument_group("modes").add_mutually_exclusive_group()
    modes.add_argument("--demo", action="store_true", help="a fleet of two local targets with a real run")
    modes.add_argument("--init", action="store_true", help="write a fleet file from ~/.ssh/config")
    modes.add_argument("--status", action="store_true", help="hosts, runs and checkpoints, once")
    modes.add_argument("--doctor", action="store_true", help="check this machine's side")
    modes.add_argument("--check", metavar="TARGET", help="check a target, before anything is started there")
    modes.add_argument("--launch", metavar="CONFIG", help="start a training run")
    modes.add_argument(
        "--migrate", metavar="RUN", help="move a run to other accelerators; or PATH, HOST:PATH: adopt another trainer's"
    )
    modes.add_argument("--continue", metavar="MIGRATION", dest="continue_", help="go on with an interrupted migration")
    modes.add_argument("--rollback", metavar="MIGRATION", help="take a migration back, until its source is retired")
    modes.add_argument("--stop", metavar="RUN", help="save and stop a run")
    modes.add_argument("--guard", metavar="RUN", help="move a run when its machine is certainly gone or going")
    modes.add_argument(
        "--repair", metavar="RUN", help="name records that cannot be read, and what would be written; --yes writes it"
    )
    modes.add_argument("--delete", metavar="TARGET", help="delete a TPU slice: a target, or PROJECT/ZONE/NAME")
    modes.add_argument(
        "--checkpoints",
        metavar="RUN",
        nargs="?",
        const="",
        help="checkpoints of a run, or of all; of a CHECKPOINT arrays",
    )
    modes.add_argument(
        "--metrics", metavar="RUN[,RUN...]", help="the run's curve: one line a step, of accepted attempts"
    )
    modes.add_argument("--config", metavar="RUN", help="what the run's newest attempt was configured with")
    modes.add_argument(
        "--log", metavar="RUN", help="the log of the run's newest attempt: of process 0, or of --process"
    )
    modes.add_argument("--diff", metavar=("A", "B"), nargs=2, help="what differs between two checkpoints, by manifest")
    modes.add_argument("--clean", metavar="RUN", nargs="?", const="", help="name what killed saves left; --yes removes")
    modes.add_argument(
        "--verify",
        metavar="CHECKPOINT",
        help="re-hash a checkpoint (directory, HOST:PATH, gs://, RUN), or re-check a MIGRATION",
    )

    common = result.add_argument_group("common")
    common.add_argument("--fleet", metavar="FILE", help="default: $MIDSTREAM_FLEET or ~/.config/midstream/fleet.yaml")
    common.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    common.add_argument("--version", action="version", version=f"midstream {__version__}")

    looked = result.add_argument_group("runs and checkpoints")
    looked.add_argument("--tree", action="store_true", help="with --checkpoints: the arrays of a run's newest one")
    looked.add_argument("--deep", action="store_true", help="with --verify, --checkpoints: decode every array")

    looked.add_argument("--attempts", metavar="A[,B]", help="with --config: of attempt A; what B has otherwise")

    screen = result.add_argument_group("terminal UI")
    screen.add_argument("--readonly", action="store_true", help="look, and touch nothing")
    screen.add_argument("--ascii", action="store_true", help="no signs beyond ASCII")
    screen.add_argument("--record", metavar="FILE", help="write the session to a file, to be shown again")
    screen.add_argument("--replay", metavar="FILE", help="show a recorded session")
    screen.add_argument("--headless", action="store_true", help="with --demo: without a terminal")

    check = result.add_argument_group("check")
    check.add_argument(
        "--rehearse",
        metavar="CONFIG",
        nargs="?",
        const="",
        help="with --check: install engine and environment there, and compile (default: a small model's config)",
    )

    read = result.add_argument_group("read")
    read.add_argument("--process", type=int, default=0, metavar="P", help="with --log: of a run on several hosts")

    launch = result.add_argument_group("launch")
    launch.add_argument("--on", metavar="TARGET", help="where to start")
    launch.add_argument("--run-id", metavar="ID", help="default: random")

    migrate = result.add_argument_group("migrate")
    migrate.add_argument("--to", metavar="TARGET", help="where to")
    migrate.add_argument(
        "--mode",
        help="warm: the target waits, compiled, for the state (default); cold: seal, copy, start again; live: "
        "the target replays the run until it is level. With --continue: a live migration goes on as a warm one",
    )
    migrate.add_argument("--checkpoint", default="now", metavar="now|latest|STEP", help="default: now, a final save")
    migrate.add_argument("--source-lost", action="store_true", help="the run's machine is certainly gone")
    migrate.add_argument("--certify-steps", type=int, default=16, metavar="K", help="losses compared (default 16)")
    migrate.add_argument(
        "--healthy-steps", type=int, default=100, metavar="N", help="then the source is retired (default 100)"
    )
    migrate.add_argument("--tries", type=int, default=3, metavar="N", help="moves a --guard may begin (default 3)")
    migrate.add_argument(
        "--keep-slice", action="store_true", help="what was made for this command stays where it is refused"
    )
    migrate.add_argument("--dry-run", action="store_true", help="plan and preflight; touch nothing")
    migrate.add_argument("--yes", action="store_true", help="agree to the loss, the price, the deletion that is named")
    return result


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The flags, and what stands after ``--``: the engine's own."""
    words = list(arguments)
    engine: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, engine = words[:cut], words[cut + 1 :]
    flags = parser()
    options = flags.parse_args(words)
    if engine and not (options.launch or options.migrate or options.rehearse is not None):
        flags.error("flags after -- are the engine's: they go with --launch, --migrate or --rehearse")
    if options.rehearse is not None and not options.check:
        flags.error("--rehearse goes with --check TARGET")
    if options.launch and not options.on:
        flags.error("--launch needs --on TARGET")
    if options.migrate and not options.to:
        flags.error("--migrate needs --to TARGET")
    if options.guard and not options.to:
        flags.error("--guard needs --to TARGET[,TARGET...]: where the run may go")
    if options.to and not (options.migrate or options.guard):
        flags.error("--to goes with --migrate and --guard")
    if options.on and not (options.launch or options.repair):
        flags.error("--on goes with --launch and --repair")
    if options.run_id and not options.launch:
        flags.error("--run-id goes with --launch")
    for name in ("dry_run", "source_lost"):
        if getattr(options, name) and not options.migrate:
            flags.error(f"--{name.replace('_', '-')} goes with --migrate")
    if options.attempts and not options.config:
        flags.error("--attempts goes with --config RUN")
    if options.tree and not options.checkpoints:
        flags.error("--tree goes with --checkpoints RUN or --checkpoints CHECKPOINT")
    if options.deep and not (options.verify or options.checkpoints):
        flags.error("--deep goes with --verify and --checkpoints")
    agreeing = (options.launch, options.migrate, options.guard, options.rollback, options.delete, options.repair)
    if options.yes and not any(agreeing) and options.clean is None:
        flags.error("--yes goes with --launch, --migrate, --guard, --rollback, --repair, --delete and --clean")
    for name in ("certify_steps", "healthy_steps"):
        if getattr(options, name) < 0:
            flags.error(f"--{name.replace('_', '-')} is a number of steps, not below 0")
    if options.record and options.replay:
        flags.error("--record and --replay exclude each other")
    if options.headless and not options.demo:
        flags.error("--headless goes with --demo; every other mode has no screen anyway")
    return options, tuple(engine)
