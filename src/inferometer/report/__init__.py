"""SHOW IT: view models, charts, one HTML file."""
