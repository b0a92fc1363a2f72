"""WHY THAT LONG: FLOP, bytes, bounds, memory and the step-time model."""
