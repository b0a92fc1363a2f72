"""HOW SURE: estimates with intervals, judgements that may be undecided."""
