from simulators.sshd import lab, server
from support.command_line import runs

__all__ = ["lab", "runs", "server"]
