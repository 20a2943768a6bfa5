"""Command line of the proof: `python -m proof`."""

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Test the conformance suite: it must detect faulty servers and clients, and must pass correct ones.
Run this program in the root of the repository. `make proof` runs flakiness, servers, clients, event-streams and
traceability, in this order."""

EXAMPLES = """\
examples:
  python -m proof servers                          all faulty servers; takes an hour; writes docs/proof/faulty-servers.md
  python -m proof servers wrong_crc                one faulty server; writes nothing
  python -m proof servers --merge wrong_crc        one faulty server; updates the page of the last full run
  python -m proof servers --times 5 --busy --merge wrong_crc
                                                   five runs on a busy machine; updates the page with their number
  python -m proof clients SendsNoCursor            one faulty client; writes nothing
  python -m proof flakiness 3                      the suite against the reference server, 3 times idle and 3 times busy
  python -m proof event-streams                    the profile sse; a reader whose library is missing is not run
  python -m proof traceability                     after adding a check, scenario, faulty server or client; takes seconds
  python -m proof traceability --check             write nothing; exit with 1 if the written files are outdated"""


def main() -> int:
    """Parse the command line and run the chosen program."""
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, whom in (("servers", "server"), ("clients", "client")):
        text = f"run the suite against faulty {name} and write docs/proof/faulty-{name}.md"
        matrix = commands.add_parser(name, help=text, description=text)
        matrix.add_argument(
            "names", nargs="*", metavar="NAME", help=f"name of a faulty {whom}; all by default"
        )
        matrix.add_argument(
            "--at-once",
            type=int,
            default=6,
            help=f"maximum number of {name} judged at the same time (%(default)s)",
        )
        if name == "servers":
            matrix.add_argument(
                "--times",
                type=int,
                default=1,
                metavar="N",
                help="number of runs of the suite against each server (%(default)s)",
            )
            matrix.add_argument(
                "--busy", action="store_true", help="keep every CPU core busy with an endless loop meanwhile"
            )
        how = matrix.add_mutually_exclusive_group()
        how.add_argument(
            "--merge",
            action="store_true",
            help="update the results of the last full run and write the whole page",
        )
        how.add_argument(
            "--page",
            action="store_true",
            help="judge nothing; write the page from the results of the last full run",
        )
        how.add_argument("--list", action="store_true", help="list the names and exit")
    text = "run the suite repeatedly against the reference server, on an idle machine and on a busy machine"
    flaky = commands.add_parser("flakiness", help=text, description=text)
    flaky.add_argument(
        "times",
        nargs="?",
        type=int,
        default=20,
        help="number of runs on the idle machine, and on the busy machine (%(default)s)",
    )
    text = "test the profile sse, and readers of event streams of other projects; write docs/proof/event-streams.md"
    streams = commands.add_parser("event-streams", help=text, description=text)
    streams.add_argument(
        "--python", default=sys.executable, help="Python that has the libraries of the readers (%(default)s)"
    )
    streams.add_argument(
        "--node-modules",
        type=Path,
        default=Path.cwd(),
        help="folder that contains node_modules (%(default)s)",
    )
    streams.add_argument(
        "--page",
        action="store_true",
        help="run no reader of another project; use the results of the last run",
    )
    text = "write traceability.json of the suite and docs/proof/requirements.md"
    trace = commands.add_parser("traceability", help=text, description=text)
    trace.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the files are outdated"
    )
    text = "choose random faulty servers and clients and write their reports for a reader who does not know the faults"
    blind = commands.add_parser("blind-reading", help=text, description=text)
    blind.add_argument("--out", type=Path, required=True, help="folder for the reports")
    blind.add_argument("--key", type=Path, required=True, help="file for the names of the faults")
    blind.add_argument("--seed", type=int, help="random seed; random by default")
    blind.add_argument("--servers", type=int, default=12, help="number of faulty servers (%(default)s)")
    blind.add_argument("--clients", type=int, default=8, help="number of faulty clients (%(default)s)")
    return run(parser.parse_args())


def run(options: argparse.Namespace) -> int:
    """Run the chosen program.

    Import only this program, because some programs import the reference server, which is slow.
    """
    match options.command:
        case "servers":
            from proof import server_kill_matrix

            return server_kill_matrix.main(options)
        case "clients":
            from proof import client_kill_matrix

            return client_kill_matrix.main(options)
        case "flakiness":
            from proof import flakiness

            return flakiness.main(options.times)
        case "event-streams":
            from proof.event_streams import judge_event_stream_proof

            return judge_event_stream_proof.main(options)
        case "traceability":
            from proof import traceability

            return traceability.main(check=options.check)
        case _:
            from proof import blind_reading

            counts = {"servers": options.servers, "clients": options.clients}
            return blind_reading.main(options.out, options.key, seed=options.seed, **counts)


if __name__ == "__main__":
    sys.exit(main())
