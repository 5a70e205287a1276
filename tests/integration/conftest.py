from simulators.sshd import lab
from support.command_line import runs

__all__ = ["lab", "runs"]
