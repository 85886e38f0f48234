"""cowtail: an executable specification of the KV-cache block lifecycle."""

__version__ = "0.1.0"
