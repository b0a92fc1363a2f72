"""LEARN FROM RUNS: step-time models from what was measured."""
