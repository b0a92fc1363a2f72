"""Servers from load tests, by inverse simulation: nothing but the requests' timestamps is seen."""
