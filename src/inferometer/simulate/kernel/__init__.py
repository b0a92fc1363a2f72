"""The simulator compiled with numba: every scheduler on arrays.

``reference`` has the same rules in plain Python.
"""
