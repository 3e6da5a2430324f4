"""Files: whole, as streams, compressed, with metadata; folders."""

import io
import os
import time

from e2b import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    SandboxException,
)

from checks import equal, fails, settle

# Not a whole number of anybody's blocks, with each byte in it.
BIG = bytes(range(256)) + os.urandom(1_000_001)
WAYS = ({}, {"use_octet_stream": True}, {"use_octet_stream": False}, {"gzip": True})
UPLOADS = ({}, {"use_octet_stream": True}, {"gzip": True})


def pieces():
    return (BIG[at : at + 65_537] for at in range(0, len(BIG), 65_537))


async def waited_pieces():
    for piece in pieces():
        yield piece


async def collect(stream):
    if hasattr(stream, "__aiter__"):
        return b"".join([part async for part in stream])
    return b"".join(stream)


async def run(t):
    await contents(t)
    await uploads(t)
    await metadata(t)
    await refusals(t)
    await entries(t)
    await folders(t)


async def contents(t):
    files, commands = t.files, t.commands

    async def forms():
        for name, make, ways in (
            ("bytes", lambda: BIG, WAYS),
            ("file", lambda: io.BytesIO(BIG), WAYS),
            ("stream", waited_pieces if t.waits else pieces, ({}, {"gzip": True})),
        ):
            for options in ways:
                path = f"/home/user/forms/{name}"
                told = await settle(files.write(path, make(), **options))
                equal((told.name, told.type.value, told.path, told.metadata), (name, "file", path, None), f"{options} ")
                assert await settle(files.read(path, format="bytes")) == BIG, f"{name} {options}"
                await settle(files.remove(path))
        await settle(files.write("forms/big", BIG))
        assert await collect(await settle(files.read("forms/big", format="stream"))) == BIG
        assert await settle(files.read("forms/big", format="bytes", gzip=True)) == BIG
        await settle(files.remove("forms"))

    async def text():
        for options in UPLOADS:
            await settle(files.write("text", "ä€\r\n\0end", **options))
            equal(await settle(files.read("text")), "ä€\r\n\0end")
            equal(await settle(files.read("/home/user/text", gzip=True, user="user")), "ä€\r\n\0end")
        result = await settle(commands.run("od -An -tx1 ~/text"))
        equal(result.stdout.strip(), "c3 a4 e2 82 ac 0d 0a 00 65 6e 64")
        await settle(files.write("text", "short"))
        equal(await settle(files.read("text")), "short")

    async def empty():
        for options in UPLOADS:
            await settle(files.write("empty", "", **options))
            equal(await settle(files.read("empty")), "")
            equal(await settle(files.read("empty", format="bytes")), b"")
            equal(await collect(await settle(files.read("empty", format="stream"))), b"")

    async def left():
        await settle(files.write("left", BIG))
        stream = await settle(files.read("left", format="stream"))
        if t.waits:
            assert await anext(aiter(stream))
            await stream.aclose()
        else:
            assert next(iter(stream))
            stream.close()
        assert await settle(files.read("left", format="bytes")) == BIG

    await t.check("every form of content, every form of reading", forms)
    await t.check("text", text)
    await t.check("an empty file is empty, not missing", empty)
    await t.check("a stream that is left early", left)


async def uploads(t):
    files, commands = t.files, t.commands

    async def parents():
        await settle(files.write("new/deep/file", "x", user="user"))
        result = await settle(commands.run("stat -c '%U:%G %a %n' new new/deep new/deep/file", cwd="~"))
        equal(result.stdout, "user:user 755 new\nuser:user 755 new/deep\nuser:user 644 new/deep/file\n")

    async def mode():
        await settle(commands.run("echo echo one > ~/program; chmod 750 ~/program"))
        await settle(files.write("program", "echo two"))
        equal((await settle(commands.run("stat -c %a ~/program; ~/program"))).stdout, "750\ntwo\n")

    async def several():
        names = ["plain", "with space", "it's one", "ünïcode €", "a%20b+c&d=e?f#g", "back\\slash", "sub/dir/file"]
        wanted = {f"/home/user/many/{name}": f"text {i}" for i, name in enumerate(names)}
        for options in UPLOADS:
            list_ = [
                {"path": path, "data": data if i % 2 else data.encode()} for i, (path, data) in enumerate(wanted.items())
            ]
            told = await settle(files.write_files(list_, **options))
            equal([info.path for info in told], list(wanted))
            equal([info.name for info in told], [name.split("/")[-1] for name in names])
            for path, data in wanted.items():
                equal(await settle(files.read(path)), data)
            result = await settle(commands.run("find many -type f -printf '%P\\0'", cwd="~"))
            equal(sorted(filter(None, result.stdout.split("\0"))), sorted(names))
            await settle(files.remove("many"))
        equal(await settle(files.write_files([])), [])

    async def unusual():
        path = '/home/user/many/"quoted" and\nbroken'
        for options in UPLOADS:
            equal((await settle(files.write(path, "x", **options))).path, path)
            equal(await settle(files.read(path)), "x")
            equal([entry.path for entry in await settle(files.list("many"))], [path])
            await settle(files.remove("many"))

    await t.check("parents are made, and belong to the user", parents)
    await t.check("a mode is kept", mode)
    await t.check("several files in one call", several)
    await t.check("a name that a form cannot carry", unusual)


async def metadata(t):
    files = t.files

    async def noted():
        given = {"author": "somebody", "purpose": "a test & more"}
        for options in UPLOADS:
            equal((await settle(files.write("noted", "x", metadata=given, **options))).metadata, given)
            equal((await settle(files.get_info("noted"))).metadata, given)
            [listed] = [entry for entry in await settle(files.list(".")) if entry.name == "noted"]
            equal(listed.metadata, given)
            equal((await settle(files.rename("noted", "renamed"))).metadata, given)
            await settle(files.write("renamed", "y"))
            equal((await settle(files.get_info("renamed"))).metadata, None)
        for bad in ({"bad key": "x"}, {"key": "x" * 5000}):
            await fails(InvalidArgumentException, lambda bad=bad: files.write("noted", "x", metadata=bad))

    await t.check("metadata goes with a file", noted)


async def refusals(t):
    files, commands = t.files, t.commands

    async def missing():
        for form in ("text", "bytes", "stream"):
            await fails(FileNotFoundException, lambda form=form: files.read("missing", format=form))
        await fails(FileNotFoundException, lambda: files.get_info("missing"))
        await fails(FileNotFoundException, lambda: files.list("missing"))
        await fails(FileNotFoundException, lambda: files.rename("missing", "other"))
        equal(await settle(files.exists("missing")), False)
        await settle(files.remove("missing"))

    async def kinds():
        await settle(files.make_dir("kind/folder"))
        await settle(files.write("kind/file", "x"))
        await fails(InvalidArgumentException, lambda: files.read("kind/folder"))
        for options in UPLOADS:
            await fails(InvalidArgumentException, lambda options=options: files.write("kind/folder", "x", **options))
        await fails(InvalidArgumentException, lambda: files.list("kind/file"))
        await fails(InvalidArgumentException, lambda: files.make_dir("kind/file"))
        await fails(InvalidArgumentException, lambda: files.list("kind", depth=0))

    async def nobody():
        for user in ("root", "somebody"):
            for call in (
                lambda user=user: files.read("text", user=user),
                lambda user=user: files.write("text", "x", user=user),
                lambda user=user: files.list(".", user=user),
                lambda user=user: files.exists("text", user=user),
            ):
                await fails(AuthenticationException, call)

    async def full():
        await settle(commands.run("head -c 1G /dev/zero > ~/filler; true"))
        for options in UPLOADS:
            await fails(NotEnoughSpaceException, lambda options=options: files.write("more", BIG, **options))
        equal(await settle(files.exists("more")), False)
        await settle(files.remove("filler"))
        await settle(files.write("more", "x"))

    await t.check("what is not there", missing)
    await t.check("what is not of the right kind", kinds)
    await t.check("who is nobody", nobody)
    await t.check("a disk that is full", full)


async def entries(t):
    files, commands = t.files, t.commands

    async def known():
        before = time.time()
        equal((await settle(files.write("known/file", "12345"))).path, "/home/user/known/file")
        info = await settle(files.get_info("known/file"))
        equal(
            (info.name, info.type.value, info.path, info.size, info.mode, info.permissions, info.owner, info.group),
            ("file", "file", "/home/user/known/file", 5, 0o644, "-rw-r--r--", "user", "user"),
        )
        equal((info.symlink_target, info.metadata), (None, None))
        assert abs(info.modified_time.timestamp() - before) < 60, info.modified_time
        folder = await settle(files.get_info("known", user="user"))
        equal((folder.type.value, folder.mode, folder.permissions), ("dir", 0o755, "drwxr-xr-x"))
        await settle(commands.run("ln -s file known/link; ln -s nowhere known/broken", cwd="~"))
        link = await settle(files.get_info("known/link"))
        equal((link.name, link.size, link.symlink_target), ("link", 5, "/home/user/known/file"))
        equal((await settle(files.exists("known/file")), await settle(files.exists("known"))), (True, True))

    async def listing():
        await settle(files.write_files([{"path": "tree/b/c/d", "data": "1"}, {"path": "tree/a", "data": "22"}]))
        want = ["file a", "dir b", "dir b/c", "file b/c/d"]
        for depth, count in ((1, 2), (2, 3), (9, 4)):
            got = await settle(files.list("/home/user/tree" if depth > 1 else "tree", depth=depth))
            equal([f"{e.type.value} {e.path.removeprefix('/home/user/tree/')}" for e in got], want[:count])
        equal((await settle(files.list("tree")))[0].size, 2)
        # A link to nothing has no type, and the SDK leaves it out.
        equal([entry.name for entry in await settle(files.list("known"))], ["file", "link"])

    await t.check("what is known of a file", known)
    await t.check("a listing", listing)


async def folders(t):
    files, commands = t.files, t.commands

    async def made():
        equal(await settle(files.make_dir("made/in/depth")), True)
        equal(await settle(files.make_dir("made/in/depth")), False)
        equal((await settle(commands.run("stat -c '%F %U %a' ~/made/in/depth"))).stdout, "directory user 755\n")

    async def renamed():
        await settle(files.write("old/file", "content"))
        info = await settle(files.rename("old/file", "new-place/deep/file"))
        equal(
            (info.name, info.path, info.type.value, info.size), ("file", "/home/user/new-place/deep/file", "file", 7)
        )
        equal(await settle(files.exists("old/file")), False)
        equal((await settle(files.rename("new-place", "newer"))).type.value, "dir")
        equal(await settle(files.read("newer/deep/file")), "content")
        await settle(files.write("target", "old"))
        await settle(files.rename("newer/deep/file", "target"))
        equal(await settle(files.read("target")), "content")

    async def removed():
        await settle(files.write("gone/deep/file", "x"))
        await settle(commands.run("ln -s /etc gone/link", cwd="~"))
        await settle(files.remove("gone/deep/file"))
        equal(await settle(files.exists("gone/deep/file")), False)
        await settle(files.remove("gone"))
        equal(await settle(files.exists("gone")), False)
        equal(await settle(files.exists("/etc/passwd")), True)
        # A read-only place says so.
        await fails(SandboxException, lambda: files.remove("/usr/bin/env"))

    await t.check("a folder is made once", made)
    await t.check("a file and a folder get another name", renamed)
    await t.check("what is removed is gone, with all below it", removed)
