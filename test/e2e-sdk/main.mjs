// Drives a sandbox through the JavaScript SDK of E2B, as it is shipped:
//   node main.mjs FOLDER ALIAS
// FOLDER has the packages, ALIAS names one of them. The bridge is in the
// environment, as E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL.
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { Account, Checks } from './checks.mjs'
import { commands } from './commands.mjs'
import { files } from './files.mjs'
import { lifecycle } from './lifecycle.mjs'
import { pty } from './pty.mjs'
import { signed } from './signed.mjs'
import { watching } from './watching.mjs'

const [folder, alias] = process.argv.slice(2)
const require = createRequire(join(folder, 'package.json'))
const sdk = require(alias)
const account = new Account(join(dirname(require.resolve(alias)), 'index.d.ts'))
const checks = new Checks(`${alias.replace(/-(\d)(\d+)$/, ' $1.$2')} on JavaScript`)

const sandbox = await sdk.Sandbox.create('base', {
  timeoutMs: 300_000,
  envs: { E2E_WIDE: 'wide' },
  metadata: { purpose: 'end to end' },
})
const t = {
  sdk,
  sandbox,
  check: (title, run) => checks.check(title, run),
  commands: account.watch(sandbox.commands),
  pty: account.watch(sandbox.pty),
  files: account.watch(sandbox.files),
}
try {
  for (const part of [commands, pty, files, watching, signed, lifecycle]) await part(t)
} finally {
  await sandbox.kill()
}
await checks.check('every public member was called', async () =>
  account.settle(['Commands', 'Pty', 'Filesystem', 'CommandHandle', 'WatchHandle'])
)
process.exitCode = checks.report() ? 0 : 1
