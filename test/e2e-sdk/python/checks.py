"""The runner of the checks, what they wait with, and the account of the SDK's
methods that they called."""

import asyncio
import inspect
import re
import textwrap
import traceback

CHECK_SECONDS = 60


async def settle(value):
    """Gives what a call of either SDK came to: the one waits, the other does not."""
    return await value if inspect.isawaitable(value) else value


async def until(what, ask, seconds=20):
    """Asks again until the answer is true, or fails with what it last was."""
    end = asyncio.get_running_loop().time() + seconds
    while not await settle(ask()):
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not so after {seconds} s: {what() if callable(what) else what}")
        await asyncio.sleep(0.02)


async def fails(kind, call, pattern=""):
    """Wants a failure of exactly this class, and gives it. call makes the call."""
    try:
        value = await settle(call())
    except Exception as error:  # noqa: BLE001 the class is what is looked at
        if type(error) is not kind:
            raise AssertionError(f"want {kind.__name__}, got {type(error).__name__}: {error}") from error
        assert re.search(pattern, str(error)), f"{pattern!r} is not in {error}"
        return error
    raise AssertionError(f"want {kind.__name__}, got {value!r}")


async def pour(t, part, pid, pieces):
    """Sends pieces of input in one stream: the one SDK takes them all, the other
    gives a handle for them."""
    if not t.waits:
        part.stream_input(pid, pieces)
        return
    handle = part.stream_input(pid)
    for piece in pieces:
        await handle.send(piece)
    await handle.close()


def equal(got, want, note=""):
    assert got == want, f"{note}got {textwrap.shorten(repr(got), 2000)}, want {textwrap.shorten(repr(want), 2000)}"


class Checks:
    """Counts and tells checks."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    async def check(self, title, run):
        """Runs one check. A failure is told and does not end the others."""
        try:
            await asyncio.wait_for(run(), CHECK_SECONDS)
            self.passed += 1
        except Exception:  # noqa: BLE001 told, and counted
            self.failed += 1
            print(f"FAIL {self.name}: {title}\n{textwrap.indent(traceback.format_exc(), '     ')}")

    def report(self):
        print(f"{self.name}: {self.passed} passed, {self.failed} failed")
        return self.failed == 0 and self.passed > 0


class Account:
    """Keeps the account of what the script itself calls of the SDK's classes."""

    def __init__(self):
        self.called = {}  # class -> names

    def watch(self, target):
        """Gives an object that does as target does and notes each public member
        that is used through it. What the SDK calls by itself is not noted."""
        return Watched(self, target)

    def wrap(self, value):
        """Handles that come out of a call are watched too."""
        if inspect.iscoroutine(value):
            return self._wrapped(value)
        if re.fullmatch(r"(Async)?(Command|CommandInput|Watch)Handle", type(value).__name__):
            return self.watch(value)
        return value

    async def _wrapped(self, coroutine):
        return self.wrap(await coroutine)

    def complete(self, wanted):
        """Fails unless every public member of these classes was called."""
        equal(sorted(kind.__name__ for kind in self.called), sorted(wanted))
        missing = [
            f"{kind.__name__}.{name}"
            for kind, names in self.called.items()
            for name in dir(kind)
            if not name.startswith("_") and name not in names
        ]
        equal(missing, [], "public members that were not called: ")


class Watched:
    """See Account.watch."""

    def __init__(self, account, target):
        self._account, self._target = account, target
        self._names = account.called.setdefault(type(target), set())

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            self._names.add(name)
            return value

        def call(*args, **kwargs):
            self._names.add(name)
            return self._account.wrap(value(*args, **kwargs))

        return call

    def __iter__(self):
        return iter(self._target)
