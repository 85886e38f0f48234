"""Probes in the source of a package: which branches a run has taken, at almost no cost.

Every branch of every function gets a probe when its module is imported: one store into an
array, where a tracer would be called for every line. Measured on four small scopes: coverage's
tracer makes the search take three to four times as long, probes a twentieth longer.

A branch is an outcome of an ``if``, a conditional expression, a loop, a ``match`` or an
``except``; calling a function is one as well. What follows from a branch line by line is not
counted on its own, operands of ``and`` and ``or`` and filters of comprehensions are not told apart.

>>> tree, branches = instrumented("def sign(x):\\n    return 1 if x > 0 else -1\\n", "m", 0)
>>> [(b.function, b.text, b.outcome) for b in branches]
[('m.sign', 'def sign(x):', 'called'), ('m.sign', '1 if x > 0 else -1', 'true'), \
('m.sign', '1 if x > 0 else -1', 'false')]
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import attrs

PROBES = "__reached__"
"""Name that an instrumented module knows the array of probes by."""


@attrs.frozen
class Branch:
    """One outcome of a decision: where it is taken, and how it comes out.

    ``function`` is the module's last name and the qualified name; ``text`` the decision's first
    line without indentation. ``within`` is the position of the branch that must be taken
    before this decision is met, None for a call.
    """

    module: str
    function: str
    text: str
    outcome: str
    line: int
    within: int | None


def instrumented(source: str, module: str, first: int) -> tuple[ast.Module, list[Branch]]:
    """Return a module's syntax tree with probes numbered from ``first``, and what each means."""
    tree = ast.parse(source)
    inserter = _Inserter(source.splitlines(), module, first)
    for node in tree.body:
        inserter.look_for_functions(node, module.rpartition(".")[2])
    return ast.fix_missing_locations(tree), inserter.branches


class _Inserter:
    """Puts probes into a syntax tree, in place."""

    def __init__(self, lines: Sequence[str], module: str, first: int) -> None:
        self.lines = lines
        self.module = module
        self.first = first
        self.function = ""
        self.branches: list[Branch] = []

    def look_for_functions(self, node: ast.AST, prefix: str) -> None:
        """Instrument every function below ``node``."""
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                self.look_for_functions(child, f"{prefix}.{node.name}")
        elif isinstance(node, ast.FunctionDef):
            outer, self.function = self.function, f"{prefix}.{node.name}"
            number = self._number(node, self.lines[node.lineno - 1].strip(), "called", None)
            has_docstring = ast.get_docstring(node, clean=False) is not None
            self._suite(node.body, number)
            node.body.insert(int(has_docstring), self._probe(number))
            self.function = outer

    def _suite(self, body: list[ast.stmt], within: int) -> None:
        for statement in body:
            self._statement(statement, within)

    def _statement(self, node: ast.stmt, within: int) -> None:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.look_for_functions(node, self.function)
            return
        text = self.lines[node.lineno - 1].strip()
        if isinstance(node, ast.If):
            self._branch(node, node.body, text, "true", within)
            self._branch(node, node.orelse, text, "false", within)
        elif isinstance(node, (ast.For, ast.While)):
            self._branch(node, node.body, text, "entered", within)
            if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
                self._branch(node, node.orelse, text, "run to its end", within)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                text = self.lines[case.pattern.lineno - 1].strip()
                self._branch(case.pattern, case.body, text, "matched", within)
        elif isinstance(node, ast.Try):
            self._suite(node.body, within)
            for handler in node.handlers:
                text = self.lines[handler.lineno - 1].strip()
                self._branch(handler, handler.body, text, "caught", within)
            self._suite(node.orelse, within)
            self._suite(node.finalbody, within)
        elif isinstance(node, ast.With):
            self._suite(node.body, within)
        self._expressions(node, within)

    def _branch(
        self,
        node: ast.stmt | ast.pattern | ast.excepthandler,
        body: list[ast.stmt],
        text: str,
        outcome: str,
        within: int,
    ) -> None:
        number = self._number(node, text, outcome, within)
        self._suite(body, number)
        body.insert(0, self._probe(number))

    def _expressions(self, node: ast.stmt, within: int) -> None:
        """Instrument the conditional expressions of a statement, not of those within it."""
        for field, value in ast.iter_fields(node):
            if field in ("body", "orelse", "finalbody", "handlers", "cases"):
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    self._conditionals(item, within)

    def _conditionals(self, node: ast.AST, within: int) -> None:
        for child in ast.walk(node):
            if isinstance(child, ast.IfExp):
                text = " ".join(ast.unparse(child).split())
                child.body = self._chosen(child, child.body, text, "true", within)
                child.orelse = self._chosen(child, child.orelse, text, "false", within)

    def _chosen(
        self, node: ast.IfExp, value: ast.expr, text: str, outcome: str, within: int
    ) -> ast.expr:
        """Return ``(probe, value)[1]`` for the value of a conditional expression."""
        number = self._number(node, text, outcome, within)
        mark = ast.Call(
            func=ast.Attribute(ast.Name(PROBES, ast.Load()), "__setitem__", ast.Load()),
            args=[ast.Constant(self.first + number), ast.Constant(1)],
            keywords=[],
        )
        return ast.Subscript(ast.Tuple([mark, value], ast.Load()), ast.Constant(1), ast.Load())

    def _number(
        self,
        node: ast.stmt | ast.expr | ast.pattern | ast.excepthandler,
        text: str,
        outcome: str,
        within: int | None,
    ) -> int:
        above = None if within is None else self.first + within
        self.branches.append(Branch(self.module, self.function, text, outcome, node.lineno, above))
        return len(self.branches) - 1

    def _probe(self, number: int) -> ast.stmt:
        target = ast.Subscript(
            ast.Name(PROBES, ast.Load()), ast.Constant(self.first + number), ast.Store()
        )
        return ast.Assign([target], ast.Constant(1))


class Probed:
    """The probes of a package: what they mean, and which were reached."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self.reached = bytearray()

    def add(self, source: str, module: str) -> ast.Module:
        """Number the branches of one more module; return its tree with probes."""
        tree, branches = instrumented(source, module, len(self.branches))
        self.branches += branches
        self.reached.extend(bytes(len(branches)))
        return tree


@contextlib.contextmanager
def probed(package: str) -> Iterator[Probed]:
    """Instrument every module of a package that is imported while the block lasts.

    Raises RuntimeError if some module of it has been imported already: it would lack probes.
    """
    early = sorted(name for name in sys.modules if name.startswith(f"{package}."))
    if early:
        raise RuntimeError(f"{early[0]} has been imported without probes; use a fresh process")
    probes = Probed()
    finder = _Finder(package, probes)
    sys.meta_path.insert(0, finder)
    try:
        yield probes
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str, probes: Probed) -> None:
        self.package = package
        self.probes = probes

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the package, with a loader that puts the probes in."""
        if not fullname.startswith(f"{self.package}."):
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            return found
        loader = _Loader(fullname, found.origin, self.probes)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, probes: Probed) -> None:
        super().__init__(fullname, path)
        self.probes = probes

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with probes; the compiled code is not cached."""
        source = Path(self.path).read_text(encoding="utf-8")
        tree = self.probes.add(source, module.__name__)
        module.__dict__[PROBES] = self.probes.reached
        exec(compile(tree, self.path, "exec"), module.__dict__)
