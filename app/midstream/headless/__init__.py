"""Every mode without a screen: text for people, JSON lines for programs."""

from midstream.headless.clean_leftovers import clean
from midstream.headless.diff_checkpoints import diff
from midstream.headless.guard_run import guard
from midstream.headless.launch_and_stop import launch, stop
from midstream.headless.metrics_and_log import log, metrics
from midstream.headless.migrate_run import follow, migrate, resume
from midstream.headless.repair_run import repair
from midstream.headless.run_checks import check, doctor
from midstream.headless.show_config import config
from midstream.headless.status import checkpoints, init, status
from midstream.headless.tpu_slices import delete
from midstream.headless.verify_checkpoint import show_tree, verify

__all__ = [
    "check", "checkpoints", "clean", "config", "delete", "diff", "doctor",
    "follow", "guard", "init", "launch", "log", "metrics", "migrate", "repair", "resume", "show_tree", "status", "stop",
    "verify",
]  # fmt: skip
