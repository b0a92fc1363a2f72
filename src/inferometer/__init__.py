"""Inferometer: how fast is this model here, what limits it, what would it take, and was that true?"""

__version__ = "0.1.0"

__all__ = ["__version__"]
