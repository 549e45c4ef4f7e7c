// create → commands.run('echo hi') → kill through the JS SDK, beside the SDK's own floor (stub.mjs); then commands that
// stream at the same time, every line counted; then a large file both ways, beside nginx with the same client.
//
// bench.py starts a server and this, and makes a table of the lines of JSON that it prints. By itself:
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
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')
const now = () => performance.now()

async function life(options) {
  const begun = now()
  const sandbox = await Sandbox.create(template, { ...options, timeoutMs: 60_000 })
  try {
    const { stdout } = await sandbox.commands.run('echo hi')
    if (stdout !== 'hi\n') throw new Error(`said ${JSON.stringify(stdout)}`)
  } finally {
    await sandbox.kill(options)
  }
  return now() - begun
}

async function many(count, atOnce, options) {
  const times = []
  const failures = []
  let next = 0
  const begun = now()
  const worker = async () => {
    while (next++ < count) {
      try {
        times.push(await life(options))
      } catch (error) {
        failures.push(String(error?.message ?? error))
      }
    }
  }
  await Promise.all(Array.from({ length: atOnce }, worker))
  return { times, failures, total: now() - begun }
}

// A server that has just answered many may still be clearing up, and making ready for as many again: neither is the time
// of whoever comes next.
const rest = () => new Promise((resolve) => setTimeout(resolve, quick ? 500 : 3000))

// The two by turns, so that what disturbs the machine disturbs both.
async function side(name, count, atOnce, turns, floor) {
  const sums = { floor: { times: [], failures: [], totals: [] }, isola: { times: [], failures: [], totals: [] } }
  for (let turn = 0; turn < turns; turn++) {
    for (const [whose, options] of turn % 2 ? [['isola', {}], ['floor', floor]] : [['floor', floor], ['isola', {}]]) {
      await rest()
      const { times, failures, total } = await many(count / turns, atOnce, options)
      sums[whose].times.push(...times)
      sums[whose].failures.push(...failures)
      sums[whose].totals.push(total)
    }
  }
  say({ kind: 'lives', name, atOnce, ...sums })
}

async function stub() {
  const child = spawn(process.execPath, [path.join(here, 'stub.mjs')], { stdio: ['ignore', 'pipe', 'inherit'] })
  const port = await new Promise((resolve) => child.stdout.once('data', (data) => resolve(Number(data))))
  const url = `http://127.0.0.1:${port}`
  return { options: { apiUrl: url, sandboxUrl: url }, stop: () => child.kill() }
}

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
  const child = spawn('nginx', ['-c', `${folder}/nginx.conf`], { stdio: ['ignore', 2, 2] })
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
  let at = now()
  await sandbox.files.write('/tmp/large', data, { useOctetStream: true, requestTimeoutMs: 0 })
  const up = size / 1048576 / ((now() - at) / 1000)
  at = now()
  let read = 0
  for await (const piece of await sandbox.files.read('/tmp/large', { format: 'stream', requestTimeoutMs: 0 })) read += piece.length
  if (read !== size) throw new Error(`${read} bytes came of ${size}`)
  return { up, down: size / 1048576 / ((now() - at) / 1000) }
}

async function streaming(sandbox) {
  const streams = quick ? 50 : 200
  const lines = 2000
  let wrong = 0
  let why // the first that failed altogether
  const begun = now()
  await Promise.all(
    Array.from({ length: streams }, async () => {
      // As it comes, not as it is at the end: a piece that is lost or turned round on the way is seen.
      let seen = 0
      let rest = ''
      let good = true
      const onStdout = (piece) => {
        const parts = (rest + piece).split('\n')
        rest = parts.pop()
        for (const line of parts) good &&= line === String(++seen)
      }
      try {
        await sandbox.commands.run(`seq 1 ${lines}`, { onStdout })
        if (!good || seen !== lines || rest !== '') wrong++
      } catch (error) {
        wrong++
        why ??= String(error)
      }
    }),
  )
  say({ kind: 'streams', streams, lines, wrong, why, seconds: (now() - begun) / 1000 })
}

async function files(sandbox) {
  const size = (quick ? 64 : 1024) << 20
  const peer = await nginx(size)
  const control = await stub()
  try {
    const theirs = peer && (await Sandbox.create(template, { ...control.options, sandboxUrl: peer.url }))
    const rounds = []
    for (let i = 0; i < 3; i++) rounds.push({ isola: await carry(sandbox, size), nginx: theirs && (await carry(theirs, size)) })
    say({ kind: 'files', mebibytes: size >> 20, rounds })
  } finally {
    control.stop()
    if (peer) await peer.stop()
  }
}

say({ kind: 'about', sdk: packaged.version, node: process.version, template })
let failed = 0
// What fails does not take the others' numbers with it.
const part = async (name, body) => {
  try {
    await body()
  } catch (error) {
    failed = 1
    say({ kind: 'failed', name, why: String(error?.message ?? error) })
  }
}
const floor = await stub()
await part('warming up', async () => {
  await many(5, 1, floor.options)
  await many(5, 1, {})
})
await part('one by one', () => side('one by one', quick ? 40 : 200, 1, 4, floor.options))
await part('20 at a time', () => side('20 at a time', quick ? 80 : 400, 20, 2, floor.options))
await part('100 at once', () => side('100 at once', quick ? 100 : 300, 100, quick ? 1 : 3, floor.options))
floor.stop()
await part('a sandbox', async () => {
  const sandbox = await Sandbox.create(template, { timeoutMs: 600_000 })
  try {
    await part('streams', () => streaming(sandbox))
    await part('files', () => files(sandbox))
  } finally {
    await sandbox.kill()
  }
})
process.exit(failed)
