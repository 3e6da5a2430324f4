// Who may reach a sandbox, and how its end looks.
import { strict as assert } from 'node:assert'
import { fails, until } from './checks.mjs'

export async function lifecycle({ sdk, sandbox, files, check }) {
  const { Sandbox } = sdk
  await check('a sandbox is found again', async () => {
    const before = await sandbox.getInfo()
    assert.deepEqual(
      [before.sandboxId, before.templateId, before.state, before.metadata],
      [sandbox.sandboxId, 'base', 'running', { purpose: 'end to end' }]
    )
    await files.write('kept', 'kept')
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 3_000_000 })
    assert.equal(await again.files.read('kept'), 'kept')
    assert((await again.getInfo()).endAt.getTime() - before.endAt.getTime() > 1_000_000)
    await sandbox.setTimeout(300_000)
    assert((await again.getInfo()).endAt.getTime() - Date.now() < 301_000)
    assert.equal(await sandbox.isRunning(), true)
  })
  await check('who has no token gets nothing', async () => {
    for (const envdAccessToken of [undefined, 'wrong']) {
      const stranger = new Sandbox({ sandboxId: sandbox.sandboxId, envdVersion: '0.6.13', envdAccessToken })
      await fails(sdk.AuthenticationError, stranger.commands.run('true'))
      await fails(sdk.AuthenticationError, stranger.commands.list())
      await fails(sdk.AuthenticationError, stranger.files.list('/'))
      await fails(sdk.AuthenticationError, stranger.files.read('/etc/passwd'))
      await fails(sdk.AuthenticationError, stranger.files.write('text', 'x'))
      await fails(sdk.AuthenticationError, stranger.files.write('text', 'x', { useOctetStream: true }))
      await fails(sdk.AuthenticationError, stranger.pty.create({ cols: 80, rows: 24, onData() {} }))
      await fails(sdk.AuthenticationError, stranger.files.watchDir('/home/user', () => {}))
      assert.equal(await stranger.isRunning(), true)
    }
    await fails(sdk.AuthenticationError, Sandbox.create('base', { apiKey: `e2b_${'0'.repeat(40)}` }))
  })
  await check('the control plane of a sandbox is not to be reached', async () => {
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': sandbox.envdAccessToken }
    for (const path of ['/init', '//init', '/data/../init', '/berm.agent.v1.Control/Probe']) {
      const response = await fetch(process.env.E2B_SANDBOX_URL + path, { method: 'POST', headers, body: '{}' })
      assert.equal(response.status, 404, path)
    }
    assert.equal(await files.read('kept'), 'kept')
  })
  await check('what goes on when a sandbox is killed', async () => {
    const other = await Sandbox.create('base', { timeoutMs: 60_000 })
    const command = await other.commands.run('sleep 60', { background: true })
    let exit
    await other.files.watchDir('/home/user', () => {}, { onExit: (error) => (exit = error) })
    assert.equal(await other.kill(), true)
    await fails(sdk.TimeoutError, command.wait())
    await until('an end of the watch', () => exit !== undefined)
    assert.equal(exit.constructor, sdk.TimeoutError)
    await gone(sdk, other)
  })
  await check('a sandbox whose time is up', async () => {
    const other = await Sandbox.create('base', { timeoutMs: 1000 })
    await until('an end', async () => !(await other.isRunning()))
    await gone(sdk, other)
  })
  await check('a sandbox that never was', async () => {
    await fails(sdk.SandboxNotFoundError, Sandbox.connect('nosuchsandbox'))
    await fails(sdk.SandboxError, Sandbox.create('no-such-template'))
  })
}

/** A sandbox that is gone is gone in every call. */
async function gone(sdk, other) {
  assert.equal(await other.isRunning(), false)
  assert.equal(await other.kill(), false)
  await fails(sdk.SandboxNotFoundError, other.getInfo())
  await fails(sdk.SandboxNotFoundError, other.commands.run('true'))
  await fails(sdk.TimeoutError, other.commands.list())
  await fails(sdk.TimeoutError, other.files.list('/'))
  await fails(sdk.TimeoutError, other.files.read('/etc/passwd'))
  await fails(sdk.TimeoutError, other.files.write('x', 'x'))
}
