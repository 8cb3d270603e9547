# SPDX-License-Identifier: Apache-2.0
"""`penstock service external`: its arguments, and the process that they start."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.external.accounts import KeptQuotas
from penstock.external.options import PORT, HostServiceOptions
from penstock.settings import TLS_MODES
from penstock.settings.values import parse_lease, parse_size

HELP = "keep blocking partitions and results on this host, longer than executors live"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    folders = "where files lie, on a disk of its own each; the first one has the index"
    parser.add_argument("--dir", action="append", required=True, metavar="FOLDER", help=folders)
    adopt = "make folders without an id this service's, as new disks and those of a version that wrote none, and end"
    parser.add_argument("--adopt", action="store_true", help=adopt)
    rebuild = "make an index that is lost again from what the folders hold, and end"
    parser.add_argument("--rebuild-index", action="store_true", help=rebuild)
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen at (all)")  # noqa: S104
    parser.add_argument("--port", type=int, default=PORT, help=f"where readers come to ({PORT})")
    parser.add_argument("--socket", default="", metavar="PATH", help="where tasks come to (service.sock in --dir)")
    parser.add_argument("--quota", default="0", metavar="SIZE", help="what one application may keep (0: no limit)")
    parser.add_argument("--reserve", default="1g", metavar="SIZE", help="what stays free on each disk (1g)")
    lease = "an application nobody has heard of for so long is over (30m)"
    parser.add_argument("--lease", default="30m", metavar="TIME", help=lease)
    kept = "a result that is kept by name, and that nobody reads for so long, goes (7d)"
    parser.add_argument("--kept-lease", default="7d", metavar="TIME", help=kept)
    of_user = "what one user may keep by name (as --quota), beside what applications have"
    parser.add_argument("--kept-quota", default="", metavar="SIZE", help=of_user)
    of_all = "what all users together may keep by name (0: no limit)"
    parser.add_argument("--kept-total", default="0", metavar="SIZE", help=of_all)
    parser.add_argument(
        "--memory", default="64m", metavar="SIZE", help="for bytes on their way, questions and names, of each user"
    )
    tls = "TLS for readers: not on loopback (auto), there too (always), or none, on a network that you trust (never)"
    parser.add_argument("--tls", default="auto", choices=TLS_MODES, help=tls)
    parser.add_argument("--certificate", default="", metavar="FILE", help="PEM file of the port (a new one is made)")
    parser.add_argument("--key", default="", metavar="FILE", help="PEM file of its key (in the same file)")
    metrics = "metrics for Prometheus at this port of --metrics-host (none)"
    parser.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help=metrics)
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="(127.0.0.1)")


def run_service(options: argparse.Namespace) -> int:
    """Serve until a signal comes; the exit code."""
    try:
        quota, reserve, memory = (parse_size(text) for text in (options.quota, options.reserve, options.memory))
        kept = KeptQuotas(parse_size(options.kept_quota or options.quota), parse_size(options.kept_total))
        lease, kept_lease = parse_lease(options.lease), parse_lease(options.kept_lease)
    except ValueError as error:
        options.parser.error(f"a size or time is not valid: it takes {error}")
    wanted = HostServiceOptions(
        tuple(Path(each).absolute() for each in options.dir),
        options.host,
        options.port,
        Path(options.socket).absolute() if options.socket else None,
        quota,
        reserve,
        lease,
        kept_lease,
        memory,
        options.tls,
        options.certificate,
        options.key,
        options.metrics_port,
        options.metrics_host,
        kept,
    )
    import asyncio
    import logging

    from penstock.external.adoption import adopt, rebuild_index
    from penstock.external.process import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if options.adopt or options.rebuild_index:
        print(adopt(wanted.folders) if options.adopt else rebuild_index(wanted.folders))  # noqa: T201
        return 0
    asyncio.run(serve(wanted))
    return 0
