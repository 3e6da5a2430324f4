"""Who may reach a sandbox, and how its end looks."""

import os
import time

import httpx
from e2b import (
    AuthenticationException,
    ConnectionConfig,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
)
from packaging.version import Version

from checks import equal, fails, settle, until


def stranger(t, token):
    """Somebody who knows a sandbox by its name, with another token or none."""
    headers = {"E2b-Sandbox-Id": t.sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    if token is not None:
        headers["X-Access-Token"] = token
    return t.kind(
        sandbox_id=t.sandbox.sandbox_id,
        envd_version=Version("0.6.13"),
        envd_access_token=token,
        sandbox_domain=None,
        connection_config=ConnectionConfig(extra_sandbox_headers=headers),
    )


async def run(t):
    sandbox, files = t.sandbox, t.files
    nothing = {"on_data": lambda data: None} if t.waits else {}
    unseen = {"on_event": lambda event: None} if t.waits else {}

    async def found():
        before = await settle(sandbox.get_info())
        equal(
            (before.sandbox_id, before.template_id, before.state.value, before.metadata),
            (sandbox.sandbox_id, "base", "running", {"purpose": "end to end"}),
        )
        await settle(files.write("kept", "kept"))
        again = await settle(t.kind.connect(sandbox.sandbox_id, timeout=3000))
        equal(await settle(again.files.read("kept")), "kept")
        assert ((await settle(again.get_info())).end_at - before.end_at).total_seconds() > 1000
        await settle(sandbox.set_timeout(300))
        assert (await settle(again.get_info())).end_at.timestamp() - time.time() < 301
        equal(await settle(sandbox.is_running()), True)

    async def unknown():
        for token in (None, "wrong"):
            other = stranger(t, token)
            for call in (
                lambda: other.commands.run("true"),
                lambda: other.commands.list(),
                lambda: other.files.list("/"),
                lambda: other.files.read("/etc/passwd"),
                lambda: other.files.write("text", "x"),
                lambda: other.files.write("text", "x", use_octet_stream=True),
                lambda: other.pty.create(PtySize(24, 80), **nothing),
                lambda: other.files.watch_dir("/home/user", **unseen),
            ):
                await fails(AuthenticationException, call)
            equal(await settle(other.is_running()), True)
        await fails(AuthenticationException, lambda: t.kind.create("base", api_key="e2b_" + "0" * 40))

    async def control():
        headers = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": sandbox._envd_access_token,
        }
        for path in ("/init", "//init", "/data/../init", "/berm.agent.v1.Control/Probe"):
            response = httpx.post(os.environ["E2B_SANDBOX_URL"] + path, headers=headers, json={}, follow_redirects=True)
            equal(response.status_code, 404, f"{path}: ")
        equal(await settle(files.read("kept")), "kept")

    async def killed():
        other = await settle(t.kind.create("base", timeout=60))
        command = await settle(other.commands.run("sleep 60", background=True))
        exits = []
        if t.waits:
            await other.files.watch_dir("/home/user", on_event=lambda event: None, on_exit=exits.append)
        equal(await settle(other.kill()), True)
        await fails(SandboxNotRunningException, command.wait)
        if t.waits:
            await until("an end of the watch", lambda: exits)
            equal([type(error) for error in exits], [SandboxNotRunningException])
        await gone(t, other)

    async def late():
        other = await settle(t.kind.create("base", timeout=1))

        async def ended():
            return not await settle(other.is_running())

        await until("an end", ended)
        await gone(t, other)

    async def never():
        await fails(SandboxNotFoundException, lambda: t.kind.connect("nosuchsandbox"))
        await fails(SandboxException, lambda: t.kind.create("no-such-template"))

    await t.check("a sandbox is found again", found)
    await t.check("who has no token gets nothing", unknown)
    await t.check("the control plane of a sandbox is not to be reached", control)
    await t.check("what goes on when a sandbox is killed", killed)
    await t.check("a sandbox whose time is up", late)
    await t.check("a sandbox that never was", never)


async def gone(t, other):
    """A sandbox that is gone is gone in every call."""
    equal(await settle(other.is_running()), False)
    equal(await settle(other.kill()), False)
    await fails(SandboxNotFoundException, other.get_info)
    for call in (
        lambda: other.commands.run("true"),
        lambda: other.commands.list(),
        lambda: other.files.list("/"),
        lambda: other.files.read("/etc/passwd"),
        lambda: other.files.write("x", "x"),
    ):
        await fails(SandboxNotRunningException, call)
