"""A model that is used for its attention: RXNMapper's ALBERT finds where each atom of a product comes from.

`albert` is the module, `package` and `convert` read the published files, `reactions` reads SMILES, `mapping` turns
weights into pairs of atoms, `map_atoms` is the client.
"""
