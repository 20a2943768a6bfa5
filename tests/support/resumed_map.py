"""Program that maps inputs over an endpoint with a resume file, and appends each result to a file.

python -m support.resumed_map URL INPUTS RESUME_FILE RESULTS
"""

import sys
from pathlib import Path

from tidewire import Client


def run(url: str, inputs: int, resume_file: str, results: str) -> None:
    """Write the results of one run, one line each, in place of those of the run before."""
    with Client(url) as client, Path(results).open("w", encoding="utf-8") as file:
        samples = ({"tag": tag} for tag in range(inputs))
        for value in client.map("double", samples, batch_size=7, resume_file=resume_file):
            print(value, file=file, flush=True)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
