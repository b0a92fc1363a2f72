"""Load a server with the requests of a workload, and keep what came over the wire."""
