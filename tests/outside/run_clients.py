# SPDX-License-Identifier: Apache-2.0
"""Run other packages on our models, each in its own virtual environment from the package registry, and print a table.

    python tests/outside/run_clients.py
    python tests/outside/run_clients.py --clients gliner trl --output clients.json
    python tests/outside/run_clients.py --clients examples --examples transformers/examples/pytorch
    python tests/outside/run_clients.py --clients peft --environment .venv

Every journey (tests/support/client_journeys.py) runs with our models and, as a control, with transformers' model with the
same weights. A failure in both is not caused by this package. A failure or difference in ours only is our fault (exit
status 1), or a limit that examples/guides/clients.md explains. Models and tokenizer are tiny and are made here. pip chooses
all versions except torch's, which is in constraints.txt.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import client_journeys  # noqa: E402
from client_journeys import CLIENTS, make_models  # noqa: E402
from run_versions import interpreter, make_environment, pins, table, versions_of  # noqa: E402

HEADER = ("client", "version", "transformers", "what was done", "works", "message")
# Installed together with the package's wheel; the package's code is imported from the checkout.
OWN_REQUIREMENTS = ("torch", "sentencepiece", "protobuf")


def run_journey(python: str, client: str, number: int, models: Path, examples: Path | None) -> dict[str, dict]:
    """Return the results of a journey and, if it ran, of its control, in a new process."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    variables |= {"TRANSFORMERS_EXAMPLES": str(examples.resolve())} if examples else {}
    if CLIENTS[client][1][number].package:
        variables["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        variables |= {"HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/home", "TMPDIR": folder}
        script, result = client_journeys.__file__, Path(folder) / "result.json"
        command = list(map(str, (python, script, client, number, models, result)))
        options = dict(cwd=folder, env=variables, stdin=subprocess.DEVNULL, text=True, timeout=500)
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        except subprocess.TimeoutExpired:
            return {"ours": {"error": "no result after 500 seconds"}}
        if result.exists():
            answers = json.loads(result.read_text())
        else:
            answers = {"ours": {"error": f"exit status {done.returncode}"}}
        if "error" in answers["ours"]:
            print("\n".join(done.stdout.splitlines()[-50:]), file=sys.stderr)
        return answers


def difference(ours, control) -> float:
    """Return the largest difference of two nested lists of numbers and words; infinite if words or lengths differ."""
    if isinstance(ours, list) and isinstance(control, list) and len(ours) == len(control):
        return max(map(difference, ours, control), default=0.0)
    if isinstance(ours, float) and isinstance(control, float):
        return abs(ours - control) / max(1.0, abs(control)) if math.isfinite(ours) else math.inf
    return 0.0 if ours == control else math.inf


def verdict(ours: dict, control: dict | None = None, known: str | None = None) -> tuple[str, str]:
    """Return ("yes" or "no: " and who is at fault, message)."""
    if "error" in ours:
        if known and known in ours["error"]:
            return "no: known", ours["error"]
        if control and "error" in control:
            return "no: client", f"{ours['error']} (control: {control['error']})"
        return "no: ours", ours["error"]
    if control is None:
        return "yes", ""
    if "error" in control:
        return "yes", f"the control fails: {control['error']}"
    largest = difference(ours["values"], control["values"])
    return ("yes" if largest < 1e-3 else "no: ours"), f"largest difference from the control {largest:.1e}"


def run_client(name: str, python: str, models: Path, examples: Path | None) -> list[tuple[str, ...]]:
    requirements, journeys = CLIENTS[name]
    (_, *versions), rows = versions_of(python, (requirements[0].split("[")[0], "transformers")), []
    for number, journey in enumerate(journeys):
        if name == "examples" and examples is None:
            answer = "not run", "transformers' examples are needed: pass --examples FOLDER"
        else:
            answer = verdict(**run_journey(python, name, number, models, examples), known=journey.known)
        rows.append((name, *versions, journey.title, *answer))
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS), metavar="NAME", help=" ".join(CLIENTS)
    )
    parser.add_argument("--output", type=Path, help=".json file to write the rows to")
    parser.add_argument("--examples", type=Path, help="folder examples/pytorch of a clone of transformers")
    parser.add_argument("--environment", type=Path, help="existing environment for all clients; installs nothing")
    parser.add_argument("--python", default=sys.executable, help="Python interpreter of the environments")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder to keep environments and models in")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        make_models(folder / "models")
        for name in options.clients:
            home = options.environment
            if home is None:
                packages = [*CLIENTS[name][0], *OWN_REQUIREMENTS]
                try:
                    home = make_environment(name, {"torch": pins()["torch"]}, options.python, folder, packages)
                except subprocess.CalledProcessError:
                    rows.append((name, "", "", "installation", "no: client", "pip failed"))
                    continue
                # transformers imports torchvision if it is installed; the registry's does not load with torch's CPU build.
                subprocess.run([interpreter(home), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
            rows += run_client(name, interpreter(home.expanduser()), folder / "models", options.examples)
            if not (options.environment or options.keep):
                shutil.rmtree(home)
    print(table([HEADER, *rows]))
    if options.output:
        named = [dict(zip(HEADER, row, strict=True)) for row in rows]
        options.output.write_text(json.dumps(named, indent=1), encoding="utf-8")
    return 1 if any(row[4] == "no: ours" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
