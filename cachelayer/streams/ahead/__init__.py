"""Read ahead of the consumer, in the background."""
