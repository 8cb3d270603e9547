# SPDX-License-Identifier: Apache-2.0
"""Does what `docs/two-hosts.md` says, on two hosts: each block of its page, in their order.

`unshare -rnm python walked_page.py FOLDER`: a program, as `two_hosts`. `/srv/penstock` is each host's own, `/mnt`
both have in common. The virtual environment is the one that runs this. The last line printed is the outcome, in JSON:
what each job has said, and the TLS that each port has spoken.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from source import ROOT
from two_hosts import PROCESSES, SHARED, Host, network, run
from underway import listed

PAGE = ROOT / "docs" / "two-hosts.md"
BLOCK = re.compile(r"^```(bash|python)\n(?:# (?:on|in) ([^\n]+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 180
_COPY = """#!/bin/bash
# Copies of `scp FILE... HOST:FOLDER` where hosts are namespaces.
target=${@: -1}
cp "${@:1:$#-1}" "$(cat /mnt/root-of-${target%%:*})${target#*:}"
"""
_LOOK = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="/srv/penstock/authority.pem")
context.check_hostname = False
with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)) as line:
    print(line.version())
"""


def hosts_of_the_page() -> dict[str, Host]:
    """The two hosts, by address, with what the page takes to be there."""
    network()
    tools = SHARED / "tools"
    tools.mkdir()
    (tools / "scp").write_text(_COPY)
    (tools / "scp").chmod(0o755)
    found = {}
    for name, number in (("a", 5), ("b", 6)):
        host = Host(name, number)
        host.run("mount", "-t", "tmpfs", "tmpfs", "/srv")
        host.run("mkdir", "/srv/penstock")
        host.run("ln", "-s", str(Path(sys.executable).parents[1]), "/srv/penstock/env")
        (SHARED / f"root-of-{host.address}").write_text(f"/proc/{host.pid}/root")
        found[host.address] = host
    return found


def done(host: Host, script: str) -> str:
    """What a script has said on a host."""
    log = SHARED / f"{host.name}.log"
    environment = {"HOME": "/tmp", "PATH": f"{SHARED}/tools:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    with log.open("ab") as output:
        output.write(f"--- {script}".encode())
        output.flush()
        command = host.command("bash", "-ec", script)
        found = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            timeout=SECONDS,
            check=False,
        )
    logs = [] if not found.returncode else [log, *listed(Path(host.root, "srv/penstock"), "*.log")]
    assert not found.returncode, "\n".join(each.read_text()[-2000:] for each in logs)
    return found.stdout.decode()


def walk(hosts: dict[str, Host]) -> dict[str, object]:
    """Do what the page says."""
    first, *_ = hosts.values()
    shell, said = "", []
    for language, where, text in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            Path(first.root, "srv/penstock/job.py").write_text(text)
        elif where == "each shell":
            shell = text
        else:
            for address in hosts if where == "both" else [where]:
                script = re.sub("HOST=[0-9.]+", f"HOST={address}", shell) + text
                said.append(done(hosts[address], script))
    look = [sys.executable, "-c", _LOOK]
    places = [(address, "7447") for address in hosts] + [(first.address, "7450")]
    tls = [subprocess.check_output(first.command(*look, *place), text=True).strip() for place in places]
    return {"said": re.findall("^stations: .*$", "".join(said), re.MULTILINE), "tls": tls}


def main(folder: str) -> None:
    """Run it."""
    run("mount", "--make-rprivate", "/")
    run("mount", "--bind", folder, str(SHARED))
    try:
        print(json.dumps(walk(hosts_of_the_page())))
    finally:
        for process in reversed(PROCESSES):
            process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
