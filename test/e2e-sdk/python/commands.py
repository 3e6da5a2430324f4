"""Commands: in the foreground and in the background, their input, their end."""

from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)

from checks import equal, fails, pour, settle, until


async def run(t):
    await foreground(t)
    await given(t)
    await background(t)
    await ends(t)


def plain(result):
    return result.exit_code, result.error, result.stdout, result.stderr


async def foreground(t):
    commands = t.commands

    async def output():
        heard = {"out": "", "err": ""}
        result = await settle(
            commands.run(
                "printf 'one\\ntwo'; printf 'ä€\\t' >&2",
                on_stdout=lambda text: heard.update(out=heard["out"] + text),
                on_stderr=lambda text: heard.update(err=heard["err"] + text),
            )
        )
        equal(plain(result), (0, None, "one\ntwo", "ä€\t"))
        equal(heard, {"out": "one\ntwo", "err": "ä€\t"})

    async def much():
        result = await settle(commands.run("seq 200000"))
        assert result.stdout == "".join(f"{i}\n" for i in range(1, 200_001))
        result = await settle(commands.run("seq 200000", retain_output=False))
        equal(result.stdout, None)

    async def parts():
        result = await settle(commands.run("printf '\\303'; sleep 0.2; printf '\\244'; printf '\\377'"))
        equal(result.stdout, "ä\ufffd")

    async def failure():
        error = await fails(CommandExitException, lambda: commands.run("echo out; echo err >&2; exit 7"))
        assert isinstance(error, SandboxException)
        equal(plain(error), (7, "exit status 7", "out\n", "err\n"))
        error = await fails(CommandExitException, lambda: commands.run("no-such-program-here"))
        equal(error.exit_code, 127)

    async def surroundings():
        result = await settle(
            commands.run(
                "echo $E2E_WIDE $E2E_OWN $HOME $USER $LOGNAME; pwd; whoami; umask",
                envs={"E2E_OWN": "own"},
                cwd="/tmp",
                user="user",
            )
        )
        equal(result.stdout, "wide own /home/user user user\n/tmp\nuser\n0022\n")
        result = await settle(commands.run("echo $E2E_WIDE; pwd", envs={"E2E_WIDE": "narrow"}, cwd="~"))
        equal(result.stdout, "narrow\n/home/user\n")
        equal((await settle(commands.run("pwd"))).stdout, "/home/user\n")

    async def refused():
        await fails(
            InvalidArgumentException,
            lambda: commands.run("true", cwd="/no/such/folder"),
            "cwd '/no/such/folder' does not exist",
        )
        for user in ("somebody", "root"):
            await fails(AuthenticationException, lambda user=user: commands.run("true", user=user))

    await t.check("a command gives its output, stream by stream", output)
    await t.check("much output comes whole and in order", much)
    await t.check("a character that comes in two parts is one", parts)
    await t.check("a failure has its status and its output", failure)
    await t.check("environment, directory and user", surroundings)
    await t.check("what cannot start says why", refused)


async def given(t):
    commands = t.commands

    async def exact():
        sent = bytes(range(256))
        handle = await settle(commands.run("od -An -v -tu1", background=True, stdin=True))
        await settle(commands.send_stdin(handle.pid, sent))
        await settle(handle.send_stdin("ä\n"))
        # A stream of input does not end the input.
        await pour(t, commands, handle.pid, ["three ", b"parts", "\n"])
        await settle(commands.close_stdin(handle.pid))
        result = await settle(handle.wait())
        equal(bytes(map(int, result.stdout.split())), sent + "ä\nthree parts\n".encode())

    async def by_handle():
        handle = await settle(commands.run("cat; echo end", background=True, stdin=True))
        await settle(handle.send_stdin(b"text\n"))
        await settle(handle.close_stdin())
        await settle(handle.close_stdin())
        equal((await settle(handle.wait())).stdout, "text\nend\n")

    async def none():
        equal((await settle(commands.run("cat; echo end"))).stdout, "end\n")
        handle = await settle(commands.run("sleep 60", background=True))
        await fails(SandboxException, lambda: commands.send_stdin(handle.pid, "text"))
        await settle(handle.kill())

    async def nobody():
        await fails(NotFoundException, lambda: commands.send_stdin(999_999, "text"))
        await fails(NotFoundException, lambda: pour(t, commands, 999_999, ["text"]))
        await fails(NotFoundException, lambda: commands.close_stdin(999_999))

    await t.check("input is what was sent, byte by byte", exact)
    await t.check("a handle closes the input too", by_handle)
    await t.check("without input there is none", none)
    await t.check("input for nobody", nobody)


async def background(t):
    commands = t.commands

    async def listed():
        script = 'read line; echo "got $line"; exit 3'
        handle = await settle(
            commands.run(script, background=True, stdin=True, cwd="/tmp", envs={"E2E_OWN": "own"})
        )
        [found] = [p for p in await settle(commands.list()) if p.pid == handle.pid]
        equal(
            (found.cmd, found.args, found.envs, found.cwd, found.tag),
            ("/bin/bash", ["-l", "-c", script], {"E2E_OWN": "own"}, "/tmp", None),
        )
        if t.waits:
            equal(plain(handle), (None, None, "", ""))
        await settle(handle.send_stdin("word\n"))
        error = await fails(CommandExitException, handle.wait)
        equal(plain(error), (3, "exit status 3", "got word\n", ""))
        if t.waits:
            equal(plain(handle), (3, "exit status 3", "got word\n", ""))
        equal([p for p in await settle(commands.list()) if p.pid == handle.pid], [])

    async def connected():
        first = await settle(
            commands.run('while read line; do echo "$line"; echo "$line" >&2; done', background=True, stdin=True)
        )
        second = await settle(commands.connect(first.pid))
        equal(second.pid, first.pid)
        await settle(second.send_stdin("one\n"))
        if t.waits:
            await until(lambda: f"{first.stdout} {second.stdout}", lambda: first.stdout == second.stdout == "one\n")
        await settle(first.disconnect())
        await settle(second.send_stdin("two\n"))
        await settle(second.close_stdin())
        equal(plain(await settle(second.wait())), (0, None, "one\ntwo\n", "one\ntwo\n"))

    async def outlives():
        handle = await settle(commands.run("read line; exit 4", background=True, stdin=True))
        await settle(handle.disconnect())
        again = await settle(commands.connect(handle.pid))
        await settle(again.send_stdin("go\n"))
        equal((await fails(CommandExitException, again.wait)).exit_code, 4)
        # The end is kept for a while.
        late = await settle(commands.connect(handle.pid))
        equal((await fails(CommandExitException, late.wait)).exit_code, 4)
        await fails(NotFoundException, lambda: commands.connect(999_999))

    await t.check("a command in the background is listed while it runs", listed)
    await t.check("another connection sees what comes, and the end", connected)
    await t.check("a command outlives who started it", outlives)


async def ends(t):
    commands = t.commands

    async def running(program):
        return (await settle(commands.run(f"pgrep -xf '{program}' || true"))).stdout.split()

    async def killed(pid):
        # The rest of its tree may take a moment longer.
        return not await settle(commands.kill(pid))

    async def tree():
        async def are(count):
            return len(await running("sleep 71717")) == count

        handle = await settle(commands.run("setsid sleep 71717 & sleep 71717 & wait", background=True))
        await until("two sleepers", lambda: are(2))
        equal(await settle(handle.kill()), True)
        error = await fails(CommandExitException, handle.wait)
        equal((error.exit_code, error.error), (-1, "signal: killed"))
        await until("no sleeper", lambda: are(0))
        await until("nothing to kill", lambda: killed(handle.pid))

    async def by_number():
        handle = await settle(commands.run("sleep 60", background=True))
        equal(await settle(commands.kill(handle.pid)), True)
        equal((await fails(CommandExitException, handle.wait)).error, "signal: killed")
        await until("nothing to kill", lambda: killed(handle.pid))
        equal(await settle(commands.kill(999_999)), False)

    async def late():
        async def none():
            return not await running("sleep 72727")

        await fails(TimeoutException, lambda: commands.run("sleep 72727", timeout=0.7))
        await until("no sleeper", none)

    await t.check("a kill ends the tree", tree)
    await t.check("a kill by number", by_number)
    await t.check("time is up", late)
