"""Reads what a model's source says below each of its attributes, which is what a setting means."""

import ast
import inspect
from collections.abc import Mapping
from functools import cache


@cache
def attribute_docstrings(model: type) -> Mapping[str, str]:
    """The text below each annotated attribute of a class at the top of its module, by the attribute's name. Raises
    OSError where there is no source.

    Parsing takes 20 ms, and only help texts and the example file need it: with pydantic's `use_attribute_docstrings`
    each start of a grid would wait for it.
    """
    [definition] = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
