"""A source (a model directory) becomes a bundle, with its proof. Knows no HTTP."""
