// Options of calls that are tested elsewhere without them: each through the SDK, with what it changes on the server.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { absent, eventually, partly, rejects, rejectsExactly, skip, test } from './harness.mjs'
import { atLeast, box, fresh, mode, own, sdk, template, using } from './sdk.mjs'

const { Sandbox, Template, Volume } = sdk
const needs = (version) => atLeast(version) || skip('this line has no such option')
const slow = { timeout: 120_000 }

// ---- the network of a sandbox ------------------------------------------------------------------------------------------

// A service inside, asked through the address that all sandboxes share: says which host it was asked as.
async function serve(sandbox, port) {
  if (mode !== 'http') skip('told apart by headers here')
  if (template === 'minimal') skip('the template has no http.server')
  await sandbox.files.write('/tmp/host.py', `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = self.headers['Host'].encode()
        self.send_response(200); self.send_header('Content-Length', str(len(said))); self.end_headers(); self.wfile.write(said)
http.server.HTTPServer(('127.0.0.1', ${port}), Handler).serve_forever()
`)
  await sandbox.commands.run('exec python3 /tmp/host.py', { background: true })
  const ask = (headers = {}) => fetch(`${process.env.E2B_SANDBOX_URL}/`, {
    headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port), ...headers },
  })
  const token = sandbox.trafficAccessToken ? { 'e2b-traffic-access-token': sandbox.trafficAccessToken } : {}
  await eventually(async () => (await ask(token)).ok, 'the service')
  return ask
}
test('Sandbox.create with network.maskRequestHost', 'is what a service inside is asked as', async () => {
  needs('2.20.0')
  await using({ network: { maskRequestHost: 'masked.example:${PORT}' } }, async (sandbox) => {
    const ask = await serve(sandbox, 8126)
    assert.equal(await (await ask()).text(), 'masked.example:8126')
    assert.equal((await sandbox.getInfo()).network.maskRequestHost, 'masked.example:${PORT}')
  })
})
test('Sandbox.create with network.allowPublicTraffic', 'false: a service inside wants the token', async () => {
  needs('2.10.0')
  await using({ network: { allowPublicTraffic: false } }, async (sandbox) => {
    const ask = await serve(sandbox, 8127)
    assert.equal((await ask()).status, 403)
    assert.equal((await ask({ 'e2b-traffic-access-token': 'another' })).status, 403)
    assert.equal((await ask({ 'e2b-traffic-access-token': sandbox.trafficAccessToken })).status, 200)
  })
})
test('Sandbox.create with network.httpsPorts', 'a port that speaks TLS is asked with TLS, whoever signed its certificate', async () => {
  needs('2.49.0')
  if (mode !== 'http') skip('told apart by headers here')
  if (template === 'minimal') skip('the template has no Python')
  const sandbox = await own({ network: { httpsPorts: [8443] } })
  try {
    assert.deepEqual((await sandbox.getInfo()).network.httpsPorts, [8443])
    await sandbox.commands.run('cd /tmp && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=nobody')
    const serve = (port, wrap) => sandbox.files.write(`/tmp/serve${port}.py`, `
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        said = self.rfile.read(int(self.headers['Content-Length']))
        said = ('%s %s ' % (self.headers['Host'], isinstance(self.connection, ssl.SSLSocket))).encode() + said
        self.send_response(200); self.send_header('Content-Length', str(len(said))); self.end_headers(); self.wfile.write(said)
server = http.server.ThreadingHTTPServer(('127.0.0.1', ${port}), Handler)
if ${wrap}:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain('/tmp/cert.pem', '/tmp/key.pem')
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
`)
    for (const [port, wrap] of [[8443, 'True'], [8080, 'False']]) {
      await serve(port, wrap)
      await sandbox.commands.run(`exec python3 /tmp/serve${port}.py`, { background: true })
    }
    const large = 'x'.repeat(3_000_000)
    const ask = async (port, body) => {
      const reply = await fetch(`${process.env.E2B_SANDBOX_URL}/`, {
        method: 'POST', body, headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) } })
      return reply.status === 200 ? reply.text() : undefined
    }
    const secure = await eventually(() => ask(8443, 'hello'), 'the answer over TLS')
    assert.match(secure, /^\S+ True hello$/)
    assert.ok((await ask(8443, large)).endsWith(large))
    assert.match(await eventually(() => ask(8080, 'hello'), 'the answer in clear'), /^\S+ False hello$/)
  } finally {
    await sandbox.kill()
  }
})

// ---- lists, times and signals -------------------------------------------------------------------------------------------

test('Sandbox.list with nextToken', 'goes on where another list was', async () => {
  needs('2.45.0')
  const mark = { token: String(Math.random()) }
  const made = [await own({ metadata: mark }), await own({ metadata: mark }), await own({ metadata: mark })]
  try {
    const first = Sandbox.list({ query: { metadata: mark }, limit: 1, order: 'asc' })
    const ids = (await first.nextItems()).map((one) => one.sandboxId)
    const rest = Sandbox.list({ query: { metadata: mark }, order: 'asc', nextToken: first.nextToken })
    ids.push(...(await rest.nextItems()).map((one) => one.sandboxId))
    assert.deepEqual(ids, made.map((one) => one.sandboxId))
    await rejects(Sandbox.list({ nextToken: 'nonsense' }).nextItems(), sdk.SandboxError, /400/)
  } finally {
    await Promise.all(made.map((one) => one.kill()))
  }
})
test(['Sandbox.listSnapshots with name', 'Sandbox.listSnapshots with limit', 'Sandbox.listSnapshots with nextToken'], 'has those that were asked for', () =>
  using({}, async (sandbox) => {
    needs('2.45.0')
    const name = `listed-${process.pid}`
    const made = [(await sandbox.createSnapshot({ name })).snapshotId, (await sandbox.createSnapshot()).snapshotId]
    try {
      const named = await Sandbox.listSnapshots({ name }).nextItems()
      assert.deepEqual(named.map((one) => one.snapshotId), [made[0]])
      assert.deepEqual(await Sandbox.listSnapshots({ name: 'nothing-is-called-that' }).nextItems(), [])
      const first = sandbox.listSnapshots({ limit: 1 })
      const one = await first.nextItems()
      assert.equal(one.length, 1)
      assert.ok(first.hasNext && first.nextToken)
      const other = await sandbox.listSnapshots({ nextToken: first.nextToken }).nextItems()
      assert.deepEqual([...one, ...other].map((each) => each.snapshotId).sort(), made.sort())
    } finally {
      for (const one of made) await Sandbox.deleteSnapshot(one)
    }
  }), slow)
partly('Sandbox.getMetrics with start and end', 'a history of half an hour, from the first question on', 'has what lies between them', async () => {
  if (!atLeast('2.45.0')) skip('this line does not send them')
  const sandbox = await box()
  const ago = (seconds) => new Date(Date.now() - seconds * 1000)
  await sandbox.getMetrics()
  const past = await eventually(async () => { const all = await sandbox.getMetrics({ start: ago(60) }); return all.length > 1 && all }, 'a second step', 20_000)
  assert.ok(past[0].timestamp < past[1].timestamp)
  assert.ok((await sandbox.getMetrics({ start: ago(60), end: ago(-60) })).length > 1)
  assert.deepEqual(await sandbox.getMetrics({ start: ago(7200), end: ago(3600) }), [])
  assert.deepEqual(await sandbox.getMetrics({ start: ago(-60) }), [])
  await rejects(sandbox.getMetrics({ start: ago(60), end: ago(120) }), sdk.SandboxError, /400/)
})
test(['Sandbox.create with requestTimeoutMs', 'commands.run with requestTimeoutMs', 'files.write with requestTimeoutMs'], 'bounds the request, not the work', () =>
  using({ requestTimeoutMs: 30_000 }, async (sandbox) => {
    assert.equal((await sandbox.commands.run('sleep 6; echo done', { requestTimeoutMs: 5000 })).stdout, 'done\n')
    await sandbox.files.write('timed', 'x', { requestTimeoutMs: 10_000 })
    assert.equal(await sandbox.files.read('timed', { requestTimeoutMs: 10_000 }), 'x')
  }))
test(['commands.run with signal', 'Sandbox.create with signal'], 'ends the wait, and nothing else', async () => {
  needs('2.45.0')
  const { commands } = await box()
  const leave = new AbortController()
  const running = commands.run('touch /tmp/signalled; exec sleep 4321', { signal: leave.signal })
  const ends = running.then(() => null, (error) => error)
  await eventually(async () => (await commands.run('test -e /tmp/signalled && pgrep -f "sleep 432[1]" || true')).stdout, 'the command')
  leave.abort()
  assert.ok(await ends, 'it was not rejected')
  assert.ok((await commands.run('pgrep -f "sleep 432[1]" || true')).stdout, 'the command is gone')
  await commands.run('pkill -f "sleep 432[1]"')
  const gone = new AbortController()
  gone.abort()
  const before = { signalled: String(Math.random()) }
  assert.ok(await own({ signal: gone.signal, metadata: before }).then(() => null, (error) => error), 'it was not rejected')
  assert.deepEqual(await Sandbox.list({ query: { metadata: before } }).nextItems(), [])
})

// ---- files --------------------------------------------------------------------------------------------------------------

test('files.watchDir with allowNetworkMounts', 'is a watch like any other where there is no such mount', async () => {
  needs('2.45.0')
  const { files } = await box()
  const folder = await fresh()
  await files.makeDir(folder)
  const seen = []
  const handle = await files.watchDir(folder, (event) => seen.push(event.name), { allowNetworkMounts: true })
  await files.write(`${folder}/a`, 'x')
  await eventually(() => seen.includes('a'), 'the write')
  await handle.stop()
})
test('getSignature', 'makes addresses that the server believes', async () => {
  if (!sdk.getSignature) skip('this line has no such function')
  const sandbox = await box()
  await sandbox.files.write('by-hand.txt', 'for you')
  const ask = async (operation) => {
    const made = await sdk.getSignature({
      path: 'by-hand.txt', operation, user: 'user', expirationInSeconds: 60, envdAccessToken: sandbox.envdAccessToken ?? sandbox['envdAccessToken'],
    })
    const url = new URL(await sandbox.downloadUrl('by-hand.txt', { user: 'user', useSignatureExpiration: 60 }))
    url.searchParams.set('signature', made.signature)
    url.searchParams.set('signature_expiration', String(made.expiration))
    return fetch(url)
  }
  assert.equal(await (await ask('read')).text(), 'for you')
  assert.equal((await ask('write')).status, 401)
})

// ---- volumes ------------------------------------------------------------------------------------------------------------

test(['volume.writeFile with uid, gid, mode and force', 'volume.makeDir with force'], 'are what the files have', async () => {
  if (!Volume) skip('this line has no volumes')
  const made = await Volume.create(`options-${process.pid}`)
  try {
    await made.makeDir('/a/b/c', { force: true, uid: 5, gid: 6, mode: 0o750 })
    const folder = await made.getInfo('/a/b/c')
    assert.deepEqual([folder.uid, folder.gid, folder.mode & 0o777], [5, 6, 0o750])
    await rejects(made.makeDir('/p/q'), sdk.VolumePathNotFoundError ?? sdk.NotFoundError)
    await made.writeFile('/a/file', 'one', { uid: 7, gid: 8, mode: 0o640 })
    const file = await made.getInfo('/a/file')
    assert.deepEqual([file.uid, file.gid, file.mode & 0o777], [7, 8, 0o640])
    const changed = await made.updateMetadata('/a/file', { gid: 9 })
    assert.deepEqual([changed.uid, changed.gid], [7, 9])
    await made.writeFile('/a/file', 'two', { force: true })
    assert.equal(await made.readFile('/a/file'), 'two')
  } finally {
    await Volume.destroy(made.volumeId)
  }
})

// ---- builds -------------------------------------------------------------------------------------------------------------

let count = 0
const unused = () => (Template ? `options-${process.pid}-${count++}` : skip('this line has no templates'))
const build = (steps, name, options = {}) =>
  atLeast('2.45.0') ? Template.build(steps, name, options) : Template.build(steps, { alias: name, ...options })
async function said(name, line) {
  const sandbox = await Sandbox.create(name, { timeoutMs: 60_000 })
  try {
    return [(await sandbox.commands.run(line)).stdout, await sandbox.getInfo()]
  } finally {
    await sandbox.kill()
  }
}
const context = (body) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-options-'))
  return body(folder).finally(() => fs.rmSync(folder, { recursive: true }))
}

test(['Template.build with cpuCount', 'Template.build with memoryMB'], 'are what its sandboxes have', async () => {
  const name = unused()
  await build(Template().fromTemplate(template).runCmd('true'), name, { cpuCount: 1, memoryMB: 384 })
  const [, info] = await said(name, 'true')
  assert.deepEqual([info.cpuCount, info.memoryMB], [1, 384])
}, slow)
test('Template.build with tags', 'each means the build', async () => {
  needs('2.45.0')
  const name = unused()
  await build(Template().fromTemplate(template).runCmd('echo tagged > /home/user/n'), name, { tags: ['v1', 'stable'] })
  for (const tag of ['v1', 'stable']) assert.equal((await said(`${name}:${tag}`, 'cat n'))[0], 'tagged\n')
}, slow)
test('Template.build with skipCache', 'runs again what was run', async () => {
  const step = `cat /proc/sys/kernel/random/uuid > /home/user/n # ${unused()}`
  const result = async (options) => {
    const name = unused()
    await build(Template().fromTemplate(template).runCmd(step), name, options)
    return (await said(name, 'cat n'))[0]
  }
  const first = await result({})
  assert.equal(await result({}), first)
  assert.notEqual(await result({ skipCache: true }), first)
}, slow)
test('Template.build with minFreeDiskMb', 'is what sandboxes have', async () => {
  needs('2.49.0')
  if (mode !== 'http') skip('asked without the SDK here')
  const name = unused()
  await build(Template().fromTemplate(template).runCmd('true'), name, { minFreeDiskMb: 5000 })
  const sandbox = await Sandbox.create(name, { timeoutMs: 60_000 })
  try {
    const told = await fetch(`${process.env.E2B_API_URL}/sandboxes/${sandbox.sandboxId}`, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
    assert.equal((await told.json()).diskSizeMB, 5000)
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Template with fileIgnorePatterns', 'leaves out what they mean', () => context(async (folder) => {
  const name = unused()
  fs.mkdirSync(path.join(folder, 'app'))
  for (const one of ['kept.txt', 'left.log']) fs.writeFileSync(path.join(folder, 'app', one), one)
  const steps = Template({ fileContextPath: folder, fileIgnorePatterns: ['**/*.log'] }).fromTemplate(template)
  await build(steps.copy('app', '/home/user/app'), name)
  assert.equal((await said(name, 'ls app'))[0], 'kept.txt\n')
}), slow)
test('Template.copy with forceUpload', 'sends again what is there', () => context(async (folder) => {
  fs.writeFileSync(path.join(folder, 'one'), unused())
  for (const options of [{}, { forceUpload: true }, { forceUpload: true }]) {
    const name = unused()
    await build(Template({ fileContextPath: folder }).fromTemplate(template).copy('one', '/home/user/one', options), name)
    assert.equal((await said(name, 'cat one'))[0], fs.readFileSync(path.join(folder, 'one'), 'utf8'))
  }
}), slow)
test('Template.copy with resolveSymlinks', 'a link is what it leads to, or a link', () => context(async (folder) => {
  fs.mkdirSync(path.join(folder, 'app'))
  fs.writeFileSync(path.join(folder, 'app/real'), 'real')
  fs.symlinkSync('real', path.join(folder, 'app/link'))
  for (const [resolveSymlinks, kind] of [[true, 'regular file'], [false, 'symbolic link']]) {
    const name = unused()
    await build(Template({ fileContextPath: folder }).fromTemplate(template).copy('app', '/home/user/app', { resolveSymlinks }), name)
    assert.equal((await said(name, 'stat -c %F app/link; cat app/link'))[0], `${kind}\nreal`)
  }
}), slow)
