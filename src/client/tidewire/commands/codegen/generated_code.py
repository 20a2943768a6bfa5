"""Checks the syntax tree of the models that the code generator has written, before they are used.

The check allows only the few kinds of code that the generator writes for schemas that passed `check_schema_keywords`.
It rejects all other code, so that no text of a server can run as code when the generated module is imported, even if
the code generator has a bug. Annotations are code as well, because pydantic evaluates them.
"""

import ast
import io
import tokenize
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NoReturn

from tidewire.terminal_escapes import visible

_BUILTINS: Final = frozenset(
    {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)
IMPORTED: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "__future__": frozenset({"annotations"}),
        "builtins": _BUILTINS,
        "datetime": frozenset({"date", "datetime", "time", "timedelta"}),
        "decimal": frozenset({"Decimal"}),
        "ipaddress": frozenset({"IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"}),
        "pathlib": frozenset({"Path"}),
        "pydantic": frozenset(
            {
                "AnyUrl",
                "AwareDatetime",
                "Base64Str",
                "BaseModel",
                "ConfigDict",
                "EmailStr",
                "Field",
                "JsonValue",
                "NaiveDatetime",
                "RootModel",
                "SecretStr",
                "StringConstraints",
                "UUID1",
                "UUID3",
                "UUID4",
                "UUID5",
            }
        ),
        "tidewire": frozenset({"Binary"}),
        "typing": frozenset({"Annotated", "Any", "Literal", "Optional", "Union"}),
        "typing_extensions": frozenset({"TypeAliasType"}),
        "uuid": frozenset({"UUID"}),
    }
)
"""Names that the models may import, by their modules."""
_CONFIG, _ALIAS = "pydantic.ConfigDict", "typing_extensions.TypeAliasType"
_METADATA: Final = frozenset({"pydantic.Field", "pydantic.StringConstraints"})
_BASES: Final = frozenset({"pydantic.BaseModel", "pydantic.RootModel"})


class UnexpectedCodeError(ValueError):
    """The generated module contains code that is not needed for models."""


def check(source: str, imports: Iterable[str]) -> frozenset[str]:
    """Check that a module contains only models and type aliases, and return the names that it defines.

    Args:
        source: Source code of the module.
        imports: Further names that the module may import, such as `typing.Final`.

    Raises:
        UnexpectedCodeError: The module contains any other code.
    """
    data = source.encode()
    if visible(source) != source:
        raise UnexpectedCodeError(
            "the generated module contains control characters, which a schema may have in a pattern"
        )
    # A comment such as `coding: utf-7` in one of the first two lines would make Python decode the module to a text that
    # differs from the checked text.
    if tokenize.detect_encoding(io.BytesIO(data).readline)[0] != "utf-8":
        raise UnexpectedCodeError("the generated module names another encoding than UTF-8")
    checker = _CodeChecker(
        {*imports, *(f"{module}.{name}" for module in IMPORTED for name in IMPORTED[module])}
    )
    try:
        statements = ast.parse(data).body
    except SyntaxError as error:
        raise UnexpectedCodeError(f"the generated module is not valid Python: {error}") from None
    for statement in statements:
        checker.statement(statement)
    checker.check_types()
    return frozenset(checker.defined)


class _CodeChecker:
    def __init__(self, importable: set[str]) -> None:
        self.defined: set[str] = set()
        self._importable = importable
        self._imported: dict[str, str] = {}
        """Imported name → its full name, with the module."""
        self._types: list[tuple[ast.expr, frozenset[str]]] = []
        """Type annotations, each with the names that members of its class hide. They are checked at the end, because an
        annotation may refer to a class that is defined later."""

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                self._import(node, module)
            case ast.ClassDef(decorator_list=[], keywords=[]):
                self._class(node)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Name(id=called), args=[ast.Constant(value=alias), type_], keywords=[]
                ),
            ) if self._imported.get(called) == _ALIAS and alias == name:
                self._define(node, name)
                self._types.append((type_, frozenset()))
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="model_rebuild"), args=[], keywords=[]
                )
            ) if name in self.defined:
                pass
            case _:
                _reject(node)

    def _import(self, node: ast.ImportFrom, module: str) -> None:
        for each in node.names:
            if f"{module}.{each.name}" not in self._importable:
                _reject(node, f"an import of {module}.{each.name}")
            name, full = each.asname or each.name, f"{module}.{each.name}"
            if self._imported.get(name) != full:
                self._check_new(node, name)
                self._imported[name] = full

    def _check_new(self, node: ast.stmt, name: str) -> None:
        if name in self.defined or name in self._imported or name in _BUILTINS or name.startswith("_"):
            _reject(node, f"a second meaning of the name {name!r}")

    def _define(self, node: ast.stmt, name: str) -> None:
        self._check_new(node, name)
        self.defined.add(name)

    # ---- classes -----------------------------------------------------------------------------------------------

    def _class(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if not isinstance(name, ast.Name) or (
                name.id not in self.defined and self._imported.get(name.id) not in _BASES
            ):
                _reject(base)
            if isinstance(base, ast.Subscript):
                self._types.append((base.slice, frozenset()))
        self._define(node, node.name)
        hidden = frozenset(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and each.value is not None
        )
        for each in node.body:
            self._member(each, hidden)

    def _member(self, node: ast.stmt, hidden: frozenset[str]) -> None:
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Assign(
                targets=[ast.Name(id="model_config")],
                value=ast.Call(func=ast.Name(id=called), args=[], keywords=settings),
            ) if self._imported.get(called) == _CONFIG:
                for setting in settings:
                    self._data(setting.value)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=type_, value=value) if (
                not name.startswith("_")
            ):
                self._types.append((type_, hidden))
                if isinstance(value, ast.Call):
                    self._metadata(value)
                elif value is not None:
                    self._data(value)
            case _:
                _reject(node)

    def _metadata(self, node: ast.expr) -> None:
        match node:
            case ast.Call(func=ast.Name(id=called), args=arguments, keywords=settings) if (
                self._imported.get(called) in _METADATA
            ):
                for argument in (*arguments, *(setting.value for setting in settings)):
                    self._data(argument)
            case _:
                _reject(node)

    def _data(self, node: ast.expr) -> None:
        match node:
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                pass
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for element in elements:
                    self._data(element)
            case ast.Dict(keys=keys, values=values):
                for each in (*keys, *values):
                    # A key is None for `**`.
                    _reject(node) if each is None else self._data(each)
            case _:
                _reject(node)

    # ---- types -------------------------------------------------------------------------------------------------

    def check_types(self) -> None:
        for type_, hidden in self._types:
            self._type(type_, hidden)

    def _type(self, node: ast.expr, hidden: frozenset[str]) -> None:
        match node:
            case ast.Name(id=name) if name not in hidden and (
                name in self.defined or name in self._imported or name in _BUILTINS
            ):
                pass
            case ast.Constant(value=None):
                pass
            case ast.Constant(value=str(text)):
                # A type in quotes is a reference to a class that is defined later.
                self._type(_parsed(text, node), hidden)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                self._type(left, hidden)
                self._type(right, hidden)
            case ast.Subscript(value=ast.Name(id=name), slice=argument):
                self._type(node.value, hidden)
                self._subscript(self._imported.get(name), argument, hidden)
            case _:
                _reject(node, "an annotation")

    def _subscript(self, generic: str | None, argument: ast.expr, hidden: frozenset[str]) -> None:
        arguments = argument.elts if isinstance(argument, ast.Tuple) else [argument]
        if generic == "typing.Literal":
            self._data(argument)
            return
        if generic == "typing.Annotated":
            for metadata in arguments[1:]:
                self._metadata(metadata)
                if {each.id for each in ast.walk(metadata) if isinstance(each, ast.Name)} & hidden:
                    _reject(metadata)
            arguments = arguments[:1]
        for each in arguments:
            if not (isinstance(each, ast.Constant) and each.value is ...):
                self._type(each, hidden)


def _parsed(text: str, node: ast.expr) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        _reject(node, "an annotation")


def _reject(node: ast.AST, what: str = "code") -> NoReturn:
    raise UnexpectedCodeError(
        f"the generated module contains {what} that is not needed for models, in line {getattr(node, 'lineno', 0)}:"
        f" {ast.unparse(node)!r:.200}. No module was written. The schemas of this server are faulty or hostile."
    )
