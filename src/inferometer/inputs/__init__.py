"""WHAT IS ASKED: model, hardware, engine and sweep, parsed once into types that cannot be wrong."""
