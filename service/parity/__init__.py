"""The proof that a graph computes what its reference does: generated cases, stored probes, gates and their report."""
