"""Runs of other trainers: start one with its files, adopt one that trains, write its run file, advise before a move."""
