"""Sealed predictions and their outcomes.

Predictions sealed before the measurement, checked after it, and kept in a ledger.
"""
