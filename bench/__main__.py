"""``python -m tricoll.bench`` is ``tricoll bench``."""

from .cli import app

app(prog_name="tricoll bench")
