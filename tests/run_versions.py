# SPDX-License-Identifier: Apache-2.0
"""Runs the test suite in fresh virtual environments with the oldest and the newest supported versions.

    python tests/run_versions.py --python python3.11
    python tests/run_versions.py --only oldest --python python3.10 --torch 2.6.0 -- -x -n 2

Oldest: transformers 5.4.0 and what pip chooses to go with it. Newest: the pins of constraints.txt. What stands after
"--" goes to pytest. Prints one line for each environment; the exit status is 1 if one of them fails.
"""

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_TRANSFORMERS = "5.4.0"
SHOWN = ("torch", "transformers", "tokenizers", "huggingface_hub")


def pins() -> dict[str, str]:
    """name -> version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", maxsplit=1) for line in lines if re.match(r"[\w.-]+==", line))


def requirements() -> list[str]:
    """What the package and its tests need. Installed by name, so that nothing is built inside of the repository."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = config["options"]["install_requires"] + "\n" + config["options.extras_require"]["test"]
    return [line.strip() for line in lists.splitlines() if line.strip()]


def run_suite(name: str, constraints: dict[str, str], python: str, folder: Path, arguments: list[str]) -> bool:
    """Makes the environment, runs pytest in it, prints the line; whether all passed."""
    started = time.monotonic()
    home = folder / name
    subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
    binaries = home / ("Scripts" if sys.platform == "win32" else "bin")
    interpreter = str(binaries / "python")
    constraints_file = folder / f"{name}.txt"
    constraints_file.write_text("".join(f"{package}=={version}\n" for package, version in constraints.items()))
    install = [interpreter, "-m", "pip", "install", "--quiet", "-c", str(constraints_file), *requirements()]
    installed = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if installed.returncode:
        print("\n".join(installed.stdout.splitlines()[-10:]), file=sys.stderr)
        print(f"{name}: pip could not install it, {time.monotonic() - started:.0f} s", flush=True)
        return False

    ask = "import platform, sys; from importlib.metadata import version as of; "
    ask += "print(platform.python_version(), *map(of, sys.argv[1:]))"
    shown = subprocess.run([interpreter, "-c", ask, *SHOWN], check=True, capture_output=True, text=True).stdout.split()
    versions = ", ".join(f"{package} {version}" for package, version in zip(("Python", *SHOWN), shown, strict=True))
    command = [interpreter, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *arguments]
    # For the tests that start a process of their own.
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    tests = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = tests.stdout.strip().splitlines() or ["no output"]
    if tests.returncode:
        print("\n".join(lines[-40:]), file=sys.stderr)
    print(f"{name}: {versions}: {lines[-1].strip('= ')}, {time.monotonic() - started:.0f} s in all", flush=True)
    return tests.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the environments stay; default: a temporary one")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    parser.add_argument("--torch", default=pins()["torch"], help="for the oldest environment (default: %(default)s)")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one of the two")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    suites = {"oldest": {"transformers": OLDEST_TRANSFORMERS, "torch": options.torch}, "newest": pins()}
    names = [options.only] if options.only else [*suites]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        passed = [run_suite(name, suites[name], options.python, folder, options.pytest) for name in names]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
