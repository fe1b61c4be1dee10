"""ArrayRecord files: layout, index, writing, and reading by maps or ranges. Nothing here knows versions or elements."""
