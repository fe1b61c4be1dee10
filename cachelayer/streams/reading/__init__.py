"""Read steps: records, the functions of the user, and batches of them."""
