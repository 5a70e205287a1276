"""Surroundings of an attempt: devices, memory, log, compile cache, status, record."""
