"""Docstrings are written for help() and have Sphinx's roles; on the site these become links."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """``:func:`tricoll.init``` becomes a link where the site has it, and the name as code otherwise."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Griffe has read a function, a class, or a module."""
        if obj.docstring is None:
            return

        def link(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("tricoll"):
                target = name
            elif name.startswith("Communicator."):
                target = f"tricoll.{name}"
            else:
                scope = obj if obj.is_module or obj.is_class else obj.parent
                target = f"{scope.path if scope else obj.path}.{name}"
            return f'<autoref identifier="{target}" optional><code>{name}</code></autoref>'

        text = ROLE.sub(link, obj.docstring.value)
        text = re.sub(r"^::$\n", "", text, flags=re.MULTILINE)  # before a block of code
        obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
