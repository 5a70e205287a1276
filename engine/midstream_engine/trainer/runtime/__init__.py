"""Surroundings of an attempt: devices, memory, log, compile cache, status file, and record of the attempt."""
