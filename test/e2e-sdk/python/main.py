"""Drives a sandbox through the Python SDK of E2B, as it is shipped:

    python main.py sync|async

One script is for both: settle() waits where there is something to wait for. The
bridge is in the environment, as E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL."""

import asyncio
import importlib.metadata
import sys
from types import SimpleNamespace

import e2b

import commands
import files
import lifecycle
import signing
import terminals
import watching
from checks import Account, Checks, settle


async def main(mode):
    checks, account = Checks(f"e2b {importlib.metadata.version('e2b')} on Python, {mode}"), Account()
    kind = e2b.AsyncSandbox if mode == "async" else e2b.Sandbox
    sandbox = await settle(
        kind.create("base", timeout=300, envs={"E2E_WIDE": "wide"}, metadata={"purpose": "end to end"})
    )
    t = SimpleNamespace(
        kind=kind,
        waits=mode == "async",
        sandbox=sandbox,
        check=checks.check,
        commands=account.watch(sandbox.commands),
        pty=account.watch(sandbox.pty),
        files=account.watch(sandbox.files),
    )
    try:
        for part in (commands, terminals, files, watching, signing, lifecycle):
            await part.run(t)
    finally:
        await settle(sandbox.kill())

    async def complete():
        handles = ["CommandHandle", "WatchHandle"]
        if t.waits:
            handles = ["AsyncCommandHandle", "AsyncCommandInputHandle", "AsyncWatchHandle"]
        account.complete(["Commands", "Pty", "Filesystem", *handles])

    await checks.check("every public member was called", complete)
    return 0 if checks.report() else 1


sys.exit(asyncio.run(main(sys.argv[1])))
