"""Progress of running work on stderr: bars in terminals and notebooks, lines in logs. No other output."""
