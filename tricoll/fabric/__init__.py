"""The fabrics: where ranks live and how they reach each other's memory. One a file; ``base.py`` is their protocol."""
