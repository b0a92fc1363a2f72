"""Step-time models from sweeps and from measured kernels, by regression."""
