"""Stands for the package in simulated installations."""
