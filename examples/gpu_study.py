# SPDX-License-Identifier: Apache-2.0
"""Check and measure everything that this package claims about GPUs, and tune its kernels for your GPU.

    # one GPU, nine minutes; run the same command again to resume
    python examples/gpu_study.py --output_dir study
    # every stage with tiny shapes on a CPU, under a minute; Triton's interpreter runs the kernels
    python examples/gpu_study.py --output_dir tried --dry_run

Stages, each in a process with its own time limit: `machine` (rate of matrix products), `correctness` (every backend against
float64), `times` (attention and whole models compared with transformers, BERT, ModernBERT, and disentangled-flash and
flashdeberta if installed), `lengths` (padded, unpadded and packed texts of real lengths), `tuning` (launch parameters of
the kernels), `training` (run_mlm.py, run_rtd.py, and masked language modeling by transformers' classes), `tests` (the tests
marked gpu).

Each result is immediately appended to results.jsonl. After each stage, report.md, CSV files and figures are rewritten, and
also triton_launches.py: importing this file sets the measured launch parameters. The name of each case of `times` and
`lengths` consists of the flags of benchmark_attention.py that repeat the measurement. The exit status is 1 if anything
failed or was stopped. Needs Linux and about 40 GB of GPU memory; on smaller GPUs, the largest cases report that they do not
fit.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "benchmarks"))
# Shares of the time limit; unused time goes to the other stages.
STAGES = dict(machine=0.5, correctness=3, times=4, lengths=1, tuning=3, training=2, tests=3)
# Packages are imported once, for all processes.
FORK = multiprocessing.get_context("fork")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("study"), help="output folder; an earlier study is resumed")
    parser.add_argument("--minutes", type=float, default=9, help="time limit in minutes of all stages together (default: 9)")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=list(STAGES), help="stages to run (default: all, in this order)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=max(1, min(14, (os.cpu_count() or 1) - 2)),
        help="number of processes that compile kernels",
    )
    parser.add_argument("--dry_run", action="store_true", help="run every stage with tiny shapes on a CPU")
    args = parser.parse_args(argv)
    if not args.minutes > 0:
        parser.error(f"--minutes must be positive, got {args.minutes}")
    args.device, args.results = "cuda", args.output_dir / "results.jsonl"
    if args.dry_run:
        args.device = "cpu"
        # Compiling takes longer than everything else.
        os.environ |= {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        args.jobs = 1
    # CUDA does not survive a fork, so torch asks NVML whether there is a device.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import gpu_stages

    device = "CPU, dry run"
    if not args.dry_run:
        child = FORK.Process(target=gpu_stages.torch.zeros, args=(1,), kwargs=dict(device="cuda"))
        child.start()
        child.join()
        if child.exitcode:
            parser.error("torch finds no CUDA device; use --dry_run to try every stage on a CPU")
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        device = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    name_file = args.output_dir / "device.txt"
    if name_file.is_file() and name_file.read_text(encoding="utf-8") != device:
        parser.error(f"{args.output_dir} holds results of a device other than {device}: choose another --output_dir")
    name_file.write_text(device, encoding="utf-8")
    with args.results.open("a", encoding="utf-8") as file:
        # End the last line, which a stopped run may have truncated.
        file.write("\n")
    # Exiting by an exception also ends the process of the current stage.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    problems, end = [], time.monotonic() + 60 * args.minutes
    for place, name in enumerate(args.stages):
        left = sum(STAGES[later] for later in args.stages[place:])
        problems += run_stage(name, max(1.0, end - time.monotonic()) * STAGES[name] / left, args)
        try:
            write_report(args, problems)
        except Exception:
            traceback.print_exc()
            problems.append("report: not written")
    for problem in problems:
        print(f"gpu_study: {problem}", file=sys.stderr)
    print(f"{args.output_dir / 'report.md'} has the tables.")
    return 1 if problems else 0


def note(results: Path, **line):
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def latest(results: Path, offset: int = 0) -> dict[tuple[str, str], dict]:
    """Return the last line of each case, by (stage, case), after `offset` bytes; a truncated line is skipped."""
    lines = {}
    with results.open(encoding="utf-8") as file:
        file.seek(offset)
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            lines[line["stage"], line["case"]] = line
    return lines


def work(name: str, cases: list[str], args: argparse.Namespace):
    """Run the cases of a stage; append a line to the results when a case starts, and when it ends or fails."""
    import gpu_stages

    # One signal ends this process and all its child processes.
    os.setsid()
    with (args.output_dir / f"{name}.log").open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    stage = gpu_stages.STAGES[name]
    if stage.warm_up:
        shares = [cases[job :: args.jobs] for job in range(args.jobs)]
        children = [FORK.Process(target=warm_up, args=(name, share, args)) for share in shares]
        for child in children:
            child.start()
        for child in children:
            child.join()
    for case in cases:
        note(args.results, stage=name, case=case, state="began")
        began = time.monotonic()
        try:
            rows = stage.run(case, args)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            note(args.results, stage=name, case=case, state="failed", error=reason)
            if gpu_stages.FATAL.search(reason):
                # The process cannot be used any more.
                os._exit(1)
        else:
            seconds = round(time.monotonic() - began, 1)
            note(args.results, stage=name, case=case, state="done", seconds=seconds, rows=rows)


def warm_up(name: str, cases: list[str], args: argparse.Namespace):
    import gpu_stages

    for case in cases:
        try:
            gpu_stages.STAGES[name].run(case, args, warm_up=True)
        except Exception:
            # The case itself reports this error.
            traceback.print_exc()


def run_stage(name: str, limit: float, args: argparse.Namespace) -> list[str]:
    """Run the missing cases of a stage, for at most `limit` seconds; return a line for each problem."""
    import gpu_stages

    deadline, offset, before = time.monotonic() + limit, args.results.stat().st_size, latest(args.results)
    missing = [case for case in gpu_stages.STAGES[name].cases(args) if before.get((name, case), {}).get("state") != "done"]
    # Cases that failed or were stopped before come last.
    missing.sort(key=lambda case: (name, case) in before)
    print(f"{name}: {len(missing)} cases to run, time limit {limit:.0f} s", flush=True)
    problems = []
    while missing:
        child = FORK.Process(target=work, args=(name, missing, args))
        child.start()
        try:
            child.join(max(0.1, deadline - time.monotonic()))
        finally:
            cut = child.is_alive()
            # This also ends the children of a process that crashed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.join()
        tried = latest(args.results, offset)
        reason = f"its process ended with status {child.exitcode}"
        if cut:
            reason = f"stopped at the limit of {limit:.0f} s"
        for case in missing:
            if tried.get((name, case), {}).get("state") == "began":
                note(args.results, stage=name, case=case, state="failed", error=reason)
        left = [case for case in missing if (name, case) not in tried]
        if left and (cut or left == missing):
            problems.append(f"{name}: {reason}, {len(left)} cases are missing; run the same command to resume")
            break
        missing = left
    lines = latest(args.results).values()
    failed = [line for line in lines if line["state"] == "failed" and line["stage"] == name]
    return problems + [f"{name}: {line['case']}: {line['error']}" for line in failed]


def write_report(args: argparse.Namespace, problems: list[str]):
    """Write report.md, a CSV file for each stage, figures, and triton_launches.py, from all results in results.jsonl."""
    from measuring import CELLS, draw_sides, markdown_table, sides_table, write_csv

    from hf_deberta_ext.analysis.plots import plot_curves

    rows = {name: [] for name in STAGES}
    for (name, case), line in latest(args.results).items():
        rows[name] += [{"case": case} | row for row in line.get("rows", ())]
    for name in filter(rows.get, rows):
        write_csv(args.output_dir / f"{name}.csv", rows[name])
    peak = {row["dtype"]: row["tflops"] for row in rows["machine"]}
    for row in rows["times"] + rows["lengths"]:
        if row.get("tflops") and row["dtype"] in peak:
            row["share"] = row["tflops"] / peak[row["dtype"]]
    parts = ["# GPU"]
    for row in rows["machine"][:1]:
        parts = [f"# {row['device']}", row["versions"]]
    peaks = ", ".join(f"{rate:.3g} TFLOP/s ({dtype})" for dtype, rate in peak.items())
    parts.append(f"The peak was measured with products of large matrices: {peaks}.")
    if problems:
        parts += ["## Failed or missing", "\n".join(f"- {problem}" for problem in problems)]
    checked = [row for row in rows["correctness"] if "backend" in row]
    if checked:
        cells = [("case", "tokens", "backend", "output", "gradients", "as exact as eager")]
        for row in checked:
            worst = max(value for name, value in row.items() if name[1:] in ("_c", "_r"))
            verdict = {True: "yes", False: "**no**"}.get(row.get("ok"), "")
            cells.append((row["case"], str(row["N"]), row["backend"], f"{row['out']:.1e}", f"{worst:.1e}", verdict))
        parts += ["## Error of the worst row against float64", markdown_table(*cells)]
    groups: dict[str, list[dict]] = {}
    for row in rows["times"]:
        title = f"{row['part']}, {row['mode']}, {row['dtype']}"
        if row["compiled"]:
            title += ", torch.compile"
        groups.setdefault(title, []).append(row)
    for row in rows["lengths"]:
        row["shape"] = Path(row["case"].split()[3]).stem.removeprefix("lengths_")
        groups.setdefault(f"texts of real lengths, {row['mode']}, {row['dtype']}", []).append(row)
    parts += [CELLS] * bool(groups)
    for title, group in groups.items():
        parts += [f"## {title}", sides_table(group)]
    if rows["tuning"]:
        parts += ["## Launch parameters: block, warps, stages of the far and the near loops"]
        parts += [write_launches(rows["tuning"], args.output_dir)]
    if rows["training"]:
        cells = [("run", "tokens/s", "last loss", "peak MiB")]
        for row in rows["training"]:
            memory = f"{row['peak_bytes'] / 2**20:,.0f}"
            cells.append((row["run"], f"{row['tokens_per_second']:,.0f}", f"{row['last_loss']:.3f}", memory))
        curves = {row["run"]: row["curve"] for row in rows["training"]}
        plot_curves(curves, args.output_dir / "training.png")
        parts += ["## Training", markdown_table(*cells), "![Losses](training.png)"]
    for row in rows["correctness"] + rows["tests"]:
        if "outcome" in row:
            parts.append(f"`pytest {row['case']}`: {row['outcome']}")
    times = [row for row in rows["times"] if row["dtype"] == rows["times"][0]["dtype"] and not row["compiled"]]
    figures = (("time", "seconds", "seconds"), ("share", "share", "share of the peak"), ("memory", "extra_bytes", "bytes"))
    for name, key, label in figures:
        if draw_sides(times, key, label, args.output_dir / f"{name}.png"):
            parts.append(f"![{label}]({name}.png)")
    (args.output_dir / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def write_launches(rows: list[dict], folder: Path) -> str:
    """Write triton_launches.py, which sets the fastest parameters of each kernel and length; return them as a table."""
    from gpu_stages import triton_launches
    from measuring import markdown_table

    cells = [("kernel", "head size", "tokens", "now", "fastest", "time of fastest / now")]
    lines = ["from hf_deberta_ext.kernels.triton_launches import LAUNCHES, Launch", ""]
    for kernel, d in dict.fromkeys((row["kernel"], row["d"]) for row in rows):
        of_kernel = [row for row in rows if (row["kernel"], row["d"]) == (kernel, d)]
        lengths, entries = sorted({row["N"] for row in of_kernel}), []
        for N in lengths:
            of_length = [row for row in of_kernel if row["N"] == N]
            fastest = min(of_length, key=lambda row: row["seconds"] / row["seconds_of_table"])
            ratio, launch = fastest["seconds"] / fastest["seconds_of_table"], fastest["launch"]
            if ratio >= 0.98:
                launch = fastest["usual"]
            entries.append((fastest["capability"], N, triton_launches.Launch(*launch)))
            cells.append((kernel, str(d), str(N), str(fastest["usual"]), str(launch), f"{min(ratio, 1):.2f}"))
        # The parameters of the greatest length are used for all longer inputs.
        entries.append((entries[-1][0], None, entries[-1][2]))
        entries += [entry for entry in triton_launches.LAUNCHES[kernel, "half", d] if entry[0] != entries[0][0]]
        entries.sort(key=lambda entry: -entry[0])
        lines.append(f"LAUNCHES[{(kernel, 'half', d)!r}] = {entries!r}")
    (folder / "triton_launches.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return markdown_table(*cells)


if __name__ == "__main__":
    sys.exit(main())
