"""What an element is: its spec, its structure, its leaves."""
