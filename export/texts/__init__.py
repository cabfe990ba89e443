"""A model directory becomes a bundle: read as data, its graphs built from its shape and its weights, without torch."""
