"""Runs of other trainers: start, adopt, write a run file, advise before a move.

A run is started with its files; a run that trains already can be adopted.
"""
