"""Which pictures does a report have? Charts of one question share a file; catalogue.py lists them in order."""
