// Terminals.
import { strict as assert } from 'node:assert'
import { fails, until } from './checks.mjs'

/** What a terminal has written so far. */
class Screen {
  constructor() {
    this.bytes = Buffer.alloc(0)
    this.write = (data) => {
      assert(data instanceof Uint8Array)
      this.bytes = Buffer.concat([this.bytes, data])
    }
  }

  shows(text) {
    return until(() => `${JSON.stringify(text)} in ${JSON.stringify(this.bytes.toString())}`, () => this.bytes.includes(text))
  }
}

const typed = (text) => new TextEncoder().encode(text)

export async function pty({ sdk, pty, commands, check }) {
  await check('a terminal has a size, a directory and an environment', async () => {
    const screen = new Screen()
    const handle = await pty.create({ cols: 91, rows: 17, onData: screen.write, cwd: '/tmp', envs: { E2E_OWN: 'own' }, user: 'user' })
    await pty.sendInput(handle.pid, typed('echo "<$(stty size)|$TERM|$E2E_OWN|$PWD|$(whoami)>"\n'))
    await screen.shows('<17 91|xterm-256color|own|/tmp|user>')
    await pty.resize(handle.pid, { cols: 123, rows: 45 })
    await pty.sendInput(handle.pid, typed('echo "<$(stty size)>"\n'))
    await screen.shows('<45 123>')
    const listed = (await commands.list()).find((p) => p.pid === handle.pid)
    assert.deepEqual([listed.cmd, listed.args], ['/bin/bash', ['-i', '-l']])
    await pty.sendInput(handle.pid, typed("stty -echo -opost; printf '<\\001\\n\\377>'; exit 3\n"))
    await fails(sdk.CommandExitError, handle.wait(), /exit status 3/)
    assert(screen.bytes.includes(Buffer.from([0x3c, 1, 10, 0xff, 0x3e])), JSON.stringify(screen.bytes.toString('latin1')))
  })
  await check('another connection to a terminal', async () => {
    const [first, second] = [new Screen(), new Screen()]
    const handle = await pty.create({ cols: 80, rows: 24, onData: first.write, timeoutMs: 0 })
    const other = await pty.connect(handle.pid, { onData: second.write })
    await pty.sendInput(other.pid, typed('echo "<$((40 + 2))>"\n'))
    await first.shows('<42>')
    await second.shows('<42>')
    await handle.disconnect()
    await pty.sendInput(other.pid, typed('echo "<$((40 + 3))>"\n'))
    await second.shows('<43>')
    assert(!first.bytes.includes('<43>'))
    assert.equal(await pty.kill(other.pid), true)
    await fails(sdk.CommandExitError, other.wait(), /signal: killed/)
    await until('nothing to kill', async () => !(await pty.kill(other.pid)))
  })
  await check('what is no terminal', async () => {
    const handle = await commands.run('cat', { background: true, stdin: true })
    await fails(sdk.SandboxError, pty.sendInput(handle.pid, typed('x')))
    await fails(sdk.SandboxError, pty.resize(handle.pid, { cols: 1, rows: 1 }))
    await handle.kill()
    const screen = new Screen()
    const terminal = await pty.create({ cols: 80, rows: 24, onData: screen.write })
    await fails(sdk.SandboxError, commands.sendStdin(terminal.pid, 'x'))
    await terminal.kill()
    await fails(sdk.NotFoundError, pty.connect(999_999, { onData: screen.write }))
    await fails(sdk.NotFoundError, pty.sendInput(999_999, typed('x')))
    await fails(sdk.NotFoundError, pty.resize(999_999, { cols: 1, rows: 1 }))
    await fails(sdk.InvalidArgumentError, pty.create({ cols: 80, rows: 24, onData: screen.write, cwd: '/no/such/folder' }))
  })
}
