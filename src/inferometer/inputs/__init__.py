"""INPUTS: model, hardware, engine and sweep, parsed once into validated types."""
