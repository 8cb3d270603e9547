# SPDX-License-Identifier: Apache-2.0
"""The command line, `penstock COMMAND`; `penstock --help` has the commands.

Exit codes: 0 well, 1 an answer was wrong or a job failed, 2 the arguments or the input are wrong (one line on
standard error), 130 interrupted. Figures and results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import penstock
from penstock.errors import PenstockError, SettingError

WRONG, USAGE, INTERRUPTED = 1, 2, 130
_DIRECTORY = "as spark.penstock.environment.directory (the system's temporary folder)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(parser(), given or ["--help"])


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Do what the parser's option `run` says, of any command line that keeps to these exit codes."""
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to end also cleans up
    try:
        return run(options)
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has enough of it, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return USAGE if isinstance(error, SettingError) else WRONG


class _CommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Name the word that a wrong one is like."""
        wrong = re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message)
        like = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), n=1) if wrong else []
        super().error(f"{message}: did you mean {like[0]}?" if like else message)


def _commit() -> str:
    """The commit, where this Penstock is a checkout."""
    root = Path(penstock.__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f" (commit {ran.stdout.strip()})"


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"penstock {penstock.__version__}{_commit()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    top = _CommandParser(prog="penstock", description="A data-exchange service for PySpark pipelines.")
    top.add_argument("--version", action=_VersionAction, nargs=0, help="the version, of a checkout with its commit")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="whether Penstock can run here, and what to do where it cannot"))
    _add_preload(commands.add_parser("preload", help="once: let sessions of penstock.preloading() start sooner"))
    _add_checkpoints(commands.add_parser("checkpoints", help="the checkpoints and savepoints of streaming queries"))
    _add_queries(commands.add_parser("queries", help="streaming queries that run: list, stop, savepoint, rescale"))
    _add_logs(commands.add_parser("logs", help="show what functions printed on this host, and environments' logs"))
    _add_replay(commands.add_parser("replay", help="show a finished job out of its event log"))
    _add_show(commands.add_parser("show", help="the web page of jobs out of their event logs"))
    _add_key(commands.add_parser("key", help="make a user's key for services of several applications"))
    _add_completion(commands.add_parser("completion", help="print a script that completes these commands in a shell"))
    _add_service(commands.add_parser("service", help="run a shuffle service of Penstock's own as a process"))
    return top


def _add_service(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(title="services", required=True, metavar="NAME")
    from penstock.external import command
    from penstock.remote import command as remote_command

    external = words.add_parser("external", help=command.HELP)
    command.add_arguments(external)
    external.set_defaults(run=command.run_service, parser=external)
    remote_command.add_arguments(words.add_parser("remote", help=remote_command.HELP))


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER", help="the user's name there")
    parser.set_defaults(run=_key, parser=parser)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"], help="for example: source <(penstock completion bash)")
    parser.set_defaults(run=_completion, parser=parser)


def _add_queries(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(title="words", required=True, metavar="WORD")
    made = {
        "list": (_list_queries, "those of this user's sessions on this host"),
        "stop": (_stop_query, "end one well: what was read is processed, a last checkpoint, the sink commits"),
        "savepoint": (_save_query, "copy the state of one to a folder; it goes on"),
        "rescale": (_rescale_query, "give the stages of one another number of tasks"),
    }
    for word, (run, help_) in made.items():
        each = words.add_parser(word, help=help_)
        if word != "list":
            each.add_argument("query", metavar="QUERY", help="its name, or the begin of its id")
            seconds = "the most that it may take (120)"
            each.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help=seconds)
        session = "a copy of a session's file, which `list` names: for one of another host or user"
        each.add_argument("--session", default="", metavar="FILE", help=session)
        each.add_argument("--directory", default="", metavar="FOLDER", help=_DIRECTORY)
        each.set_defaults(run=run, parser=each)
    folder = "a folder that is not there yet: a path or URI that the driver reaches"
    words.choices["list"].add_argument("--json", action="store_true", help="as JSON")
    words.choices["stop"].add_argument("--savepoint", default="", metavar="FOLDER", help=folder)
    words.choices["savepoint"].add_argument("savepoint", metavar="FOLDER", help=folder)
    words.choices["rescale"].add_argument("tasks", type=int, metavar="N", help="tasks of each stage")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log",
        nargs="?",
        default="",
        metavar="LOG",
        help="an event log, or the folder spark.penstock.observe.eventLog",
    )
    services = (
        "instead, the processes of shuffle services: HOST:PORT of the metrics of each, with commas between them"
    )
    parser.add_argument("--services", default="", metavar="A,B", help=services)
    parser.add_argument("--html", default="", metavar="FILE", help="write one file to be sent on, and serve nothing")
    parser.add_argument("--port", type=int, default=0, help="serve at this port of the loopback, or one after it")
    parser.set_defaults(run=_show, parser=parser)


def _add_logs(parser: argparse.ArgumentParser) -> None:
    newest = "an application's name, or the beginning of its id (the newest)"
    parser.add_argument("application", nargs="?", default="", metavar="APPLICATION", help=newest)
    parser.add_argument("--job", default="", metavar="JOB", help="only of this job or query: its id or its name")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="the last lines of each file (20)")
    parser.add_argument("--directory", default="", metavar="FOLDER", help=_DIRECTORY)
    parser.add_argument("--list", action="store_true", help="the applications that there are logs of")
    parser.set_defaults(run=_logs, parser=parser)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="FILE", help="a file of the folder spark.penstock.observe.eventLog")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_replay, parser=parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default="local[2]", metavar="URL", help="the cluster to look at (local[2])")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of the session")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    parser.set_defaults(run=_doctor, parser=parser)


def _add_preload(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_preload, parser=parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(title="words", required=True, metavar="WORD")
    made = {
        "list": (_list, "a line for each checkpoint"),
        "inspect": (_inspect, "one checkpoint: positions of sources, sizes of operators, what each task did"),
        "verify": (_verify, "compare all bytes with their checksums; damage is exit code 1"),
        "delete": (_delete, "delete checkpoints, a location or a savepoint, unless a query runs there"),
    }
    for word, (run, help_) in made.items():
        each = words.add_parser(word, help=help_)
        each.add_argument("location", metavar="LOCATION", help="a checkpointLocation or savepoint: folder or URI")
        each.set_defaults(run=run, parser=each)
        if word != "delete":
            each.add_argument("--json", action="store_true", help="as JSON")
    inspect, delete = words.choices["inspect"], words.choices["delete"]
    inspect.add_argument("--checkpoint", type=int, metavar="NUMBER", help="this one (the newest)")
    inspect.add_argument("--groups", action="store_true", help="also the spread over key groups: reads all state")
    delete.add_argument("--checkpoint", type=int, metavar="NUMBER", action="append", help="only this one (all)")
    delete.add_argument("--yes", action="store_true", help="delete them, do not only say what would go")
    delete.add_argument("--force", action="store_true", help="no query runs there, though that can't be told")


def _doctor(options: argparse.Namespace) -> int:
    pairs = [text.partition("=") for text in options.conf]
    if not all(key and sign for key, sign, _ in pairs):
        options.parser.error("--conf takes KEY=VALUE")
    from penstock.doctor.command import DoctorOptions, run_doctor

    return run_doctor(DoctorOptions(options.master, {key: value for key, _, value in pairs}, options.json))


def _key(options: argparse.Namespace) -> int:
    from penstock.connection.principals import key_line

    print(key_line(options.user))
    return 0


def _completion(options: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(parser(), options.shell))
    return 0


def _list_queries(options: argparse.Namespace) -> int:
    from penstock.operating import Sessions, list_queries

    return list_queries(Sessions(options.session, options.directory), as_json=options.json)


def _stop_query(options: argparse.Namespace) -> int:
    from penstock.operating import Sessions, stop_query

    sessions = Sessions(options.session, options.directory)
    return stop_query(sessions, options.query, options.savepoint, options.timeout)


def _save_query(options: argparse.Namespace) -> int:
    from penstock.operating import Sessions, save_query

    sessions = Sessions(options.session, options.directory)
    return save_query(sessions, options.query, options.savepoint, options.timeout)


def _rescale_query(options: argparse.Namespace) -> int:
    from penstock.operating import Sessions, rescale_query

    sessions = Sessions(options.session, options.directory)
    return rescale_query(sessions, options.query, options.tasks, options.timeout)


def _logs(options: argparse.Namespace) -> int:
    from penstock.kept import list_logs, show_logs

    if options.list:
        return list_logs(options.directory)
    return show_logs(options.application, options.directory, options.job, max(1, options.lines))


def _replay(options: argparse.Namespace) -> int:
    from penstock.replaying import show_job

    return show_job(options.log, json=options.json)


def _show(options: argparse.Namespace) -> int:
    from penstock.showing import show_logs, show_services

    if options.services or not options.log:
        return show_services(options.services, port=options.port)
    return show_logs(options.log, html=options.html, port=options.port)


def _preload(_: argparse.Namespace) -> int:
    from penstock.spark.class_archive import preload

    return preload()


def _list(options: argparse.Namespace) -> int:
    from penstock.inspection.command import list_checkpoints

    return list_checkpoints(options.location, json=options.json)


def _inspect(options: argparse.Namespace) -> int:
    from penstock.inspection.command import Inspected, inspect_checkpoints

    return inspect_checkpoints(options.location, Inspected(options.checkpoint, options.groups), json=options.json)


def _verify(options: argparse.Namespace) -> int:
    from penstock.inspection.command import verify_checkpoints

    return verify_checkpoints(options.location, json=options.json)


def _delete(options: argparse.Namespace) -> int:
    from penstock.inspection.command import Doomed, delete_checkpoints

    return delete_checkpoints(options.location, Doomed(options.checkpoint or (), options.yes, options.force))


if __name__ == "__main__":
    sys.exit(main())
