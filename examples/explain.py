# SPDX-License-Identifier: Apache-2.0
"""Draws what a model makes of a text; the same as `deberta-ext explain`.

    python examples/explain.py --model wiki --text "a new store opened beside the new mall" --output_dir figures
    python examples/explain.py --model wiki --attention --layer 1 --head 3 --formats png svg
    python examples/explain.py --curves runs/first runs/second --output_dir figures

A figure for each flag (--attention, --position_profile, --replacement_probabilities, --embedding_similarity, --curves),
or without one all that the model can give, and explain.json with their numbers. --model is any DeBERTa checkpoint, a folder
or a repository. Seconds on one core for a model of 7 million parameters.
"""

import argparse
import sys

from transformers.utils import logging

from hf_deberta_ext.commands import explain
from hf_deberta_ext.training.user_errors import ExitOnUserError


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    explain.add_arguments(parser)
    arguments = parser.parse_args(argv)
    # Every checkpoint is loaded with all heads that a figure could need, of which most lack some.
    logging.set_verbosity_error()
    with ExitOnUserError(expected=(ValueError, TypeError, OSError, ImportError)):
        return explain.run(arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
