"""Surroundings of an attempt: devices, memory, log, cache, status and record.

They are the compile cache, the status file, and the record of the attempt.
"""
