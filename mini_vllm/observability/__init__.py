"""What a run looked like: totals and step records."""
