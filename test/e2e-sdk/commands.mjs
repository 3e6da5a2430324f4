// Commands: in the foreground and in the background, their input, their end.
import { strict as assert } from 'node:assert'
import { createHash } from 'node:crypto'
import { fails, until } from './checks.mjs'

const sha256 = (text) => createHash('sha256').update(text).digest('hex')

export async function commands(t) {
  await foreground(t)
  await input(t)
  await background(t)
  await ends(t)
}

async function foreground({ sdk, commands, check }) {
  await check('a command gives its output, stream by stream', async () => {
    const heard = { out: '', err: '' }
    const result = await commands.run("printf 'one\\ntwo'; printf 'ä€\\t' >&2", {
      onStdout: (text) => (heard.out += text),
      onStderr: (text) => (heard.err += text),
    })
    assert.deepEqual({ ...result }, { exitCode: 0, error: undefined, stdout: 'one\ntwo', stderr: 'ä€\t' })
    assert.deepEqual(heard, { out: 'one\ntwo', err: 'ä€\t' })
  })
  await check('much output comes whole and in order', async () => {
    const want = Array.from({ length: 200_000 }, (_, i) => `${i + 1}\n`).join('')
    const { stdout } = await commands.run('seq 200000')
    assert.equal(stdout.length, want.length)
    assert.equal(sha256(stdout), sha256(want))
  })
  await check('a character that comes in two parts is one', async () => {
    const { stdout } = await commands.run("printf '\\303'; sleep 0.2; printf '\\244'; printf '\\377'")
    assert.equal(stdout, 'ä\ufffd')
  })
  await check('a failure has its status and its output', async () => {
    const error = await fails(sdk.CommandExitError, commands.run('echo out; echo err >&2; exit 7'))
    assert(error instanceof sdk.SandboxError)
    assert.deepEqual(
      { code: error.exitCode, out: error.stdout, err: error.stderr, error: error.error },
      { code: 7, out: 'out\n', err: 'err\n', error: 'exit status 7' }
    )
    await fails(sdk.CommandExitError, commands.run('no-such-program-here'), /exit status 127/)
  })
  await check('environment, directory and user', async () => {
    const { stdout } = await commands.run('echo $E2E_WIDE $E2E_OWN $HOME $USER $LOGNAME; pwd; whoami; umask', {
      envs: { E2E_OWN: 'own' },
      cwd: '/tmp',
      user: 'user',
    })
    assert.equal(stdout, 'wide own /home/user user user\n/tmp\nuser\n0022\n')
    assert.equal((await commands.run('echo $E2E_WIDE', { envs: { E2E_WIDE: 'narrow' } })).stdout, 'narrow\n')
    assert.equal((await commands.run('pwd', { cwd: '~' })).stdout, '/home/user\n')
    assert.equal((await commands.run('pwd')).stdout, '/home/user\n')
  })
  await check('what cannot start says why', async () => {
    await fails(sdk.InvalidArgumentError, commands.run('true', { cwd: '/no/such/folder' }), /cwd '\/no\/such\/folder' does not exist/)
    await fails(sdk.AuthenticationError, commands.run('true', { user: 'somebody' }))
    await fails(sdk.AuthenticationError, commands.run('true', { user: 'root' }))
  })
}

async function input({ sdk, commands, check }) {
  await check('input is what was sent, byte by byte', async () => {
    assert.equal(commands.supportsStdinClose, true)
    const bytes = Uint8Array.from({ length: 256 }, (_, i) => i)
    const handle = await commands.run('od -An -v -tu1', { background: true, stdin: true })
    await commands.sendStdin(handle.pid, bytes)
    await handle.sendStdin('ä\n')
    await commands.closeStdin(handle.pid)
    const { stdout } = await handle.wait()
    assert.deepEqual(stdout.trim().split(/\s+/).map(Number), [...bytes, 0xc3, 0xa4, 10])
  })
  await check('a handle closes the input too', async () => {
    const handle = await commands.run('cat; echo end', { background: true, stdin: true })
    await handle.sendStdin('text\n')
    await handle.closeStdin()
    await handle.closeStdin()
    assert.equal((await handle.wait()).stdout, 'text\nend\n')
  })
  await check('without input there is none', async () => {
    assert.equal((await commands.run('cat; echo end')).stdout, 'end\n')
    const handle = await commands.run('sleep 60', { background: true })
    await fails(sdk.SandboxError, commands.sendStdin(handle.pid, 'text'))
    await handle.kill()
  })
  await check('input for nobody', async () => {
    await fails(sdk.NotFoundError, commands.sendStdin(999_999, 'text'))
    await fails(sdk.NotFoundError, commands.closeStdin(999_999))
  })
}

async function background({ sdk, commands, check }) {
  await check('a command in the background is listed while it runs', async () => {
    const handle = await commands.run('read line; echo "got $line"; exit 3', {
      background: true, stdin: true, cwd: '/tmp', envs: { E2E_OWN: 'own' },
    })
    const listed = (await commands.list()).filter((p) => p.pid === handle.pid)
    assert.deepEqual(listed, [
      { pid: handle.pid, cmd: '/bin/bash', args: ['-l', '-c', 'read line; echo "got $line"; exit 3'], envs: { E2E_OWN: 'own' }, cwd: '/tmp' },
    ])
    assert.deepEqual([handle.exitCode, handle.error, handle.stdout, handle.stderr], [undefined, undefined, '', ''])
    await handle.sendStdin('word\n')
    await fails(sdk.CommandExitError, handle.wait(), /exit status 3/)
    assert.deepEqual([handle.exitCode, handle.error, handle.stdout, handle.stderr], [3, 'exit status 3', 'got word\n', ''])
    assert.deepEqual((await commands.list()).filter((p) => p.pid === handle.pid), [])
  })
  await check('another connection sees what comes, and the end', async () => {
    const first = await commands.run('while read line; do echo "$line"; echo "$line" >&2; done', { background: true, stdin: true })
    const heard = { out: '', err: '' }
    const second = await commands.connect(first.pid, {
      onStdout: (text) => (heard.out += text),
      onStderr: (text) => (heard.err += text),
    })
    assert.equal(second.pid, first.pid)
    await second.sendStdin('one\n')
    await until(() => `${first.stdout} ${second.stdout}`, () => first.stdout === 'one\n' && second.stdout === 'one\n')
    await first.disconnect()
    await second.sendStdin('two\n')
    await second.closeStdin()
    assert.deepEqual({ ...(await second.wait()) }, { exitCode: 0, error: undefined, stdout: 'one\ntwo\n', stderr: 'one\ntwo\n' })
    assert.deepEqual(heard, { out: 'one\ntwo\n', err: 'one\ntwo\n' })
  })
  await check('a command outlives who started it', async () => {
    const handle = await commands.run('read line; exit 4', { background: true, stdin: true })
    await handle.disconnect()
    await fails(sdk.TimeoutError, handle.wait(), /canceled/)
    const again = await commands.connect(handle.pid)
    await again.sendStdin('go\n')
    await fails(sdk.CommandExitError, again.wait(), /exit status 4/)
    // The end is kept for a while.
    const late = await commands.connect(handle.pid)
    await fails(sdk.CommandExitError, late.wait(), /exit status 4/)
    await fails(sdk.NotFoundError, commands.connect(999_999))
  })
}

async function ends({ sdk, commands, check }) {
  const running = async (program) => (await commands.run(`pgrep -xf '${program}' || true`)).stdout.trim().split('\n').filter(Boolean)
  await check('a kill ends the tree', async () => {
    const handle = await commands.run('setsid sleep 71717 & sleep 71717 & wait', { background: true })
    await until('two sleepers', async () => (await running('sleep 71717')).length === 2)
    assert.equal(await handle.kill(), true)
    const error = await fails(sdk.CommandExitError, handle.wait(), /signal: killed/)
    assert.equal(error.exitCode, -1)
    await until('no sleeper', async () => (await running('sleep 71717')).length === 0)
    await until('nothing to kill', async () => !(await handle.kill()))
  })
  await check('a kill by number', async () => {
    const handle = await commands.run('sleep 60', { background: true })
    assert.equal(await commands.kill(handle.pid), true)
    await fails(sdk.CommandExitError, handle.wait(), /signal: killed/)
    // The rest of its tree may take a moment longer.
    await until('nothing to kill', async () => !(await commands.kill(handle.pid)))
    assert.equal(await commands.kill(999_999), false)
  })
  await check('time is up', async () => {
    await fails(sdk.TimeoutError, commands.run('sleep 72727', { timeoutMs: 700 }))
    await until('no sleeper', async () => (await running('sleep 72727')).length === 0)
  })
}
