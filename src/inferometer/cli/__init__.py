"""The command: one file per verb; the only room that prints and wires rooms together."""
