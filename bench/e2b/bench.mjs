// create → commands.run('echo hi') → kill through the JS SDK, beside the SDK's own floor (stub.mjs); then 200 commands
// that stream at the same time, every line counted; then a large file both ways, beside nginx with the same client.
//
// run.py starts a server and this. By itself:
//   E2B_API_URL=… E2B_SANDBOX_URL=… E2B_API_KEY=… E2B_PACKAGE=<folder with node_modules/e2b> node bench.mjs [--quick]
import { spawn, spawnSync } from 'node:child_process'
import fs from 'node:fs'
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
console.log(`our part, one by one, p50: ${(of('one by one', 'isola').p50 - of('one by one', 'floor').p50).toFixed(1)} ms (goal 5)`)
console.log(`100 at once, against the floor: ${(of('100 at once', 'isola').total / of('100 at once', 'floor').total).toFixed(1)} times (goal 3)`)

// A server that keeps what it is sent in a file, and sends a file: as little as can be done with bytes.
async function nginx(size) {
  if (spawnSync('nginx', ['-v']).error) return null
  const folder = fs.mkdtempSync('/var/tmp/isola-e2b-nginx-')
  fs.chmodSync(folder, 0o755)
  const file = fs.openSync(`${folder}/large`, 'w')
  for (let left = size, piece = Buffer.alloc(1 << 20); left > 0; left -= piece.length) fs.writeSync(file, piece)
  fs.closeSync(file)
  const port = 18992
  fs.writeFileSync(
    `${folder}/nginx.conf`,
    `user root; daemon off; worker_processes auto; pid ${folder}/pid; error_log ${folder}/error.log;
events { worker_connections 1024; }
http {
  access_log ${folder}/access.log; client_max_body_size 0; client_body_temp_path ${folder}/body; keepalive_requests 1000000;
  server {
    listen 127.0.0.1:${port} reuseport;
    location = /large { root ${folder}; default_type application/octet-stream; }
    location = /taken { default_type application/json; return 200 '[{"name":"large","path":"/tmp/large","type":"file"}]'; }
    location = /files {
      if ($request_method = GET) { rewrite ^ /large last; }
      client_body_in_file_only clean;
      proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_method GET;
      proxy_pass http://127.0.0.1:${port}/taken;
    }
  }
}
`,
  )
  const child = spawn('nginx', ['-c', `${folder}/nginx.conf`], { stdio: 'inherit' })
  const url = `http://127.0.0.1:${port}`
  for (let i = 0; i < 200; i++) {
    if (await fetch(`${url}/taken`).then((reply) => reply.ok, () => false)) break
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return {
    url,
    stop: async () => {
      const gone = new Promise((resolve) => child.once('exit', resolve))
      child.kill()
      await gone
      fs.rmSync(folder, { recursive: true })
    },
  }
}

// MiB a second, up and down.
async function carry(sandbox, size) {
  const data = new Blob([new Uint8Array(size)])
  let at = performance.now()
  await sandbox.files.write('/tmp/large', data, { useOctetStream: true, requestTimeoutMs: 0 })
  const up = size / 1048576 / ((performance.now() - at) / 1000)
  at = performance.now()
  let read = 0
  for await (const piece of await sandbox.files.read('/tmp/large', { format: 'stream', requestTimeoutMs: 0 })) read += piece.length
  if (read !== size) throw new Error(`${read} bytes came of ${size}`)
  return { up, down: size / 1048576 / ((performance.now() - at) / 1000) }
}

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
  const peer = await nginx(size)
  const control = await stub()
  const theirs = peer && (await Sandbox.create(template, { ...control.options, sandboxUrl: peer.url }))
  const rounds = []
  for (let i = 0; i < (quick ? 2 : 3); i++) rounds.push({ ours: await carry(sandbox, size), theirs: theirs && (await carry(theirs, size)) })
  for (const way of ['up', 'down']) {
    const middle = (values) => quantile(values.sort((a, b) => a - b), 0.5)
    const mine = middle(rounds.map((round) => round.ours[way]))
    let line = `${size >> 20} MiB ${way}: ${mine.toFixed(0)} MiB/s`
    if (peer) {
      line += `; nginx ${middle(rounds.map((round) => round.theirs[way])).toFixed(0)} MiB/s`
      line += `; ${middle(rounds.map((round) => round.ours[way] / round.theirs[way])).toFixed(2)} of it (goal 0.7)`
    }
    console.log(line)
  }
  control.stop()
  if (peer) await peer.stop()
} finally {
  await sandbox.kill()
}
process.exit(0)
