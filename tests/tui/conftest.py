from lab.sshd import lab

__all__ = ["lab"]
