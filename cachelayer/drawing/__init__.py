"""Draw records for people, without a framework: leaves as text, arrays as pictures. The faces put these on a page."""
