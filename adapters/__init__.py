"""Faces of cachelayer towards frameworks, a module each; a framework is imported there and nowhere else."""
