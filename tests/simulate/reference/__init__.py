"""What would happen, in plain Python that reads like the algorithms. ``kernel`` is held to it."""
