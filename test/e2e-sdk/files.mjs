// Files: whole, as streams, compressed, with metadata; folders.
import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import { fails } from './checks.mjs'

// Not a whole number of anybody's blocks, with each byte in it.
const big = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), randomBytes(1_000_001)])

const bufferOf = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)

function streamOf(bytes) {
  let at = 0
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close()
      controller.enqueue(new Uint8Array(bytes.subarray(at, at + 65_537)))
      at += 65_537
    },
  })
}

async function collect(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

export async function files(t) {
  await contents(t)
  await uploads(t)
  await metadata(t)
  await refusals(t)
  await entries(t)
  await folders(t)
}

async function contents({ files, commands, check }) {
  await check('every form of content, every form of reading', async () => {
    const forms = { buffer: () => bufferOf(big), blob: () => new Blob([big]), stream: () => streamOf(big) }
    for (const [name, make] of Object.entries(forms)) {
      for (const options of [{}, { useOctetStream: true }, { useOctetStream: false }, { gzip: true }]) {
        const path = `/home/user/forms/${name}`
        const told = await files.write(path, make(), options)
        assert.deepEqual({ ...told }, { name, type: 'file', path, metadata: undefined }, JSON.stringify(options))
        const got = await files.read(path, { format: 'bytes' })
        assert(got instanceof Uint8Array)
        assert(big.equals(got), `${name} ${JSON.stringify(options)}`)
        await files.remove(path)
      }
    }
    await files.write('/home/user/forms/big', bufferOf(big))
    assert(big.equals(await collect(await files.read('/home/user/forms/big', { format: 'stream' }))))
    assert(big.equals(Buffer.from(await (await files.read('/home/user/forms/big', { format: 'blob' })).arrayBuffer())))
    assert(big.equals(await files.read('/home/user/forms/big', { format: 'bytes', gzip: true })))
    await files.remove('/home/user/forms')
  })
  await check('text', async () => {
    for (const options of [{}, { useOctetStream: true }, { gzip: true }]) {
      await files.write('text', 'ä€\r\n\0end', options)
      assert.equal(await files.read('text'), 'ä€\r\n\0end')
      assert.equal(await files.read('/home/user/text', { gzip: true, user: 'user' }), 'ä€\r\n\0end')
    }
    assert.equal((await commands.run('od -An -tx1 ~/text')).stdout.trim(), 'c3 a4 e2 82 ac 0d 0a 00 65 6e 64')
    await files.write('text', 'short')
    assert.equal(await files.read('text'), 'short')
  })
  await check('an empty file is empty, not missing', async () => {
    for (const options of [{}, { useOctetStream: true }, { gzip: true }]) {
      await files.write('empty', '', options)
      assert.equal(await files.read('empty'), '')
      assert.equal((await files.read('empty', { format: 'bytes' })).length, 0)
      assert.equal((await files.read('empty', { format: 'blob' })).size, 0)
      assert.equal((await collect(await files.read('empty', { format: 'stream' }))).length, 0)
    }
  })
  await check('a stream that is left early', async () => {
    await files.write('left', bufferOf(big))
    const reader = (await files.read('left', { format: 'stream' })).getReader()
    assert((await reader.read()).value.length > 0)
    await reader.cancel()
    assert(big.equals(await files.read('left', { format: 'bytes' })))
  })
}

async function uploads({ files, commands, check }) {
  await check('parents are made, and belong to the user', async () => {
    await files.write('new/deep/file', 'x', { user: 'user' })
    const { stdout } = await commands.run("stat -c '%U:%G %a %n' new new/deep new/deep/file", { cwd: '~' })
    assert.equal(stdout, 'user:user 755 new\nuser:user 755 new/deep\nuser:user 644 new/deep/file\n')
  })
  await check('a mode is kept', async () => {
    await commands.run('echo echo one > ~/program; chmod 750 ~/program')
    await files.write('program', 'echo two')
    assert.equal((await commands.run('stat -c %a ~/program; ~/program')).stdout, '750\ntwo\n')
  })
  await check('several files in one call', async () => {
    const names = ['plain', 'with space', "it's one", 'ünïcode €', 'a%20b+c&d=e?f#g', 'back\\slash', 'sub/dir/file']
    const list = names.map((name, i) => ({ path: `/home/user/many/${name}`, data: i % 2 ? `text ${i}` : new Blob([`blob ${i}`]) }))
    for (const write of [(l) => files.write(l), (l) => files.writeFiles(l), (l) => files.write(l, { useOctetStream: true })]) {
      const told = await write(list)
      assert.deepEqual(told.map((f) => f.path), list.map((f) => f.path))
      assert.deepEqual(told.map((f) => f.name), names.map((name) => name.split('/').at(-1)))
      for (const [i, { path }] of list.entries()) {
        assert.equal(await files.read(path), i % 2 ? `text ${i}` : `blob ${i}`)
      }
      const { stdout } = await commands.run("find many -type f -printf '%P\\0' | sort -z", { cwd: '~' })
      assert.deepEqual(stdout.split('\0').filter(Boolean).sort(), [...names].sort())
      await files.remove('many')
    }
    assert.deepEqual(await files.writeFiles([]), [])
  })
  await check('a name that a form cannot carry', async () => {
    for (const options of [{}, { useOctetStream: true }]) {
      const path = '/home/user/many/"quoted" and\nbroken'
      assert.equal((await files.write(path, 'x', options)).path, path)
      assert.equal(await files.read(path), 'x')
      assert.equal((await files.list('many')).map((entry) => entry.path).join(), path)
      await files.remove('many')
    }
  })
}

async function metadata({ sdk, files, check }) {
  await check('metadata goes with a file', async () => {
    const given = { author: 'somebody', purpose: 'a test & more' }
    for (const options of [{}, { useOctetStream: true }]) {
      const told = await files.write('noted', 'x', { metadata: given, ...options })
      assert.deepEqual(told.metadata, given)
      assert.deepEqual((await files.getInfo('noted')).metadata, given)
      const listed = (await files.list('.')).find((entry) => entry.name === 'noted')
      assert.deepEqual(listed.metadata, given)
      assert.deepEqual((await files.rename('noted', 'renamed')).metadata, given)
      await files.write('renamed', 'y')
      assert.equal((await files.getInfo('renamed')).metadata, undefined)
    }
    await fails(sdk.InvalidArgumentError, files.write('noted', 'x', { metadata: { 'bad key': 'x' } }))
    await fails(sdk.InvalidArgumentError, files.write('noted', 'x', { metadata: { key: 'x'.repeat(5000) } }))
  })
}

async function refusals({ sdk, files, commands, check }) {
  await check('what is not there', async () => {
    for (const format of ['text', 'bytes', 'blob', 'stream']) {
      await fails(sdk.FileNotFoundError, files.read('/home/user/missing', { format }))
    }
    await fails(sdk.FileNotFoundError, files.getInfo('missing'))
    await fails(sdk.FileNotFoundError, files.list('missing'))
    await fails(sdk.FileNotFoundError, files.rename('missing', 'other'))
    assert.equal(await files.exists('missing'), false)
    await files.remove('missing')
  })
  await check('what is not of the right kind', async () => {
    await files.makeDir('kind/folder')
    await files.write('kind/file', 'x')
    await fails(sdk.InvalidArgumentError, files.read('kind/folder'))
    for (const options of [{}, { useOctetStream: true }]) {
      await fails(sdk.InvalidArgumentError, files.write('kind/folder', 'x', options))
    }
    await fails(sdk.InvalidArgumentError, files.list('kind/file'))
    await fails(sdk.InvalidArgumentError, files.makeDir('kind/file'))
    await fails(sdk.InvalidArgumentError, files.list('kind', { depth: 0 }))
  })
  await check('who is nobody', async () => {
    for (const user of ['root', 'somebody']) {
      await fails(sdk.AuthenticationError, files.read('text', { user }))
      await fails(sdk.AuthenticationError, files.write('text', 'x', { user }))
      await fails(sdk.AuthenticationError, files.list('.', { user }))
      await fails(sdk.AuthenticationError, files.exists('text', { user }))
    }
  })
  await check('a disk that is full', async () => {
    await commands.run('head -c 1G /dev/zero > ~/filler; true')
    for (const options of [{}, { useOctetStream: true }, { gzip: true }]) {
      await fails(sdk.NotEnoughSpaceError, files.write('more', bufferOf(big), options))
    }
    assert.equal(await files.exists('more'), false)
    await files.remove('filler')
    await files.write('more', 'x')
  })
}

async function entries({ files, commands, check }) {
  await check('what is known of a file', async () => {
    const before = Date.now()
    const told = await files.write('known/file', '12345')
    assert.equal(told.path, '/home/user/known/file')
    const info = await files.getInfo('known/file')
    const { modifiedTime, ...rest } = info
    assert.deepEqual(rest, {
      name: 'file', type: 'file', path: '/home/user/known/file', size: 5, mode: 0o644, permissions: '-rw-r--r--',
      owner: 'user', group: 'user', symlinkTarget: undefined, metadata: undefined,
    })
    assert(modifiedTime instanceof Date && Math.abs(modifiedTime.getTime() - before) < 60_000, String(modifiedTime))
    const folder = await files.getInfo('known', { user: 'user' })
    assert.deepEqual([folder.type, folder.mode, folder.permissions], ['dir', 0o755, 'drwxr-xr-x'])
    await commands.run('ln -s file known/link; ln -s nowhere known/broken', { cwd: '~' })
    const link = await files.getInfo('known/link')
    assert.deepEqual([link.name, link.type, link.size, link.symlinkTarget], ['link', 'file', 5, '/home/user/known/file'])
    assert.equal(await files.exists('known/file'), true)
    assert.equal(await files.exists('known'), true)
  })
  await check('a listing', async () => {
    await files.writeFiles([
      { path: 'tree/b/c/d', data: '1' },
      { path: 'tree/a', data: '22' },
    ])
    const names = (list) => list.map((entry) => `${entry.type} ${entry.path}`)
    assert.deepEqual(names(await files.list('tree')), ['file /home/user/tree/a', 'dir /home/user/tree/b'])
    assert.deepEqual(names(await files.list('/home/user/tree', { depth: 2 })), [
      'file /home/user/tree/a', 'dir /home/user/tree/b', 'dir /home/user/tree/b/c',
    ])
    assert.deepEqual(names(await files.list('tree', { depth: 9 })), [
      'file /home/user/tree/a', 'dir /home/user/tree/b', 'dir /home/user/tree/b/c', 'file /home/user/tree/b/c/d',
    ])
    assert.equal((await files.list('tree'))[0].size, 2)
    // A link to nothing has no type, and the SDK leaves it out.
    assert.deepEqual((await files.list('known')).map((entry) => entry.name), ['file', 'link'])
  })
}

async function folders({ sdk, files, commands, check }) {
  await check('a folder is made once', async () => {
    assert.equal(await files.makeDir('made/in/depth'), true)
    assert.equal(await files.makeDir('made/in/depth'), false)
    assert.equal((await commands.run("stat -c '%F %U %a' ~/made/in/depth")).stdout, 'directory user 755\n')
  })
  await check('a file and a folder get another name', async () => {
    await files.write('old/file', 'content')
    const info = await files.rename('old/file', 'new-place/deep/file')
    assert.deepEqual([info.name, info.path, info.type, info.size], ['file', '/home/user/new-place/deep/file', 'file', 7])
    assert.equal(await files.exists('old/file'), false)
    assert.equal((await files.rename('new-place', 'newer')).type, 'dir')
    assert.equal(await files.read('newer/deep/file'), 'content')
    await files.write('target', 'old')
    await files.rename('newer/deep/file', 'target')
    assert.equal(await files.read('target'), 'content')
  })
  await check('what is removed is gone, with all below it', async () => {
    await files.write('gone/deep/file', 'x')
    await commands.run('ln -s /etc gone/link', { cwd: '~' })
    await files.remove('gone/deep/file')
    assert.equal(await files.exists('gone/deep/file'), false)
    await files.remove('gone')
    assert.equal(await files.exists('gone'), false)
    assert.equal(await files.exists('/etc/passwd'), true)
    // A read-only place says so.
    await fails(sdk.SandboxError, files.remove('/usr/bin/env'))
  })
}
