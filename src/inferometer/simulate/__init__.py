"""What would happen? Engines' schedulers, step by step, on a clock of whole nanoseconds."""
