// Folders that are watched.
import { strict as assert } from 'node:assert'
import { fails, until } from './checks.mjs'

/** Notes events as "type name". */
class Log {
  constructor() {
    this.events = []
    this.note = (event) => this.events.push(event)
  }

  lines() {
    return this.events.map((event) => `${event.type} ${event.name}`)
  }

  has(...wanted) {
    return until(() => `${wanted} in ${this.lines()}`, () => wanted.every((line) => this.lines().includes(line)))
  }
}

export async function watching({ sdk, files, commands, check }) {
  await check('a folder tells what happens in it', async () => {
    await files.makeDir('watched/sub')
    const log = new Log()
    let exit
    const handle = await files.watchDir('watched', log.note, { onExit: (error) => (exit = error ?? 'stopped') })
    await commands.run('echo x > watched/a', { cwd: '~' })
    await log.has('create a', 'write a')
    await commands.run('chmod 600 watched/a', { cwd: '~' })
    await log.has('chmod a')
    await commands.run('mv watched/a watched/b', { cwd: '~' })
    await log.has('rename a', 'create b')
    await files.write('watched/uploaded', 'x')
    await log.has('create uploaded', 'write uploaded')
    await files.rename('watched/uploaded', 'watched/moved')
    await log.has('rename uploaded', 'create moved')
    await files.makeDir('watched/new')
    await log.has('create new')
    await files.remove('watched/b')
    await log.has('remove b')
    // Below it is not in it, unless asked for.
    await files.write('watched/sub/deep', 'x')
    await files.write('watched/last', 'x')
    await log.has('create last')
    assert(!log.lines().some((line) => line.includes('deep')), log.lines().join())
    // Nor how an upload is made.
    const names = ['a', 'b', 'uploaded', 'moved', 'new', 'last', 'sub']
    assert(log.events.every((event) => names.includes(event.name)), log.lines().join())
    assert(log.events.every((event) => event.entry === undefined))
    await handle.stop()
    await until('an end', () => exit !== undefined)
    const seen = log.events.length
    await files.write('watched/after', 'x')
    assert.equal(log.events.length, seen)
  })
  await check('a tree tells what happens below', async () => {
    await files.makeDir('forest/old')
    const log = new Log()
    const handle = await files.watchDir('/home/user/forest', log.note, { recursive: true, includeEntry: true, user: 'user', timeoutMs: 0 })
    await files.write('forest/old/file', '12345')
    await log.has('create old/file')
    // Also in what is new.
    await files.makeDir('forest/new/deep')
    await log.has('create new')
    await commands.run('echo x > forest/new/deep/file; sleep 0.1; echo y >> forest/new/deep/file', { cwd: '~' })
    await log.has('write new/deep/file')
    const entry = log.events.find((event) => event.type === 'create' && event.name === 'old/file').entry
    assert.deepEqual([entry.name, entry.type, entry.path, entry.owner], ['file', 'file', '/home/user/forest/old/file', 'user'])
    await handle.stop()
  })
  await check('what cannot be watched', async () => {
    const log = new Log()
    await files.write('single', 'x')
    await fails(sdk.FileNotFoundError, files.watchDir('missing', log.note))
    await fails(sdk.InvalidArgumentError, files.watchDir('single', log.note))
    await fails(sdk.AuthenticationError, files.watchDir('watched', log.note, { user: 'somebody' }))
  })
  await check('a watch ends with its time', async () => {
    let exit
    await files.watchDir('watched', () => {}, { timeoutMs: 700, onExit: (error) => (exit = error) })
    await until('an end', () => exit !== undefined)
    assert.equal(exit.constructor, sdk.TimeoutError)
  })
}
