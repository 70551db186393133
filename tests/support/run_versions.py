# SPDX-License-Identifier: Apache-2.0
"""Run the tests with the oldest and the newest supported versions, each in a virtual environment, and print a table.

    python tests/support/run_versions.py --python python3.11
    python tests/support/run_versions.py --only oldest --python python3.10 --torch 2.6.0 --mixins -- -x -n 2
    python tests/support/run_versions.py --only newest --torch 2.14.1 -- -n 2

Oldest: transformers 5.4.0 and compatible packages, resolved by pip. Newest: the pins of constraints.txt. Latest: resolved
by pip. Oldest and newest use the torch of constraints.txt or `--torch`. `--mixins` also runs transformers' own model tests
(tests/outside). Arguments after "--" are passed to pytest. The exit status is 1 if something fails in an environment.
"""

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST_TRANSFORMERS = "5.4.0"
SHOWN = ("torch", "transformers", "tokenizers", "huggingface_hub")
HEADER = ("environment", "Python", *SHOWN, "tests", "result")


def pins() -> dict[str, str]:
    """Return name -> version of the pins in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", maxsplit=1) for line in lines if re.match(r"[\w.-]+==", line))


def requirements() -> list[str]:
    """Return the requirements of the package and its tests, by name: nothing is built inside the repository."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = config["options"]["install_requires"] + "\n" + config["options.extras_require"]["test"]
    return [line.strip() for line in lists.splitlines() if line.strip()]


def what_to_install(name: str, torch: str) -> tuple[dict[str, str], list[str]]:
    """Return the constraints and requirements of the oldest, newest or latest environment."""
    if name == "latest":
        return {}, requirements()
    constraints, packages = pins(), requirements()
    if name == "oldest":
        # Each version of torch requires one version of triton.
        constraints = {"transformers": OLDEST_TRANSFORMERS, "triton": constraints["triton"]}
    if torch != pins()["torch"]:
        # A CUDA build of torch requires one version of triton; before torch 2.8 it is older than the version in setup.cfg.
        constraints.pop("triton", None)
        packages = [re.sub(r"^triton[^;]*", "triton", line) for line in packages]
    return constraints | {"torch": torch}, packages


def interpreter(home: Path) -> str:
    return str(home / "Scripts" / "python.exe" if sys.platform == "win32" else home / "bin" / "python")


def make_environment(name: str, constraints: dict[str, str], python: str, folder: Path, packages: list[str]) -> Path:
    """Create a virtual environment with these packages.

    Raises:
        subprocess.CalledProcessError: if pip cannot install them; its last lines are printed.
    """
    home = folder / name
    subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
    constraints_file = folder / f"{name}.txt"
    constraints_file.write_text("".join(f"{package}=={version}\n" for package, version in constraints.items()))
    install = [interpreter(home), "-m", "pip", "install", "--quiet", "--no-compile", "-c", str(constraints_file), *packages]
    installed = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if installed.returncode:
        print("\n".join(installed.stdout.splitlines()[-10:]), file=sys.stderr)
    installed.check_returncode()
    return home


def versions_of(python: str, packages: tuple[str, ...] = SHOWN) -> tuple[str, ...]:
    ask = "import platform, sys; from importlib.metadata import version as of; "
    ask += "print(platform.python_version(), *map(of, sys.argv[1:]))"
    shown = subprocess.run([python, "-c", ask, *packages], check=True, capture_output=True, text=True).stdout
    return tuple(shown.split())


def run_tests(name: str, python: str, arguments: list[str], mixins: bool) -> list[tuple[str, ...]]:
    """Return rows of the table: the last line of pytest or run_transformers_mixins.py; a failure begins with "no: "."""
    commands = {"ours": ["-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *arguments]}
    if mixins:
        commands["transformers'"] = [str(ROOT / "tests/outside/run_transformers_mixins.py")]
    rows = []
    for kind, command in commands.items():
        # For tests that start their own process.
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([python, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
        lines = done.stdout.strip().splitlines() or ["no output"]
        # Libraries may print after pytest's last line, "30 passed, 1 error in 4.20s".
        result = next((line for line in reversed(lines) if re.search(r" in [\d.]+s", line)), lines[-1]).strip("= ")
        if done.returncode:
            print("\n".join(lines[-60:]), done.stderr, file=sys.stderr)
            result = f"no: {result}"
        rows.append((name, *versions_of(python), kind, result))
    return rows


def table(rows: list[tuple[str, ...]]) -> str:
    """Return the rows as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder to keep the environments in (default: a temporary folder)")
    parser.add_argument("--python", default=sys.executable, help="Python interpreter of the environments")
    parser.add_argument("--torch", default=pins()["torch"], help="version for oldest and newest (default: %(default)s)")
    parser.add_argument("--only", choices=("oldest", "newest", "latest"), help="only this one (default: oldest and newest)")
    parser.add_argument("--mixins", action="store_true", help="also run transformers' own model tests")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    rows = [HEADER]
    names = [options.only] if options.only else ["oldest", "newest"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            constraints, packages = what_to_install(name, options.torch)
            packages += ["parameterized"] if options.mixins else []
            home = make_environment(name, constraints, options.python, folder, packages)
            rows += run_tests(name, interpreter(home), options.pytest, options.mixins)
            print(table(rows), flush=True)
    return int(any(row[-1].startswith("no: ") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
