"""What a version is, and the log that publishes it."""
