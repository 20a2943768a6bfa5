"""The command line of the proof: `python -m proof`."""

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Prove the conformance suite: that it notices faulty servers and clients, and passes those that conform.
Run it in the root of the repository. `make proof` runs flakiness, servers, clients and traceability, in this order."""

EXAMPLES = """\
examples:
  python -m proof servers                          every faulty server: some minutes; writes docs/proof/faulty-servers.md
  python -m proof servers wrong_crc                one of them; writes nothing
  python -m proof servers --merge wrong_crc        one of them, and the page from it and the results of the last run
  python -m proof clients SendsNoCursor            one faulty client; writes nothing
  python -m proof flakiness 3                      the suite against the reference server, three times idle, three busy
  python -m proof traceability                     after a new check, scenario, faulty server or client: seconds
  python -m proof traceability --check             write nothing; exit with 1 if the written files are outdated"""


def main() -> int:
    """Run one of the programs."""
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, whom in (("servers", "server"), ("clients", "client")):
        text = f"run the suite against faulty {name}, and write docs/proof/faulty-{name}.md"
        matrix = commands.add_parser(name, help=text, description=text)
        matrix.add_argument(
            "names", nargs="*", metavar="NAME", help=f"a faulty {whom}; all of them by default"
        )
        matrix.add_argument("--at-once", type=int, default=6, help=f"{name} to judge at a time (%(default)s)")
        how = matrix.add_mutually_exclusive_group()
        how.add_argument(
            "--merge",
            action="store_true",
            help="update the results of the last run, and write the page of all",
        )
        how.add_argument(
            "--page", action="store_true", help="run nothing; write the page from the results of the last run"
        )
        how.add_argument("--list", action="store_true", help="list the names and exit")
    text = "run the suite many times against the reference server, on an idle machine and on a busy one"
    flaky = commands.add_parser("flakiness", help=text, description=text)
    flaky.add_argument("times", nargs="?", type=int, default=20, help="runs of each half (%(default)s)")
    text = "write traceability.json of the suite and docs/proof/requirements.md"
    trace = commands.add_parser("traceability", help=text, description=text)
    trace.add_argument("--check", action="store_true", help="write nothing; exit with 1 if they are outdated")
    text = (
        "draw faulty servers and clients, and write their reports for somebody who does not know the faults"
    )
    blind = commands.add_parser("blind-reading", help=text, description=text)
    blind.add_argument("--out", type=Path, required=True, help="the folder of the reports")
    blind.add_argument("--key", type=Path, required=True, help="the file of the names")
    blind.add_argument("--seed", type=int, help="of the draw; drawn by default")
    blind.add_argument("--servers", type=int, default=12, help="faulty servers to draw (%(default)s)")
    blind.add_argument("--clients", type=int, default=8, help="faulty clients to draw (%(default)s)")
    return run(parser.parse_args())


def run(options: argparse.Namespace) -> int:
    """Import only the chosen program: the others would load the reference server for nothing."""
    match options.command:
        case "servers":
            from proof import server_kill_matrix as matrix

            if options.list:
                print(*matrix.FAULTY_SERVERS, sep="\n")
                return 0
            how = {"at_once": options.at_once, "merge": options.merge, "only_page": options.page}
            return matrix.main(options.names, **how)
        case "clients":
            from proof import client_kill_matrix

            if options.list:
                print(*client_kill_matrix.CLIENTS, sep="\n")
                return 0
            how = {"at_once": options.at_once, "merge": options.merge, "only_page": options.page}
            return client_kill_matrix.main(options.names, **how)
        case "flakiness":
            from proof import flakiness

            return flakiness.main(options.times)
        case "traceability":
            from proof import traceability

            return traceability.main(check=options.check)
        case _:
            from proof import blind_reading

            counts = {"servers": options.servers, "clients": options.clients}
            return blind_reading.main(options.out, options.key, seed=options.seed, **counts)


if __name__ == "__main__":
    sys.exit(main())
