// A test names the public method that it is about. Results go out as one JSON object per line; nothing else is printed
// to standard output.
//
//   test('files.read', 'gives back what was written', async () => { … })
//   test(['Volume.create', 'Volume.list'], 'a life of one', async () => { … })     // about each of them
//   partly('Sandbox.getMetrics', 'why', 'says how much', async () => { … })       // works, but for that
//   absent('Sandbox.create with iam', 'why', async () => { … })      // not there: the test shows the error's type
import assert from 'node:assert/strict'

const tests = []
export const test = (method, name, body, options = {}) => tests.push({ methods: [method].flat(), name, body, ...options })
// It works, and less of it than E2B's does: the reason stands in the matrix.
export const partly = (method, why, name, body, options = {}) => test(method, name, body, { ...options, partly: why })
export const absent = (method, why, body) => test(method, 'says that it is not there', body, { absent: why })

export const tested = () => new Set(tests.flatMap((one) => one.methods))

export class Skip extends Error {}
export const skip = (why) => {
  throw new Skip(why)
}

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')

function limited(promise, ms) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took longer than ${ms} ms`)), ms)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// A method that no test is about.
export const forgotten = (method) => say({ method, test: 'is tested', result: 'failed', why: 'no test is about it', ms: 0 })

// known: whether this line has a type of that name. One that it lacks has no result here, whatever the call raised instead.
export async function runAll(filter, known = () => true) {
  for (const one of tests) {
    if (filter && !one.methods.some((method) => method.includes(filter)) && !one.name.includes(filter)) continue
    const begun = performance.now()
    const line = { test: one.name, absent: one.absent, partly: one.partly }
    const lacks = one.methods.filter((method) => method.endsWith('Error') && !known(method))
    const there = one.methods.filter((method) => !lacks.includes(method))
    lacks.forEach((method, at) =>
      say({ method, ...line, result: 'skipped', why: `this line has no ${method}`, ms: 0, again: there.length > 0 || at > 0 }))
    if (!there.length) continue
    try {
      await limited(one.body(), one.timeout ?? 30_000)
      line.result = 'passed'
    } catch (error) {
      if (error instanceof Skip) {
        line.result = 'skipped'
        line.why = error.message
      } else {
        line.result = 'failed'
        line.why = String(error?.stack ?? error).slice(0, 2000)
      }
    }
    line.ms = Math.round(performance.now() - begun)
    there.forEach((method, at) => say({ method, ...line, again: at > 0 }))
  }
}

// The promise must be rejected with this class (or one below it), and a message that fits.
export async function rejects(promise, type, message) {
  let error
  try {
    await promise
  } catch (caught) {
    error = caught
  }
  assert.ok(error, `nothing was thrown, ${type.name} was expected`)
  assert.ok(error instanceof type, `${error?.constructor?.name}: ${error?.message} is no ${type.name}`)
  if (message) assert.match(error.message, message)
  return error
}
// With this class and none below it.
export async function rejectsExactly(promise, type, message) {
  const error = await rejects(promise, type, message)
  assert.equal(error.constructor, type, `${error.constructor.name}: ${error.message} is below ${type.name}`)
  return error
}

export async function eventually(look, what, ms = 15_000) {
  const until = Date.now() + ms
  for (;;) {
    const value = await look()
    if (value) return value
    if (Date.now() > until) throw new Error(`${what} did not happen within ${ms} ms`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
