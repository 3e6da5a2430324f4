// The runner of the checks, what they wait with, and the account of the SDK's
// methods that they called.
import { strict as assert } from 'node:assert'
import { readFileSync } from 'node:fs'

const checkTimeout = 60_000

/** Counts and tells checks; the process ends as they did. */
export class Checks {
  constructor(name) {
    this.name = name
    this.passed = 0
    this.failed = 0
  }

  /** Runs one check. A failure is told and does not end the others. */
  async check(title, run) {
    try {
      await within(checkTimeout, run())
      this.passed++
    } catch (error) {
      this.failed++
      console.log(`FAIL ${this.name}: ${title}\n${indent(error?.stack ?? String(error))}`)
    }
  }

  report() {
    console.log(`${this.name}: ${this.passed} passed, ${this.failed} failed`)
    return this.failed === 0 && this.passed > 0
  }
}

const indent = (text) => text.replace(/^/gm, '     ')

/** Gives the promise's value, or fails after ms. */
export async function within(ms, promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

/** Asks again until the answer is true, or fails with what it last was. */
export async function until(what, ask, ms = 20_000) {
  const end = Date.now() + ms
  for (;;) {
    if (await ask()) return
    if (Date.now() > end) throw new Error(`not so after ${ms} ms: ${typeof what === 'function' ? what() : what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** Wants a failure of exactly this class, and gives it. */
export async function fails(kind, promise, pattern) {
  let value
  try {
    value = await promise
  } catch (error) {
    assert.equal(error?.constructor, kind, `want ${kind.name}, got ${error?.constructor?.name}: ${error?.stack}`)
    if (pattern) assert.match(error.message, pattern)
    return error
  }
  assert.fail(`want ${kind.name}, got ${JSON.stringify(value)}`)
}

/** Keeps the account of what the script itself calls of the SDK's classes. */
export class Account {
  constructor(declarations) {
    this.text = readFileSync(declarations, 'utf8')
    this.called = new Map() // class -> names
  }

  /**
   * Gives an object that does as target does and notes each method and getter of
   * its class that is used through it. What the SDK calls by itself is not noted.
   */
  watch(target) {
    const names = this.names(target)
    return new Proxy(target, {
      get: (_, key) => {
        const value = Reflect.get(target, key, target)
        const isMethod = typeof value === 'function'
        if (!isMethod) names.add(key)
        return isMethod ? (...args) => (names.add(key), this.wrap(value.apply(target, args))) : value
      },
    })
  }

  /** Handles that come out of a call are watched too. */
  wrap(value) {
    if (value instanceof Promise) return value.then((v) => this.wrap(v))
    return /^(Command|Watch)Handle$/.test(value?.constructor?.name) ? this.watch(value) : value
  }

  names(target) {
    const kind = target.constructor
    if (!this.called.has(kind)) this.called.set(kind, new Set())
    return this.called.get(kind)
  }

  /** What is public in a class but was not called. */
  missing(kind) {
    const hidden = this.hidden(kind.name)
    return Object.getOwnPropertyNames(kind.prototype).filter(
      (name) => name !== 'constructor' && !hidden.has(name) && !this.called.get(kind).has(name)
    )
  }

  /** The members that the SDK's own declarations call private. */
  hidden(name) {
    const body = this.text.match(new RegExp(`declare class ${name}\\b[^{]*\\{([\\s\\S]*?)\\n\\}`))
    assert(body, `no declaration of class ${name}`)
    return new Set(Array.from(body[1].matchAll(/^\s*(?:private|protected)\s+(?:readonly\s+)?(\w+)/gm), (m) => m[1]))
  }

  /** Fails unless every public member of these classes was called. */
  settle(wanted) {
    const seen = Array.from(this.called.keys(), (kind) => kind.name).sort()
    assert.deepEqual(seen, [...wanted].sort())
    const missing = Array.from(this.called.keys()).flatMap((kind) => this.missing(kind).map((name) => `${kind.name}.${name}`))
    assert.deepEqual(missing, [], 'public members that were not called')
  }
}
