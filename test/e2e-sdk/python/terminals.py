"""Terminals."""

from e2b import CommandExitException, InvalidArgumentException, NotFoundException, PtySize, SandboxException

from checks import equal, fails, pour, settle, until


class Screen:
    """What a terminal has written so far: the one SDK calls, the other is asked."""

    def __init__(self, t):
        self.t, self.bytes, self.events = t, b"", iter(())

    async def create(self, cols, rows, **options):
        return await self._read(self.t.pty.create(PtySize(rows=rows, cols=cols), **self._options(), **options))

    async def connect(self, pid):
        return await self._read(self.t.pty.connect(pid, **self._options()))

    def _options(self):
        return {"on_data": self.write} if self.t.waits else {}

    async def _read(self, call):
        handle = await settle(call)
        if not self.t.waits:
            self.events = iter(handle)
        return handle

    def write(self, data):
        assert isinstance(data, bytes), type(data)
        self.bytes += data

    async def shows(self, text):
        def seen():
            if text not in self.bytes and not self.t.waits:
                self.write(next(self.events)[2])
            return text in self.bytes

        await until(lambda: f"{text} in {self.bytes}", seen)

    async def end(self, handle):
        """Waits for the end, with what comes before."""
        if self.t.waits:
            return await handle.wait()
        return handle.wait(on_pty=self.write)


async def run(t):
    pty, commands = t.pty, t.commands

    async def sized():
        screen = Screen(t)
        handle = await screen.create(91, 17, cwd="/tmp", envs={"E2E_OWN": "own"}, user="user")
        await settle(pty.send_stdin(handle.pid, b'echo "<$(stty size)|$TERM|$E2E_OWN|$PWD|$(whoami)>"\n'))
        await screen.shows(b"<17 91|xterm-256color|own|/tmp|user>")
        await settle(pty.resize(handle.pid, PtySize(rows=45, cols=123)))
        await pour(t, pty, handle.pid, [b'echo "<$(stty', b' size)>"\n'])
        await screen.shows(b"<45 123>")
        [found] = [p for p in await settle(commands.list()) if p.pid == handle.pid]
        equal((found.cmd, found.args), ("/bin/bash", ["-i", "-l"]))
        await settle(pty.send_stdin(handle.pid, b"stty -echo -opost; printf '<\\001\\n\\377>'; exit 3\n"))
        equal((await fails(CommandExitException, lambda: screen.end(handle))).exit_code, 3)
        assert b"<\x01\n\xff>" in screen.bytes, screen.bytes

    async def connected():
        first, second = Screen(t), Screen(t)
        handle = await first.create(80, 24, timeout=0)
        other = await second.connect(handle.pid)
        await settle(pty.send_stdin(other.pid, b'echo "<$((40 + 2))>"\n'))
        await first.shows(b"<42>")
        await second.shows(b"<42>")
        await settle(handle.disconnect())
        await settle(pty.send_stdin(other.pid, b'echo "<$((40 + 3))>"\n'))
        await second.shows(b"<43>")
        assert b"<43>" not in first.bytes
        equal(await settle(pty.kill(other.pid)), True)
        equal((await fails(CommandExitException, lambda: second.end(other))).error, "signal: killed")

        async def gone():
            return not await settle(pty.kill(other.pid))

        await until("nothing to kill", gone)

    async def others():
        handle = await settle(commands.run("cat", background=True, stdin=True))
        await fails(SandboxException, lambda: pty.send_stdin(handle.pid, b"x"))
        await fails(SandboxException, lambda: pty.resize(handle.pid, PtySize(1, 1)))
        await settle(handle.kill())
        terminal = await Screen(t).create(80, 24)
        await fails(SandboxException, lambda: commands.send_stdin(terminal.pid, "x"))
        await settle(terminal.kill())
        await fails(NotFoundException, lambda: Screen(t).connect(999_999))
        await fails(NotFoundException, lambda: pty.send_stdin(999_999, b"x"))
        await fails(NotFoundException, lambda: pour(t, pty, 999_999, [b"x"]))
        await fails(NotFoundException, lambda: pty.resize(999_999, PtySize(1, 1)))
        await fails(InvalidArgumentException, lambda: Screen(t).create(80, 24, cwd="/no/such/folder"))

    await t.check("a terminal has a size, a directory and an environment", sized)
    await t.check("another connection to a terminal", connected)
    await t.check("what is no terminal", others)
