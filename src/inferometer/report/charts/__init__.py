"""Which pictures does a report have? One file per chart; catalogue.py lists them in order."""
