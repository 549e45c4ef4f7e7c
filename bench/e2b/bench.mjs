// create → commands.run('echo hi') → kill through the JS SDK, beside the SDK's own floor (stub.mjs); then 200 commands
// that stream at the same time, every line counted; then a large file both ways.
//
//   E2B_API_URL=… E2B_SANDBOX_URL=… E2B_API_KEY=… E2B_PACKAGE=<folder with node_modules/e2b> node bench.mjs [--quick]
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const here = path.dirname(fileURLToPath(import.meta.url))
const folder = process.env.E2B_PACKAGE
const packaged = createRequire(path.join(folder, 'x.js'))('e2b/package.json')
const { Sandbox } = await import(pathToFileURL(path.join(folder, 'node_modules/e2b', packaged.module ?? 'dist/index.mjs')).href)
const template = process.env.E2B_TEMPLATE ?? 'base'
const quick = process.argv.includes('--quick')

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]
const ms = (value) => value.toFixed(1).padStart(8)

async function life(options) {
  const begun = performance.now()
  const sandbox = await Sandbox.create(template, { ...options, timeoutMs: 60_000 })
  try {
    const { stdout } = await sandbox.commands.run('echo hi')
    if (stdout !== 'hi\n') throw new Error(`said ${JSON.stringify(stdout)}`)
  } finally {
    await sandbox.kill(options)
  }
  return performance.now() - begun
}

async function many(count, atOnce, options) {
  const times = []
  let failed = 0
  let next = 0
  const begun = performance.now()
  const worker = async () => {
    while (next++ < count) {
      try {
        times.push(await life(options))
      } catch (error) {
        failed++
        if (failed === 1) console.error(error)
      }
    }
  }
  await Promise.all(Array.from({ length: atOnce }, worker))
  times.sort((a, b) => a - b)
  return { times, failed, total: performance.now() - begun }
}

async function stub() {
  const child = spawn(process.execPath, [path.join(here, 'stub.mjs')], { stdio: ['ignore', 'pipe', 'inherit'] })
  const port = await new Promise((resolve) => child.stdout.once('data', (data) => resolve(Number(data))))
  const url = `http://127.0.0.1:${port}`
  return { options: { apiUrl: url, sandboxUrl: url }, stop: () => child.kill() }
}

const results = []
console.log(`e2b ${packaged.version}, template ${template}, node ${process.version}; milliseconds`)
console.log('                          p50      p95      p99    total  failed')
const floor = await stub()
await many(5, 1, floor.options)
await many(5, 1, {})
for (const [name, count, atOnce] of quick
  ? [['one by one', 30, 1], ['20 at a time', 60, 20], ['100 at once', 100, 100]]
  : [['one by one', 200, 1], ['20 at a time', 400, 20], ['100 at once', 100, 100]]) {
  for (const [whose, options] of [['floor', floor.options], ['isola', {}]]) {
    const { times, failed, total } = await many(count, atOnce, options)
    const line = { name, whose, p50: quantile(times, 0.5), p95: quantile(times, 0.95), p99: quantile(times, 0.99), total, failed }
    results.push(line)
    console.log(`${name.padEnd(14)} ${whose.padEnd(6)}${ms(line.p50)} ${ms(line.p95)} ${ms(line.p99)} ${ms(total)} ${failed}`)
  }
}
floor.stop()
const of = (name, whose) => results.find((line) => line.name === name && line.whose === whose)
console.log(`our part, one by one, p50: ${(of('one by one', 'isola').p50 - of('one by one', 'floor').p50).toFixed(1)} ms`)
console.log(`100 at once, against the floor: ${(of('100 at once', 'isola').total / of('100 at once', 'floor').total).toFixed(1)} times`)

const sandbox = await Sandbox.create(template, { timeoutMs: 600_000 })
try {
  const streams = quick ? 50 : 200
  const lines = 2000
  let wrong = 0
  const begun = performance.now()
  await Promise.all(
    Array.from({ length: streams }, async () => {
      const { stdout } = await sandbox.commands.run(`seq 1 ${lines}`)
      const got = stdout.trimEnd().split('\n')
      if (got.length !== lines || got.some((line, i) => line !== String(i + 1))) wrong++
    }),
  )
  console.log(`${streams} streams of ${lines} lines at once: ${wrong} with a line lost or out of order, ${((performance.now() - begun) / 1000).toFixed(1)} s`)
  const size = (quick ? 64 : 1024) << 20
  const data = new Blob([new Uint8Array(size)])
  let at = performance.now()
  await sandbox.files.write('/tmp/large', data, { useOctetStream: true, requestTimeoutMs: 0 })
  const up = size / 1048576 / ((performance.now() - at) / 1000)
  at = performance.now()
  let read = 0
  for await (const piece of await sandbox.files.read('/tmp/large', { format: 'stream', requestTimeoutMs: 0 })) read += piece.length
  const down = size / 1048576 / ((performance.now() - at) / 1000)
  console.log(`${size >> 20} MiB: up ${up.toFixed(0)} MiB/s, down ${down.toFixed(0)} MiB/s${read === size ? '' : ', and not whole'}`)
} finally {
  await sandbox.kill()
}
process.exit(0)
