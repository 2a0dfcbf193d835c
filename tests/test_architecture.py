"""The shape of the source: imports point one way, `import foredraft` stays light, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foredraft

SOURCE = Path(foredraft.__file__).parent
ROOT = "foredraft"

LAYERS = (
    {"errors", "meeting"},
    {"config", "files"},
    {"tree"},
    {"tree_merging"},
    {"sampling", "results"},
    {"protocols", "costs"},
    {"backends", "policies", "verifiers", "zoo"},
    {"drafters"},
    {"engine", "methods"},
    {"train", "bench", "serve", "hf"},
    {"cli"},
    {"__main__"},
)
"""Lowest first. A unit imports itself and lower layers, never another unit of its own layer."""

TOGETHER = {"engine", "methods"}
"""The exception: recipes and the engine are one thing in two files."""

HEAVY = ("fastapi", "uvicorn", "prometheus_client", "llguidance", "matplotlib", "typer", "rich")
"""What only the server, the plots and the command line may load."""

LONGEST_FILE = 400

RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}


def module_name(file: Path, source: Path = SOURCE) -> str:
    """The dotted name of a source file."""
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join((ROOT, *(part for part in parts if part != "__init__")))


def unit_of(module: str) -> str:
    """The layer unit a module belongs to; the empty string for the package root."""
    return module.removeprefix(ROOT).removeprefix(".").split(".")[0]


def imported_modules(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and name of every Foredraft module that a file imports, at any depth of the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, module, is_package)
            names = [f"{base}.{alias.name}" if base == ROOT else base for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == ROOT)


def absolute_base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module after `from`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    up = node.level - (1 if is_package else 0)
    package = module.split(".")[: len(module.split(".")) - up]
    return ".".join((*package, *([node.module] if node.module else [])))


def may_import(importer: str, imported: str) -> bool:
    """Whether one unit may import another."""
    if importer == imported or {importer, imported} <= TOGETHER or imported == "__version__":
        return True
    if importer not in RANK:
        return False
    # Other names of the package root come from the engine.
    return RANK.get(imported, RANK["engine"]) < RANK[importer]


def bad_imports(file: Path, source: Path = SOURCE) -> list[str]:
    """Every import of a file that points the wrong way, each as one line of text."""
    module = module_name(file, source)
    unit = unit_of(module)
    if not unit:
        return []  # the root is the public face: it may re-export, lazily, from any layer
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        f"{file.relative_to(source)}:{line}: {unit} may not import {name}"
        for line, name in imported_modules(tree, module, file.name == "__init__.py")
        if not may_import(unit, unit_of(name))
    ]


def sources() -> list[Path]:
    """Every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_unit_has_a_layer() -> None:
    units = {unit_of(module_name(file)) for file in sources()} - {""}
    assert units <= set(RANK), f"in no layer: {sorted(units - set(RANK))}"


def test_imports_point_one_way() -> None:
    found = [line for file in sources() for line in bad_imports(file)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("place", "code", "caught"),
    [
        ("tree.py", "from foredraft.engine import session", True),
        ("tree.py", "import foredraft.sampling.law", True),
        ("tree.py", "from foredraft import engine", True),
        ("tree.py", "from foredraft import load", True),
        ("tree.py", "from . import protocols", True),
        ("tree.py", "def late():\n    from foredraft.cli import main", True),
        ("backends/hf.py", "from foredraft.policies.fixed import Fixed", True),
        ("backends/__init__.py", "from ..drafters import ngram", True),
        ("backends/deep/hf.py", "from ...drafters.ngram import NgramDrafter", True),
        ("sampling/law.py", "from foredraft.results import Result", True),
        ("bench/run.py", "from foredraft.serve import app", True),
        ("surprise.py", "from foredraft import errors", True),
        ("tree.py", "from foredraft.config import MAX_TREE_NODES", False),
        ("backends/hf.py", "from . import kv_cache", False),
        ("backends/hf.py", "from foredraft import __version__", False),
        ("backends/hf.py", "import foredraftsmen", False),
        ("engine/load.py", "from foredraft.methods import recipe", False),
        ("methods.py", "from foredraft.engine.session import Engine", False),
        ("bench/run.py", "from foredraft import load", False),
        ("cli/main.py", "import foredraft\nfrom foredraft import bench, zoo", False),
    ],
)
def test_the_check_catches_a_forged_import(
    tmp_path: Path, place: str, code: str, caught: bool
) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert bool(bad_imports(file, tmp_path)) is caught


def test_import_foredraft_is_light() -> None:
    done = run_python("import foredraft, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split()) & set(HEAVY)
    assert not loaded, f"`import foredraft` loads {', '.join(sorted(loaded))}"


def test_no_module_prints_at_import() -> None:
    modules = [module_name(file) for file in sources()]
    done = run_python(f"import importlib\nfor m in {modules}: importlib.import_module(m)")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")


def test_every_file_is_short() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in sources()}
    long = [f"{file.relative_to(SOURCE)}: {n}" for file, n in lengths.items() if n > LONGEST_FILE]
    assert not long, f"longer than {LONGEST_FILE} lines: {', '.join(long)}"
