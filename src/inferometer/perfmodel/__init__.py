"""PERFORMANCE MODEL: FLOP, bytes, roofline bounds, memory and the step-time model."""
