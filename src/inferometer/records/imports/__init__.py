"""Readers of other tools' result files, which become runs of our own type."""
