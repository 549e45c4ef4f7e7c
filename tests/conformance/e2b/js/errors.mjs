// Every type of error that the SDK has, by the situation that makes it: users catch types, not sentences. Those of single
// calls stand with the calls; here are the ones that have no call of their own.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { rejects, rejectsExactly, skip, test } from './harness.mjs'
import { atLeast, box, newest, sdk, template, using } from './sdk.mjs'

const { Sandbox, Template, Volume } = sdk
const nobody = { apiKey: `e2b_${'0'.repeat(40)}` }
const nowhere = 'i00000000000000000000'
const type = (name) => sdk[name] ?? skip(`this line has no ${name}`)
async function native(method, path, body) {
  const headers = { Authorization: `Bearer ${process.env.E2B_API_KEY}`, 'Content-Type': 'application/json' }
  const reply = await fetch(process.env.E2B_API_URL + path, { method, headers, body: body && JSON.stringify(body) })
  const text = await reply.text()
  return text ? JSON.parse(text) : null
}
const busy = { apiUrl: process.env.ISOLA_BUSY_URL, apiKey: process.env.ISOLA_BUSY_KEY }

test('AuthenticationError', '401: whatever is called with a key that nobody has', async () => {
  const wrong = type('AuthenticationError')
  await rejects(Sandbox.create(template, nobody), wrong)
  await rejects(Sandbox.connect(nowhere, nobody), wrong)
  await rejects(Sandbox.list(nobody).nextItems(), wrong)
  await rejects(Sandbox.kill(nowhere, nobody), wrong)
  await rejects(Sandbox.setTimeout(nowhere, 1000, nobody), wrong)
  if (Sandbox.getInfo) await rejects(Sandbox.getInfo(nowhere, nobody), wrong)
  if (Template?.exists) await rejects(Template.exists('x', nobody), wrong)
  if (Volume) await rejects(Volume.list(nobody), wrong)
})
test('ServiceBusyError', '503: the server cannot just now', async () => {
  const wrong = type('ServiceBusyError')
  const network = { rules: { 'api.example.org': [{ transform: { headers: { A: 'b' } } }] } }
  await rejects(Sandbox.create('minimal', { ...busy, network, retries: 0 }), wrong, /locked/)
})
test('SandboxError', '400, 403 and 409 name their status', async () => {
  const wrong = type('SandboxError')
  await rejects(Sandbox.create(template, { timeoutMs: -1 }), wrong, /400/)
  await rejects(Sandbox.create(template, { apiKey: process.env.ISOLA_READING_KEY }), wrong, /403/)
  if (!atLeast('2.45.0')) return // sends no headers of its own
  const once = { timeoutMs: 60_000, headers: { 'Idempotency-Key': `errors-${process.pid}` } }
  const sandbox = await Sandbox.create(template, once)
  try {
    await rejects(Sandbox.create(template, { ...once, timeoutMs: 61_000 }), wrong, /409/)
  } finally {
    await sandbox.kill()
  }
})
test(['SandboxNotFoundError', 'NotFoundError'], '404: a sandbox, a process, a template that is not there', async () => {
  const wrong = sdk.SandboxNotFoundError ?? sdk.NotFoundError
  await rejects(Sandbox.connect(nowhere), wrong)
  await rejects(Sandbox.setTimeout(nowhere, 1000), wrong)
  await rejects((await box()).commands.connect(999_999), sdk.NotFoundError)
  assert.equal(await Sandbox.kill(nowhere), false)
  await rejects(Sandbox.create('no-such-template'), sdk.SandboxError, /404/)
})
test('TimeoutError', '502: a sandbox that is gone, whatever is asked of it', () =>
  using({}, async (sandbox) => {
    await sandbox.kill()
    // What begins a process says it in another type in the newer lines.
    const gone = (promise) => newest ? rejectsExactly(promise, sdk.SandboxNotFoundError) : rejects(promise, sdk.SandboxError).then((error) =>
      assert.ok(error instanceof sdk.TimeoutError || error instanceof sdk.NotFoundError, String(error)))
    await gone(sandbox.commands.run('true'))
    for (const call of [() => sandbox.files.list('/'), () => sandbox.files.read('/etc/hostname'), () => sandbox.files.write('/tmp/x', 'y')])
      await rejectsExactly(call(), sdk.TimeoutError)
    await gone(sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} }))
  }))
test('RateLimitError', '429: a command more than the budget of the project has', async () => {
  const project = (await native('POST', '/v1/projects', { name: `one command ${process.pid}`, budget: { commands: 1 } })).id
  const apiKey = (await native('POST', '/v1/keys', { project, scope: 'use' })).secret
  const sandbox = await Sandbox.create('minimal', { apiKey, timeoutMs: 60_000 })
  await sandbox.commands.run('true')
  const more = sandbox.commands.run('true')
  if (atLeast('2.45.0')) await rejectsExactly(more, sdk.RateLimitError)
  else await rejectsExactly(more, sdk.SandboxError, /resource_exhausted/) // this line knows that type from the control plane alone
})
test('GitAuthError', 'a repository that wants a password', async () => {
  const { git, commands } = await box()
  if (!git) skip('this line has no git helpers')
  if (!(await commands.run('command -v git && command -v python3 || true')).stdout) skip('the template has no git')
  const server = `import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.send_header("WWW-Authenticate", 'Basic realm="x"'); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8765), Handler).serve_forever()`
  const { files } = await box()
  await files.write('/tmp/wants.py', server)
  const running = await commands.run('exec python3 /tmp/wants.py', { background: true })
  try {
    await commands.run('for i in $(seq 200); do curl -s -o /dev/null http://127.0.0.1:8765/ && exit 0; sleep 0.05; done; exit 1')
    await rejects(git.clone('http://127.0.0.1:8765/x.git', { path: '/tmp/never' }), type('GitAuthError'))
  } finally {
    await running.kill()
  }
})
test('GitUpstreamError', 'a pull that knows no other side', async () => {
  const { git, commands } = await box()
  if (!git) skip('this line has no git helpers')
  if (!(await commands.run('command -v git || true')).stdout) skip('the template has no git')
  const repository = `/home/user/upstream-${process.pid}`
  await git.init(repository, { initialBranch: 'main' })
  await commands.run(`cd ${repository} && git -c user.name=A -c user.email=a@b.example commit -q --allow-empty -m first && git remote add origin /tmp/nowhere`)
  await rejects(git.pull(repository), type('GitUpstreamError'))
})
test('FileUploadError', 'files of a build that there is no room for', async () => {
  if (!Template?.build) skip('this line has no templates')
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-upload-'))
  fs.writeFileSync(path.join(folder, 'one'), 'x')
  const steps = Template({ fileContextPath: folder }).fromTemplate('minimal').copy('one', '/home/user/one')
  const options = { alias: `upload-${process.pid}`, apiKey: process.env.ISOLA_FULL_KEY }
  try {
    await rejects(Template.build(...(atLeast('2.45.0') ? [steps, options.alias] : [steps]), options), type('FileUploadError'))
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
})
test(['VolumeError', 'VolumePathNotFoundError'], 'a name that is taken, a path that is not there', async () => {
  if (!Volume) skip('this line has no volumes')
  const made = await Volume.create(`errors-${process.pid}`)
  try {
    await rejects(Volume.create(made.name), type('VolumeError'))
    await rejects(made.readFile('/no/such'), sdk.VolumePathNotFoundError ?? sdk.NotFoundError)
    await rejects(made.getInfo('/no/such'), sdk.VolumePathNotFoundError ?? sdk.NotFoundError)
  } finally {
    await Volume.destroy(made.volumeId)
  }
})
test('VolumeError', '507: a volume that is full', async () => {
  if (!Volume) skip('this line has no volumes')
  const small = await Volume.connect(process.env.ISOLA_SMALL_VOLUME)
  await rejects(small.writeFile('/large', new Uint8Array(32 << 20)), type('VolumeError'), /not enough space/)
  await small.writeFile('/little', 'x')
})
test('NotEnoughSpaceError', '507: also of what is larger than a server reads for nothing', async () => {
  const wrong = type('NotEnoughSpaceError')
  const { commands, files } = await box()
  await commands.run('fallocate -l 100G /tmp/huge 2>/dev/null || dd if=/dev/zero of=/tmp/huge bs=1M 2>/dev/null || true', { timeoutMs: 180_000 })
  try {
    await rejects(files.write('/tmp/one-more', new Uint8Array(80 << 20).buffer), wrong)
  } finally {
    await commands.run('rm -f /tmp/huge /tmp/one-more')
  }
}, { timeout: 240_000 })
test('AuthenticationError', '401: an access token that ended with the key it was given to', async () => {
  const wrong = type('AuthenticationError')
  const key = await native('POST', '/v1/keys', { scope: 'use' })
  const sandbox = await Sandbox.create('minimal', { apiKey: key.secret, timeoutMs: 60_000 })
  await native('DELETE', `/v1/keys/${key.id}`)
  for (const call of [() => sandbox.commands.run('true'), () => sandbox.files.list('/'), () => sandbox.files.read('/etc/hostname'),
    () => sandbox.files.write('/tmp/x', 'y')])
    await rejects(call(), wrong)
  await Sandbox.kill(sandbox.sandboxId)
})
test('TemplateError', 'tags of a template that is not there', async () => {
  if (!Template?.getTags) skip('this line has no tags')
  await rejects(Template.getTags('no-such-template'), sdk.TemplateError)
  await rejects(Template.assignTags('no-such-template', ['x']), sdk.TemplateError)
})
