"""Folders that are watched."""

from e2b import AuthenticationException, FileNotFoundException, InvalidArgumentException, SandboxException, TimeoutException

from checks import equal, fails, settle, until


class Log:
    """Notes events as "type name": the one SDK calls, the other is asked."""

    def __init__(self, t):
        self.t, self.events, self.exits, self.handle = t, [], [], None

    async def watch(self, path, **options):
        if self.t.waits:
            options.update(on_event=self.events.append, on_exit=self.exits.append)
        self.handle = await settle(self.t.files.watch_dir(path, **options))
        return self.handle

    def lines(self):
        return [f"{event.type.value} {event.name}" for event in self.events]

    async def has(self, *wanted):
        def seen():
            if not self.t.waits:
                self.events += self.handle.get_new_events()
            return set(wanted) <= set(self.lines())

        await until(lambda: f"{wanted} in {self.lines()}", seen)


async def run(t):
    files, commands = t.files, t.commands

    async def shell(script):
        await settle(commands.run(script, cwd="~"))

    async def folder():
        await settle(files.make_dir("watched/sub"))
        log = Log(t)
        handle = await log.watch("watched")
        await shell("echo x > watched/a")
        await log.has("create a", "write a")
        await shell("chmod 600 watched/a")
        await log.has("chmod a")
        await shell("mv watched/a watched/b")
        await log.has("rename a", "create b")
        await settle(files.write("watched/uploaded", "x"))
        await log.has("create uploaded", "write uploaded")
        await settle(files.rename("watched/uploaded", "watched/moved"))
        await log.has("rename uploaded", "create moved")
        await settle(files.make_dir("watched/new"))
        await log.has("create new")
        await settle(files.remove("watched/b"))
        await log.has("remove b")
        # Below it is not in it, unless asked for.
        await settle(files.write("watched/sub/deep", "x"))
        await settle(files.write("watched/last", "x"))
        await log.has("create last")
        assert not any("deep" in line for line in log.lines()), log.lines()
        # Nor how an upload is made.
        assert {event.name for event in log.events} <= {"a", "b", "uploaded", "moved", "new", "last", "sub"}, log.lines()
        assert all(event.entry is None for event in log.events)
        await settle(handle.stop())
        if t.waits:
            equal(log.exits, [None])
        else:
            await fails(SandboxException, handle.get_new_events)

    async def tree():
        await settle(files.make_dir("forest/old"))
        log = Log(t)
        handle = await log.watch("/home/user/forest", recursive=True, include_entry=True, user="user")
        await settle(files.write("forest/old/file", "12345"))
        await log.has("create old/file")
        # Also in what is new.
        await settle(files.make_dir("forest/new/deep"))
        await log.has("create new")
        await shell("echo x > forest/new/deep/file; sleep 0.1; echo y >> forest/new/deep/file")
        await log.has("write new/deep/file")
        entry = next(e.entry for e in log.events if (e.type.value, e.name) == ("create", "old/file"))
        equal(
            (entry.name, entry.type.value, entry.path, entry.owner),
            ("file", "file", "/home/user/forest/old/file", "user"),
        )
        await settle(handle.stop())

    async def refused():
        await settle(files.write("single", "x"))
        await fails(FileNotFoundException, lambda: Log(t).watch("missing"))
        await fails(InvalidArgumentException, lambda: Log(t).watch("single"))
        await fails(AuthenticationException, lambda: Log(t).watch("watched", user="somebody"))

    async def late():
        log = Log(t)
        await log.watch("watched", timeout=0.7)
        await until("an end", lambda: log.exits)
        equal([type(error) for error in log.exits], [TimeoutException])

    await t.check("a folder tells what happens in it", folder)
    await t.check("a tree tells what happens below", tree)
    await t.check("what cannot be watched", refused)
    if t.waits:
        await t.check("a watch ends with its time", late)
