"""ASK THE MACHINE: sweeps of real engines, ceilings of the machine, telemetry."""
