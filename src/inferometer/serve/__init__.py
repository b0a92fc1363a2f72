"""Live surfaces: servers that run on the simulator."""
