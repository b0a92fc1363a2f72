"""MEASURE: sweeps of real engines, ceilings of the machine, telemetry."""
