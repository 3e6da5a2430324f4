// Signed addresses, as a browser would use them: without the SDK.
import { strict as assert } from 'node:assert'

const refused = async (response, message) => {
  assert.equal(response.status, 401)
  const body = await response.json()
  assert.equal(body.code, 401)
  assert.match(body.message, message)
}

const altered = (address, change) => {
  const url = new URL(address)
  change(url.searchParams)
  return url
}

export async function signed({ sdk, sandbox, files, check }) {
  const path = '/home/user/signed/file ä'
  await check('a signed address reads', async () => {
    await files.write(path, 'content')
    for (const options of [{}, { user: 'user' }, { useSignatureExpiration: 3600 }]) {
      const response = await fetch(await sandbox.downloadUrl(path, options))
      assert.equal(response.status, 200, JSON.stringify(options))
      assert.equal(await response.text(), 'content')
    }
    const part = await fetch(await sandbox.downloadUrl(path), { headers: { Range: 'bytes=2-4' } })
    assert.deepEqual([part.status, part.headers.get('Content-Range'), await part.text()], [206, 'bytes 2-4/7', 'nte'])
    assert.equal((await fetch(await sandbox.downloadUrl('/home/user/missing'))).status, 404)
  })
  await check('a signed address writes', async () => {
    const form = new FormData()
    form.append('file', new Blob(['by form']), 'ignored')
    const address = await sandbox.uploadUrl(path, { useSignatureExpiration: 3600 })
    const response = await fetch(address, { method: 'POST', body: form })
    assert.equal(response.status, 200)
    assert.match(response.headers.get('Content-Type'), /^application\/json/)
    const [told] = await response.json()
    assert.deepEqual([told.name, told.type, told.path], ['file ä', 'file', path])
    assert.equal(await files.read(path), 'by form')
    const raw = await fetch(await sandbox.uploadUrl(path), {
      method: 'POST', body: 'by stream', headers: { 'Content-Type': 'application/octet-stream' },
    })
    assert.equal(raw.status, 200)
    assert.equal(await files.read(path), 'by stream')
    // Without a path each part names its own.
    const several = new FormData()
    several.append('file', new Blob(['1']), '/home/user/signed/one')
    several.append('file', new Blob(['2']), '/home/user/signed/two')
    assert.equal((await fetch(await sandbox.uploadUrl(), { method: 'POST', body: several })).status, 200)
    assert.equal((await files.read('signed/one')) + (await files.read('signed/two')), '12')
  })
  await check('a signature is for one thing', async () => {
    const address = await sandbox.downloadUrl(path, { useSignatureExpiration: 3600 })
    await refused(await fetch(altered(address, (query) => query.delete('signature'))), /missing signature/)
    await refused(await fetch(altered(address, (query) => query.set('path', '/etc/passwd'))), /invalid signature/)
    await refused(await fetch(altered(address, (query) => query.set('username', 'user'))), /invalid signature/)
    await refused(await fetch(altered(address, (query) => query.set('signature_expiration', '9999999999'))), /invalid signature/)
    await refused(await fetch(address, { method: 'POST', body: 'x', headers: { 'Content-Type': 'application/octet-stream' } }), /invalid signature/)
    await refused(await fetch(await sandbox.uploadUrl(path)), /invalid signature/)
    await refused(await fetch(address, { headers: { 'X-Access-Token': 'wrong' } }), /./)
    const late = await sdk.getSignature({
      path, operation: 'read', user: undefined, expirationInSeconds: -10, envdAccessToken: sandbox.envdAccessToken,
    })
    const expired = altered(address, (query) => {
      query.set('signature', late.signature)
      query.set('signature_expiration', String(late.expiration))
    })
    await refused(await fetch(expired), /expired/)
    assert.equal(await files.read(path), 'by stream')
  })
}
