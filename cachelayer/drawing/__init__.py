"""Draw records for people: leaves as texts, arrays as pictures, for the command line, the page and notebooks."""
