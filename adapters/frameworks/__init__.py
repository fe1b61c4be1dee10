"""What the adapters that feed frameworks share, and the halves of those that are too large for one module."""
