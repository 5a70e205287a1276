"""Checks of this machine and of targets. Every check that fails has a hint."""
