# SPDX-License-Identifier: Apache-2.0
"""Runs the Python of model cards where neither hf_deberta_ext nor triton can be imported.

    python -I card_code_worker.py jobs.json results.json

A job is {"name", "folder", "code"}; the code runs in `folder`, and its result is what it printed, or {"error": traceback}.
"""

import contextlib
import io
import json
import os
import sys
import traceback


def main():
    # None in sys.modules: importing it fails, and find_spec says that there is no such package.
    sys.modules.update(dict.fromkeys(("hf_deberta_ext", "triton")))
    import torch

    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    results = {}
    for job in jobs:
        os.chdir(job["folder"])
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(job["code"], job["name"], "exec"), {})
            results[job["name"]] = printed.getvalue()
        except Exception:
            results[job["name"]] = {"error": traceback.format_exc()}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
