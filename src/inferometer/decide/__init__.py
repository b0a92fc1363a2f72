"""What to do: how much a server carries, and what to buy for a promise."""
