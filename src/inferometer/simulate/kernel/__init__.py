"""What would happen, compiled: every scheduler over arrays, in numba.

``reference`` says the same to be read.
"""
