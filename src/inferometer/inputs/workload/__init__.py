"""Which requests are sent: arrival times, lengths, and shared tokens."""
