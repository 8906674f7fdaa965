"""``python -m tricoll.cost``: how long a ring all-reduces the BF16 gradients of 8 billion parameters, and 1 MB."""

from rich.console import Console

from .textbook import tables

console = Console(highlight=False)
for table in tables():
    console.print(table)
