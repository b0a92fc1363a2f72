"""STATISTICS: estimates with intervals, and verdicts that may be undecided."""
