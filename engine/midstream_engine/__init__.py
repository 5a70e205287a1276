"""The engine that runs on the accelerators. It never imports the app."""

__version__ = "0.1.0"
