"""The command line: the only code that sees models, export and service together."""

__version__ = "0.1.0"
