"""What the packages of this tree promise together: one shape, one set of metadata, nothing out of step."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(file.parent for group in ("shared", "packages") for file in ROOT.glob(f"{group}/*/pyproject.toml"))
NAMES = [folder.name for folder in FOLDERS]
CORE, META = "rl-triton-core", "rl-triton"
ALGORITHMS = [folder.name for folder in FOLDERS if folder.parent.name == "packages" and folder.name != META]
REPOSITORY = "https://github.com/rl-triton/rl-triton"

every_package = pytest.mark.parametrize("name", NAMES)


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def folder_of(name: str) -> Path:
    return FOLDERS[NAMES.index(name)]


def module_of(name: str) -> str:
    return name.replace("-", "_")


def source_of(name: str) -> Path:
    return folder_of(name) / "src" / module_of(name)


def content_of(name: str) -> dict[str, Any]:
    return load(folder_of(name) / "pyproject.toml")


def project_of(name: str) -> dict[str, Any]:
    project: dict[str, Any] = content_of(name)["project"]
    return project


def requirements_of(name: str) -> list[Requirement]:
    return [Requirement(line) for line in project_of(name)["dependencies"]]


def version_of(name: str) -> str:
    """The version, if the file says it as hatchling, and a reader, can see it: a single literal."""
    tree = ast.parse((source_of(name) / "_version.py").read_text(encoding="utf-8"))
    statements = [
        node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert len(statements) == 1
    (statement,) = statements
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.targets[0], ast.Name)
    assert statement.targets[0].id == "__version__"
    assert isinstance(statement.value, ast.Constant)
    assert isinstance(statement.value.value, str)
    return statement.value.value


def public_names(name: str) -> set[str]:
    """What `__all__` lists, read without an import, so that a package that cannot be imported fails its tests only."""
    tree = ast.parse((source_of(name) / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {public for public in ast.literal_eval(node.value) if not public.startswith("__")}
    return set()


PUBLIC_NAMES = [(module_of(name), public) for name in NAMES if name != META for public in sorted(public_names(name))]
every_public_name = pytest.mark.parametrize(("module", "public"), PUBLIC_NAMES)


def test_there_are_packages() -> None:
    assert CORE in NAMES
    assert META in NAMES
    assert ALGORITHMS


# The shape of a package


@every_package
def test_package_has_its_files(name: str) -> None:
    needed = ["README.md", "CHANGELOG.md", "LICENSE", "tests"]
    needed += [f"src/{module_of(name)}/{file}" for file in ("__init__.py", "_version.py", "py.typed")]
    if name in ALGORITHMS:
        needed += [f"src/{module_of(name)}/{file}" for file in ("api.py", "_tile.py", "_torch.py", "reference.py")]
    missing = [path for path in needed if not (folder_of(name) / path).exists()]
    assert not missing


@every_package
def test_package_has_tests(name: str) -> None:
    assert list((folder_of(name) / "tests").glob("test_*.py"))


@every_package
def test_source_holds_one_module(name: str) -> None:
    inside = {path.name for path in (folder_of(name) / "src").iterdir() if not path.name.endswith(".egg-info")}
    assert inside == {module_of(name)}


@every_package
def test_licence_is_the_repositorys(name: str) -> None:
    assert (folder_of(name) / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


# Metadata


@every_package
def test_metadata_agrees(name: str) -> None:
    project, model = project_of(name), project_of(CORE)
    assert project["name"] == name
    for field in ("requires-python", "license", "license-files", "authors", "classifiers", "readme"):
        assert project[field] == model[field], field
    assert project["license"] == "MIT"
    assert project["license-files"] == ["LICENSE"]
    content = content_of(name)
    assert content["build-system"] == content_of(CORE)["build-system"]
    assert content["dependency-groups"]["test"]


@every_package
def test_urls_point_at_the_package(name: str) -> None:
    at = folder_of(name).relative_to(ROOT).as_posix()
    assert project_of(name)["urls"] == {
        "Homepage": REPOSITORY,
        "Source": f"{REPOSITORY}/tree/main/{at}",
        "Changelog": f"{REPOSITORY}/blob/main/{at}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


@every_package
def test_package_holds_no_tool_settings(name: str) -> None:
    # Settings of pytest, ruff or mypy here would take this folder out of the root's settings.
    assert set(content_of(name)["tool"]) == {"hatch"}


@every_package
def test_version_is_what_the_build_and_the_module_say(name: str) -> None:
    version = version_of(name)
    assert str(Version(version)) == version
    assert importlib.import_module(module_of(name)).__version__ == version
    assert project_of(name)["dynamic"] == ["version"]
    assert content_of(name)["tool"]["hatch"]["version"] == {"path": f"src/{module_of(name)}/_version.py"}


@every_package
def test_changelog_starts_with_the_version(name: str) -> None:
    headings = re.findall(r"^## (\S+)", (folder_of(name) / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version_of(name)


@every_package
def test_ranges_admit_the_siblings_in_this_tree(name: str) -> None:
    for requirement in requirements_of(name):
        if requirement.name in NAMES:
            operators = {specifier.operator for specifier in requirement.specifier}
            assert operators == {">=", "<"}, f"{requirement} is no range"
            version = version_of(requirement.name)
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement} excludes {version}"


@every_package
def test_what_comes_from_elsewhere_has_a_floor_and_no_cap(name: str) -> None:
    for requirement in requirements_of(name):
        if requirement.name not in NAMES:
            assert {specifier.operator for specifier in requirement.specifier} == {">="}, str(requirement)
        if requirement.name == "triton":
            assert requirement.marker is not None
            assert not requirement.marker.evaluate({"platform_system": "Darwin"})
            assert not requirement.marker.evaluate({"platform_system": "Windows"})


def test_who_depends_on_whom() -> None:
    siblings = {name: {line.name for line in requirements_of(name)} & set(NAMES) for name in NAMES}
    assert siblings[CORE] == set()
    assert siblings[META] == {CORE, *ALGORITHMS}
    for name in ALGORITHMS:
        assert CORE in siblings[name]
        assert META not in siblings[name]


def test_python_versions_agree() -> None:
    project, settings = project_of(CORE), load(ROOT / "pyproject.toml")["tool"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    supported = SpecifierSet(project["requires-python"])
    lowest = min(classifiers, key=Version)
    assert all(version in supported for version in classifiers)
    assert project["requires-python"] == f">={lowest}"
    assert settings["ruff"]["target-version"] == f"py{lowest.replace('.', '')}"
    assert settings["mypy"]["python_version"] == lowest
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"3\.\d+", matrix) == classifiers


# The tree


def test_root_holds_tool_settings_only() -> None:
    assert set(load(ROOT / "pyproject.toml")) == {"tool"}


def test_pythonpath_lists_every_source() -> None:
    listed = load(ROOT / "pyproject.toml")["tool"]["pytest"]["ini_options"]["pythonpath"]
    sources = {(folder / "src").relative_to(ROOT).as_posix() for folder in FOLDERS}
    assert len(listed) == len(set(listed))
    assert set(listed) - {"."} == sources


@every_package
def test_readme_names_the_package(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", readme)


def test_options_are_added_in_the_root_only() -> None:
    groups = ("benchmarks", "docs", "packages", "shared", "tests")
    files = [file for group in groups for file in (ROOT / group).rglob("conftest.py")]
    adding = [file for file in files if "pytest_addoption" in file.read_text(encoding="utf-8")]
    assert not adding


# Imports


def imported_modules(file: Path) -> Iterator[str]:
    """The top-level names of all absolute imports in a file, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@every_package
def test_package_imports_only_siblings_it_depends_on(name: str) -> None:
    # For core, which depends on no sibling: it imports no algorithm.
    allowed = {module_of(name)} | {module_of(requirement.name) for requirement in requirements_of(name)}
    strangers = {module_of(other) for other in NAMES} - allowed
    found = {
        f"{file.relative_to(ROOT)}: {module}"
        for file in source_of(name).rglob("*.py")
        for module in imported_modules(file)
        if module in strangers
    }
    assert not found


IMPORT_WITHOUT_TRITON = """
import importlib.abc, sys
import torch

class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "triton":
            # torch may ask, and takes no for an answer; our own code must not even ask.
            frame = sys._getframe(1)
            while "importlib" in frame.f_globals.get("__name__", ""):
                frame = frame.f_back
            asking.append(frame.f_globals.get("__name__", ""))
            raise ModuleNotFoundError(f"no {fullname} here", name=fullname)

def probe(*args, **kwargs):
    raise AssertionError("the import looked at a device")

asking = []
for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
    del sys.modules[name]
sys.meta_path.insert(0, NoTriton())
is_initialized = torch.cuda.is_initialized
for name in ("init", "is_available", "device_count", "current_device", "get_device_properties", "current_stream"):
    setattr(torch.cuda, name, probe)

import MODULE

asking = [name for name in asking if name.startswith("rl_triton")]
assert not asking, f"triton is imported by {asking}"
assert not is_initialized(), "CUDA is initialised"
for name in MODULE.__all__:
    getattr(MODULE, name)
"""


@every_package
def test_import_needs_neither_triton_nor_a_device(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / "src") for folder in FOLDERS)}
    environment.pop("TRITON_INTERPRET", None)
    code = IMPORT_WITHOUT_TRITON.replace("MODULE", module_of(name))
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Public names


@every_package
def test_package_has_public_names(name: str) -> None:
    assert public_names(name)


def test_meta_package_exports_the_union() -> None:
    meta = importlib.import_module(module_of(META))
    assert public_names(META) == {public for _, public in PUBLIC_NAMES}
    for module, public in PUBLIC_NAMES:
        assert getattr(meta, public) is getattr(importlib.import_module(module), public)


@every_public_name
def test_public_name_is_documented(module: str, public: str) -> None:
    value = getattr(importlib.import_module(module), public)
    text = inspect.getdoc(value) or ""
    assert text
    if inspect.isfunction(value):
        missing = [heading for heading in ("Args", "Returns", "Raises") if f"\n{heading}:\n" not in text]
        assert not missing
        arguments = "\n" + text.partition("\nArgs:\n")[2].partition("\nReturns:\n")[0]
        unexplained = [name for name in inspect.signature(value).parameters if f"\n    {name}: " not in arguments]
        assert not unexplained


@every_public_name
def test_example_in_the_docstring_runs(module: str, public: str) -> None:
    value = getattr(importlib.import_module(module), public)
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    for example in doctest.DocTestFinder().find(value, public, globs={}):
        runner.run(example, out=report.write)
    assert runner.failures == 0, report.getvalue()
    if inspect.isfunction(value):
        assert runner.tries > 0, "a function has an example"
