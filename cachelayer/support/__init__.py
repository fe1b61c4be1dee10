"""What every room may use, and what knows of no dataset: arguments, locks, threads, files, logs, waits, progress."""
