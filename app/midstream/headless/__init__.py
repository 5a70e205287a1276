"""Every mode without a screen: text for people, JSON lines for programs."""

from midstream.headless.act import launch, stop
from midstream.headless.check import check, doctor
from midstream.headless.clean import clean
from midstream.headless.config import config
from midstream.headless.diff import diff
from midstream.headless.guard import guard
from midstream.headless.look import checkpoints, init, status
from midstream.headless.move import follow, migrate, resume
from midstream.headless.read import log, metrics
from midstream.headless.repair import repair
from midstream.headless.slices import delete
from midstream.headless.verify import show_tree, verify

__all__ = [
    "check", "checkpoints", "clean", "config", "delete", "diff", "doctor",
    "follow", "guard", "init", "launch", "log", "metrics", "migrate", "repair", "resume", "show_tree", "status", "stop",
    "verify",
]  # fmt: skip
