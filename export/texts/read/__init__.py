"""Reading a model directory, as data: what its files say, what is wrong with them. Knows no graph."""
