"""WHAT HAPPENED: the record of a run, its tables and its store."""
