"""Signs of life while work runs: bars in terminals and notebooks, lines in logs."""
