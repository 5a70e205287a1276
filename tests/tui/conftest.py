from simulators.sshd import lab

__all__ = ["lab"]
