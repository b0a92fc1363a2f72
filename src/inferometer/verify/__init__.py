"""Were we right?

Predictions sealed before the measurement, checked after it, and kept in a ledger.
"""
