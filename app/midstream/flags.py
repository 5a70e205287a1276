"""Flags of the command line, by task, and their valid combinations.

docs/reference/cli.md, the man page and shell completion are made from this parser: `make pages`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from midstream.checkpoint_flags import add_checkpoints
from midstream.errors import MEANINGS
from midstream.flag_parser import SCREEN, FlagParser, PrintAndExit, number
from midstream.migrate.modes.registry import MODES as MIGRATION_MODES

USAGE = f"""\
midstream [--fleet FILE]                   {SCREEN}
       midstream MODE [FLAGS] [-- ENGINE FLAGS]   one command, without it"""
DESCRIPTION = "Migrate a training run to other accelerators, and prove that nothing was lost."
EXAMPLES = (
    ("midstream --demo", "try it on this machine"),
    ("midstream --init", "write a fleet file"),
    ("midstream --status", "hosts and runs"),
    ("midstream --check rented", "test a target"),
    ("midstream --launch configs/gpt2_nano.yaml --on lab --run-id webtext", ""),
    ("midstream --migrate webtext --to rented --dry-run", "print the plan"),
    ("midstream --migrate webtext --to rented", "migrate, certify, follow"),
    ("midstream --compare webtext --with v5e-16,v5p-8", "before anything is rented"),
    ("midstream --metrics webtext --json | tail -n 1", "the newest step"),
    ("midstream --report webtext report.html", "a page to show others"),
    ("midstream --stop webtext", "save and stop"),
)
SHELLS = ("bash", "zsh", "fish")
AXES = ("step", "tokens", "time")
_OF_PLOT = ("metric", "x_axis", "x_range", "y_range", "log_x", "log_y", "smoothing")
_CONSENT = (
    "--init-run",
    "--launch",
    "--restart",
    "--migrate",
    "--guard",
    "--continue",
    "--rollback",
    "--repair",
    "--delete",
    "--clean",
)


def parser() -> FlagParser:
    """Return the parser of all flags.

    At most one mode may be given; without one the terminal UI starts.
    """
    result = FlagParser(prog="midstream", usage=USAGE, description=DESCRIPTION, epilog=_epilog())
    _add_start(result)
    _add_look(result)
    _add_plot(result)
    _add_train(result)
    _add_migrate(result)
    _add_recover(result)
    add_checkpoints(result)
    _add_screen(result)
    _add_common(result)
    return result


def _add_start(flags: FlagParser) -> None:
    start = flags.section("start")
    start.mode("--demo", action="store_true", help="run a demo: two local targets and a training run")
    start.flag("--headless", of=("--demo",), action="store_true", help="run without a terminal")
    start.mode("--init", action="store_true", help="write a fleet file from ~/.ssh/config")
    start.mode("--doctor", action="store_true", help="check this machine")
    start.mode(
        "--check",
        metavar="TARGET|RUN",
        engine=True,
        completes="targets",
        help="check a target before a run starts there; of a RUN: what a migration could prove, and what to switch on",
    )  # fmt: skip
    start.flag(
        "--rehearse", of=("--check",), metavar="CONFIG", nargs="?", const="", default_text="a small model's",
        completes="configs", help="install engine and environment on the target, and compile",
    )  # fmt: skip


def _add_look(flags: FlagParser) -> None:
    look = flags.section("look at runs")
    look.mode("--status", action="store_true", help="print hosts, runs and checkpoints once")
    look.flag("--filter", of=("--status",), metavar="EXPR", help="only the runs that pass a filter: 'loss<2.5 age>5m'")
    look.flag(
        "--columns", of=("--status",), metavar="NAME[,NAME...]",
        help="a table of runs with these fields: run,state,left,config.optimizer.learning_rate",
    )  # fmt: skip
    look.mode("--cost", action="store_true", help="print hours and money by host, run and migration")
    look.mode(
        "--compare", metavar="RUN|CONFIG", needs=("--with",), engine=True, completes="runs",
        help="estimate fit, speed, time and cost on other accelerators, by compiling for them; none is needed",
    )  # fmt: skip
    look.flag(
        "--with", of=("--compare",), metavar="NAME[,NAME...]", dest="with_", completes="targets",
        help="accelerators, as v5e-16, v5p-8, h100x8, a100-80x8, and targets of the fleet file",
    )  # fmt: skip
    look.flag(
        "--price", of=("--compare",), metavar="NAME=PRICE[,...]", default_text="the fleet file's",
        help="prices of an hour, by the names of --with",
    )  # fmt: skip
    look.flag(
        "--compile-on", of=("--compare",), metavar="HOST", default_text="this machine", completes="targets",
        help="compile on a host of the fleet file",
    )  # fmt: skip
    look.mode(
        "--watch", metavar="RUN[,RUN...]", nargs="?", const="", completes="runs",
        help="report runs that end, stall or diverge, and idle hosts, until Ctrl-C; notify: receivers get it too",
    )  # fmt: skip
    look.mode(
        "--serve-metrics", metavar="PORT",
        help="watch the fleet, and serve its metrics to Prometheus until Ctrl-C",
    )  # fmt: skip
    look.flag(
        "--bind", of=("--serve-metrics",), metavar="ADDRESS", default_text="127.0.0.1",
        help="address that is served; others than this machine's can read it unless it is 127.0.0.1",
    )  # fmt: skip
    look.flag("--since", of=("--cost",), metavar="TIME", default_text="30d", help="the period, as 12h or 30d")
    look.mode(
        "--metrics", metavar="RUN[,RUN...]", completes="runs",
        help="print the metrics of a run, one line per step; several runs side by side",
    )  # fmt: skip
    look.flag(
        "--system", of=("--metrics",), metavar="SECONDS", nargs="?", const=15, type=number, default_text="15",
        help="watch the run's hosts so long, and print their own metrics",
    )  # fmt: skip
    look.mode(
        "--report", metavar=("RUN", "FILE"), nargs=2, completes="runs",
        help="write a run's report, a .html page: curve, lineage, migrations, certificates, downtime, cost, config",
    )  # fmt: skip
    look.mode(
        "--label", metavar="RUN", nargs="?", const="", completes="runs",
        help="print name, tags and note of a run, or set those that are given; the lists of this machine show them",
    )  # fmt: skip
    look.flag("--name", of=("--label",), metavar="NAME", type=str, help="shown beside the id; '' removes it")
    look.flag("--tags", of=("--label",), metavar="TAG[,TAG...]", type=str, help="in place of the tags that it has")
    look.flag("--note", of=("--label",), metavar="TEXT", type=str, help="in place of its note")
    look.flag("--undo", of=("--label",), action="store_true", help="take back the last edit, of whichever run it was")
    look.mode("--log", metavar="RUN", completes="runs", help="print the log of a run's newest attempt")
    look.flag("--process", of=("--log",), type=number, default=0, metavar="P", help="process number")
    text = "print the last lines, then new ones until the attempt ends"
    look.flag("--follow", of=("--log",), action="store_true", help=text)
    look.flag(
        "--search", of=("--log",), metavar="WORDS",
        help="only the lines that match, each with its number: word has to be in it, one of a|b, !word not",
    )  # fmt: skip
    look.mode(
        "--config", of=("--migrate",), metavar="RUN|FILE", completes="runs",
        help="print the configuration of a run's newest attempt; with --migrate PATH: that of a run of Levanter, "
        "torchtitan or MaxText, a path on the checkpoint's host",
    )  # fmt: skip
    look.flag(
        "--attempts", of=("--config",), metavar="A[,B]", default_text="the newest",
        help="configuration of attempt A, or differences between A and B",
    )  # fmt: skip


def _add_plot(flags: FlagParser) -> None:
    of = {"of": ("--metrics",), "of_text": "--metrics RUN --plot FILE"}
    plot = flags.section("plot")
    plot.flag(
        "--plot", of=("--metrics",), metavar="FILE", completes="files",
        help="write one metric to a .csv, .svg or .png file",
    )  # fmt: skip
    plot.flag("--metric", **of, metavar="NAME", default_text="train/loss", help="the metric")
    plot.flag("--x-axis", **of, choices=AXES, default_text="step", help="what the metric is drawn over")
    plot.flag("--x-range", **of, metavar="LOW:HIGH", help="part of the x axis; one end may be missing")
    plot.flag("--y-range", **of, metavar="LOW:HIGH", help="part of the y axis; one end may be missing")
    plot.flag("--log-x", **of, action="store_true", help="logarithmic x axis")
    plot.flag("--log-y", **of, action="store_true", help="logarithmic y axis")
    plot.flag("--smoothing", **of, metavar="FACTOR", default_text="0", help="average, from 0 to 0.999")


def _add_train(flags: FlagParser) -> None:
    train = flags.section("start and stop runs")
    train.mode(
        "--launch", metavar="CONFIG", needs=("--on",), engine=True, completes="configs", help="start a training run"
    )
    train.flag(
        "--on", of=("--launch", "--repair"), metavar="TARGET", completes="targets", help="where; of --repair the host"
    )
    train.flag(
        "--run-id",
        of=("--launch", "--adopt"),
        metavar="ID",
        default_text="trainer.id, else random",
        help="the run's name",
    )
    train.mode(
        "--adopt", metavar="HOST:DIR", help="adopt a trainer that runs there already; its directory has a run.yaml"
    )
    train.mode(
        "--init-run", metavar="DIR|HOST:DIR", completes="files",
        help="write run.yaml, a run file of another trainer, from a directory and what runs in it",
    )  # fmt: skip
    train.mode("--stop", metavar="RUN", completes="runs", help="save and stop a run")
    train.mode(
        "--restart", metavar="RUN", engine=True, completes="runs",
        help="start a stopped run again where it is, with its own config; flags after -- replace values",
    )  # fmt: skip


def _add_migrate(flags: FlagParser) -> None:
    move = flags.section("migrate")
    move.mode(
        "--migrate", metavar="RUN", needs=("--to",), engine=True, completes="runs",
        help="migrate a run, or import another trainer's checkpoint (PATH, HOST:PATH; in a bucket: gs://, s3://, HOST:s3://)",
    )  # fmt: skip
    move.mode(
        "--guard", metavar="RUN", needs=("--to",), completes="runs",
        help="watch a run and migrate it when its host is preempted",
    )  # fmt: skip
    move.flag(
        "--to", of=("--migrate", "--guard"), metavar="TARGET", completes="targets",
        help="target; several for --guard: TARGET[,TARGET...]",
    )  # fmt: skip
    move.flag(
        "--mode", of=("--migrate", "--continue"), choices=tuple(MIGRATION_MODES), default_text="warm",
        help=". ".join(f"{mode.name}: {mode.sequence}" for mode in MIGRATION_MODES.values())
        + ". With --continue: warm, for a live migration",
    )  # fmt: skip
    move.flag("--dry-run", of=("--migrate",), action="store_true", help="print plan and preflight; change nothing")
    move.flag(
        "--checkpoint", of=("--migrate",), default="now", metavar="now|latest|STEP", completes="steps",
        help="state to migrate; now: a final save",
    )  # fmt: skip
    move.flag(
        "--source-lost", of=("--migrate",), action="store_true", help="confirm that the source host is lost for good"
    )
    move.flag(
        "--certify-steps",
        of=("--migrate",),
        type=number,
        default=16,
        metavar="K",
        help="steps whose losses are compared",
    )
    move.flag(
        "--healthy-steps", of=("--migrate",), type=number, default=100, metavar="N",
        help="steps until the source is retired",
    )  # fmt: skip
    move.flag("--tries", of=("--guard",), type=number, default=3, metavar="N", help="migrations to start")
    move.flag(
        "--guard-lead", of=("--guard",), metavar="DURATION", default_text="twice the estimated migration",
        help="how long before its time limit a SLURM job is handed on: 45m",
    )  # fmt: skip
    move.flag(
        "--keep-slice", of=("--migrate", "--launch"), action="store_true",
        help="keep a slice created for this command if the command is refused",
    )  # fmt: skip
    imports = flags.section("import another trainer's checkpoint")
    imports.flag(
        "--gqa-layout", of=("--migrate",), of_text="--migrate PATH",
        choices=("interleaved", "blocked"), default_text="the checkpoint's evidence",
        help="of GPT-NeoX: which of two layouts the rows of grouped queries have",
    )  # fmt: skip
    imports.flag(
        "--rms-epsilon", of=("--migrate",), of_text="--migrate PATH",
        choices=("outside", "inside"), default_text="the checkpoint's evidence",
        help="of GPT-NeoX: where RMSNorm adds its epsilon, outside or inside of the root",
    )  # fmt: skip
    imports.flag(
        "--cast-parameters", of=("--migrate",), of_text="--migrate PATH",
        choices=("bfloat16", "float16", "float32"),
        default_text="refused where numbers would change", help="round the imported parameters to this type",
    )  # fmt: skip


def _add_recover(flags: FlagParser) -> None:
    recover = flags.section("recover")
    recover.mode(
        "--continue", metavar="MIGRATION", dest="continue_", completes="migrations",
        help="continue an interrupted migration, or follow a running one",
    )  # fmt: skip
    recover.mode(
        "--rollback", metavar="MIGRATION", completes="migrations",
        help="roll back a migration whose source is not retired: return the run to its source",
    )  # fmt: skip
    recover.mode(
        "--repair",
        metavar="RUN",
        completes="runs",
        help="show unreadable records and their replacement; --yes writes it",
    )
    recover.mode(
        "--clean", metavar="RUN", nargs="?", const="", completes="runs",
        help="list what killed saves and creations left; --yes removes it",
    )  # fmt: skip
    recover.mode(
        "--delete",
        metavar="TARGET",
        completes="targets",
        help="delete a TPU slice (a target or PROJECT/ZONE/NAME), or the pods of a target; says what trains on a slice",
    )
    recover.flag(
        "--save-first", of=("--delete",), action="store_true",
        help="save and stop the runs that train there, before their slice is deleted",
    )  # fmt: skip
    recover.flag(
        "--yes",
        of=_CONSENT,
        action="store_true",
        help="agree to what is named: a loss, price, deletion, program or missing evidence",
    )


def _add_screen(flags: FlagParser) -> None:
    screen = flags.section(SCREEN)
    screen.flag("--readonly", of=(SCREEN, "--demo"), action="store_true", help="refuse every change")
    screen.flag("--ascii", of=(SCREEN, "--demo", "--replay"), action="store_true", help="use ASCII characters only")
    screen.flag("--record", of=(SCREEN,), metavar="FILE", completes="files", help="record the session to a file")
    screen.mode("--replay", metavar="FILE", completes="files", help="show a recorded session")


def _add_common(flags: FlagParser) -> None:
    common = flags.section("common")
    common.flag(
        "--fleet", metavar="FILE", default_text="$MIDSTREAM_FLEET, ~/.config/midstream/fleet.yaml", completes="files",
        help="the fleet file: hosts, targets and stores",
    )  # fmt: skip
    common.flag("--json", action="store_true", help="print one JSON object per line on stdout")
    common.flag(
        "--verbose",
        of=("--launch", "--check", "--demo", "--migrate", "--continue", "--rollback"),
        action="store_true",
        help="show the output of installers, and each step of a migration, instead of one line of progress",
    )
    common.flag(
        "--print-completion", action=PrintAndExit, text=_completion, choices=SHELLS,
        help="print the completion script of a shell",
    )  # fmt: skip
    common.flag(
        "--version",
        action=PrintAndExit,
        text=_version,
        nargs=0,
        help="print the version, and the commit if it is known",
    )
    common.flag(
        "--help", "-h", action=PrintAndExit, text=lambda _: flags.format_help(), nargs=0, help="print this help"
    )  # fmt: skip


def _epilog() -> str:
    width = max(len(command) for command, text in EXAMPLES if text) + 3
    codes = [f"  {int(code)}  {text}" for code, text in MEANINGS.items()]
    examples = [f"  {command:<{width}}{text}".rstrip() for command, text in EXAMPLES]
    return "\n".join(["exit codes:", *codes, "", "examples:", *examples])


def _version(_: object) -> str:
    from midstream.version import version_text

    return f"midstream {version_text()}\n"


def _completion(shell: str) -> str:
    from midstream.completion_scripts import script

    return script(parser(), shell)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Parse the flags. Return them, and the engine's flags after ``--``.

    Raises:
        SystemExit: The flags are invalid, or `--help` or `--version` was printed.
        OSError: That could not be printed.
    """
    words = list(arguments)
    engine: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, engine = words[:cut], words[cut + 1 :]
    flags = parser()
    options = flags.parse_words(words, engine)
    for message in _conflicts(options, engine):
        flags.error(message)
    return options, tuple(engine)


def _conflicts(options: argparse.Namespace, engine: Sequence[str]) -> Iterator[str]:
    """Yield a message for each rule that is about more than which flags go together."""
    if engine and options.check and options.rehearse is None:
        yield "flags after -- are the engine's: --check needs --rehearse to use them"
    for name in _OF_PLOT:
        if getattr(options, name) and not options.plot:
            yield f"--{name.replace('_', '-')} goes with --metrics RUN --plot FILE"
    if options.tree and not options.checkpoints:
        yield "--tree goes with --checkpoints RUN or --checkpoints CHECKPOINT"
    if options.deep and not (options.verify or options.checkpoints):
        yield "--deep goes with --verify and --checkpoints RUN"
