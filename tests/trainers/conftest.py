from simulators.sshd import lab, server
from support.command_line import runs
from support.trainer_moves import trainer_python

__all__ = ["lab", "runs", "server", "trainer_python"]
