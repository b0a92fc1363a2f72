"""What limits a running server, by its own metrics, and what would a change of its settings do?"""
