"""WHAT IS ASKED: model, hardware, engine and sweep, parsed once at the edge into types that cannot be wrong."""
