"""Weighted samples: the weights that users pass, the tables that are made of them, and streams of what they draw."""
