"""Two claims about attention, measured: cost against length, and recall against distance. `python -m claims`."""
