"""`make bench`: what the server reaches, as ratios within one run: to the engine in-process, and to a naive server.

Knows the server by its HTTP interface only; `ceiling` alone uses the engine's own parts, for that is what it measures.
"""
