# SPDX-License-Identifier: Apache-2.0
"""Publishes a trained model on the Hub: weights, configuration, code, tokenizer and card in one commit.

    python examples/push_to_hub.py runs/sst2 me/deberta-sst2 --private --tag v1.0

needs a token that may write (`hf auth login`, HF_TOKEN or --token). The output folder of a script may be given as it is:
checkpoints, logs and the flags of the run stay where they are. Before anything is sent, the folder is looked through: is
all code there, does every Auto class load in a process without this package, is there no token and no path of this machine
in a text file, is the card valid. What would be sent, without the internet too:

    python examples/quickstart.py --short
    python examples/push_to_hub.py quickstart_output me/docstrings --dry_run

The same as `deberta-ext push`; in Python, `hf_deberta_ext.publishing.push(folder_or_model, repo_id, ...)`.
"""

import argparse
import sys

from hf_deberta_ext.commands import push
from hf_deberta_ext.training.user_errors import ExitOnUserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    push.add_arguments(parser)
    with ExitOnUserError(expected=(OSError, TypeError, ValueError)):
        return push.run(parser.parse_args()) or 0


if __name__ == "__main__":
    sys.exit(main())
