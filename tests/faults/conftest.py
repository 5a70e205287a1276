from lab.command_line import runs
from lab.sshd import lab

__all__ = ["lab", "runs"]
