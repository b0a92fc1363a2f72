"""Devices from published benchmark tables, and from one device to another."""
