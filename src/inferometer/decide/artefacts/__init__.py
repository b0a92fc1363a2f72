"""What a sizing decided, as files that deploy it, watch it and check it."""
