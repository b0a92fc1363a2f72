"""What changed in a running server: regimes, and drift from what was learned of it."""
