"""Which small faults a module can be given: constants, comparisons, logic, extremes and signs, one at a time.

Input: a module's source. Output: `Mutant`s, each with the module's mutated syntax tree and a key that says where it is
and what changes in words that survive other edits of the file. What only words or types see is left alone.
"""

import ast
from collections import Counter
from dataclasses import dataclass
from math import ceil
from pathlib import Path

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """``lines``: of the expression or statement that a test must reach. ``late``: inside a function's body.

    ``names``: of what is computed with it at the module's import, where it is not late.
    """

    key: str
    module: str
    path: Path
    lines: range
    late: bool
    names: tuple[str, ...]
    where: tuple[int, ...]
    slot: int
    number: int

    def tree(self) -> ast.Module:
        """The module's mutated syntax tree."""
        tree = parsed(self.path)
        _apply(_at(tree, self.where), self.slot, self.number)
        return tree


def parsed(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def mutants(path: Path, module: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    tree = parsed(path)
    walker = _Walker(tree)
    walker.visit(tree)
    found, seen = [], Counter[str]()
    for site in walker.sites:
        for number, (was, now) in enumerate(site.changes):
            key = f"{module.rpartition('.')[2]}:{site.where}: `{ast.unparse(site.shown)}` {was} -> {now}"
            seen[key] += 1
            key += f" #{seen[key]}" if seen[key] > 1 else ""
            last = site.reach.end_lineno or site.reach.lineno
            lines = range(site.reach.lineno, last + 1)
            found.append(Mutant(key, module, path, lines, site.late, site.names, site.path, site.slot, number))
    return found


@dataclass(frozen=True)
class _Site:
    """A node by its path from the root, what of it changes (a slot: an operator's index), and how it is shown."""

    path: tuple[int, ...]
    slot: int
    changes: tuple[tuple[str, str], ...]
    where: str
    shown: ast.AST
    reach: ast.stmt | ast.expr
    late: bool
    names: tuple[str, ...]


def _at(tree: ast.AST, path: tuple[int, ...]) -> ast.AST:
    for index in path:
        tree = list(ast.iter_child_nodes(tree))[index]
    return tree


def _number(value: object) -> float | int | None:
    """Another number: a fifth more, a whole one where it was whole."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value + max(1, ceil(abs(value) * 0.2))
    return value * 1.2 if value else 1.0


def _apply(node: ast.AST, slot: int, number: int) -> None:
    match node:
        case ast.Constant():
            node.value = _number(node.value)  # type: ignore[assignment]
        case ast.Compare():
            node.ops[slot] = SWAPS[type(node.ops[slot])][number]()  # type: ignore[assignment]
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            node.op = SWAPS[type(node.op)][number]()  # type: ignore[assignment]
        case ast.UnaryOp():  # of x, where it is not used as a condition, its truth
            node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node.operand)
            ast.fix_missing_locations(node)
        case ast.Name():
            node.id = EXTREMES[node.id]


class _Walker(ast.NodeVisitor):
    """Finds the sites."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites: list[_Site] = []
        self._path: list[int] = []
        self._names: list[str] = []
        self._stack: list[ast.AST] = [tree]
        self._bodies = 0

    def generic_visit(self, node: ast.AST) -> None:
        for index, child in enumerate(ast.iter_child_nodes(node)):
            if self._only_words(node, child):
                continue
            self._path.append(index)
            self._stack.append(child)
            self._enter(node, child)
            self._stack.pop()
            self._path.pop()

    def _enter(self, parent: ast.AST, child: ast.AST) -> None:
        """Visit a child, knowing whether it runs when the module is imported or later."""
        body = isinstance(parent, ast.FunctionDef) and child in parent.body
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        self._bodies += body
        if named:
            self._names.append(child.name)  # type: ignore[attr-defined]
        self.visit(child)
        if named:
            self._names.pop()
        self._bodies -= body

    def _only_words(self, node: ast.AST, child: ast.AST) -> bool:
        """Annotations, and how a number is written in a text."""
        match node:
            case ast.AnnAssign():
                return child is node.annotation
            case ast.arg():
                return True
            case ast.FunctionDef():
                return child is node.returns
            case ast.FormattedValue():
                return child is node.format_spec
        return False

    def visit_Constant(self, node: ast.Constant) -> None:
        if (now := _number(node.value)) is not None:
            self._add(node, 0, ((repr(node.value), repr(now)),))

    def visit_Compare(self, node: ast.Compare) -> None:
        for slot, op in enumerate(node.ops):
            self._add(node, slot, tuple((SIGNS[type(op)], SIGNS[new]) for new in SWAPS[type(op)]))
        self.generic_visit(node)

    def _operator(self, node: ast.BinOp | ast.BoolOp | ast.AugAssign) -> None:
        op = type(node.op)
        if op in SWAPS and not self._is_text(node):
            self._add(node, 0, tuple((SIGNS[op], SIGNS[new]) for new in SWAPS[op]))
        self.generic_visit(node)

    visit_BinOp = visit_BoolOp = visit_AugAssign = _operator  # noqa: N815 - ast's own names

    def _is_text(self, node: ast.AST) -> bool:
        return any(isinstance(part, ast.JoinedStr | ast.List | ast.Tuple) or _is_str(part) for part in ast.walk(node))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, 0, (("not", "nothing"),))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in EXTREMES and isinstance(node.ctx, ast.Load):
            self._add(node, 0, ((node.id, EXTREMES[node.id]),))

    def _add(self, node: ast.AST, slot: int, changes: tuple[tuple[str, str], ...]) -> None:
        parent = self._stack[-2] if len(self._stack) > 1 else node
        bare = isinstance(node, ast.Constant | ast.Name) and not isinstance(parent, ast.comprehension)
        shown = parent if bare else node
        statement = next(n for n in reversed(self._stack) if isinstance(n, ast.stmt))
        # of a statement with a body only what its head evaluates
        inside = next(
            (n for n in self._stack[self._stack.index(statement) + 1 :] if isinstance(n, ast.expr)), statement
        )
        reach = inside if hasattr(statement, "body") else statement
        where = ".".join(self._names) or "module"
        late, names = self._bodies > 0, _made_by(statement)
        self.sites.append(_Site(tuple(self._path), slot, changes, where, shown, reach, late, names))


def _made_by(statement: ast.stmt) -> tuple[str, ...]:
    """The names that a statement binds; the default of a parameter is reached by calls of its function."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return (statement.name,)
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return tuple(node.id for node in stored)


def _is_str(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
