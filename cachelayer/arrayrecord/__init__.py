"""ArrayRecord files: their layout, and reading and writing them."""
