import assert from 'node:assert/strict'
import { eventually, partly, rejects, rejectsExactly, skip, test } from './harness.mjs'
import { atLeast, box, finds, mode, newest, outside, own, reaches, sdk, template, using } from './sdk.mjs'

const { Sandbox } = sdk
// Older lines have fewer classes, and then a wider one.
const NotFound = sdk.SandboxNotFoundError ?? sdk.NotFoundError
const nowhere = 'i00000000000000000000'

test('Sandbox.create', 'makes a sandbox that answers', () =>
  using({}, async (sandbox) => {
    assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}/)
    assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
  }))
test('Sandbox.create', 'keeps metadata and environment', () =>
  using({ metadata: { who: 'ada & co=1', ü: 'ß' }, envs: { COLOUR: 'blue' } }, async (sandbox) => {
    const info = await sandbox.getInfo()
    assert.deepEqual(info.metadata, { who: 'ada & co=1', ü: 'ß' })
    assert.equal((await sandbox.commands.run('echo $COLOUR')).stdout, 'blue\n')
  }))
test('Sandbox.create', 'an unknown template is an error with its name', async () => {
  const error = await rejects(Sandbox.create('no-such-template'), sdk.SandboxError, /404/)
  assert.match(error.message, /no-such-template/)
})
test('Sandbox.create', 'a wrong key is an AuthenticationError', () =>
  rejects(Sandbox.create(template, { apiKey: 'e2b_' + '0'.repeat(40) }), sdk.AuthenticationError))
test('Sandbox.create', 'a timeout of nothing is refused', () =>
  rejects(Sandbox.create(template, { timeoutMs: 0 }), sdk.SandboxError, /400/))
test(['Sandbox.create', 'RateLimitError'], 'over the project limit is a RateLimitError', async () => {
  const key = process.env.ISOLA_LIMITED_KEY
  const first = await Sandbox.create(template, { apiKey: key })
  try {
    await rejects(Sandbox.create(template, { apiKey: key, retries: 0 }), sdk.RateLimitError)
  } finally {
    await first.kill()
  }
})
test('Sandbox.create', 'ends at its timeout', () =>
  using({ timeoutMs: 1000 }, async (sandbox) => {
    await eventually(async () => !(await sandbox.isRunning()), 'its end')
  }))
test('Sandbox.create', 'tells inside who it is', () =>
  using({}, async (sandbox) => {
    const { stdout } = await sandbox.commands.run('echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID', {
      envs: { E2B_SANDBOX: 'forged', E2B_SANDBOX_ID: 'forged', E2B_TEMPLATE_ID: 'forged' },
    })
    assert.equal(stdout, `true ${sandbox.sandboxId.split('-')[0]} ${template}\n`)
  }))
const needsOutside = () => {
  if (!outside || template === 'minimal') skip('the template has no client for TLS')
}
test('Sandbox.create', 'without internet nothing outside is reached but what is allowed', async () => {
  needsOutside()
  await using({}, async (sandbox) => assert.equal(await finds(sandbox), true))
  await using({ allowInternetAccess: false }, async (sandbox) => {
    assert.equal(await finds(sandbox), false)
    assert.equal(await reaches(sandbox), false)
  })
  if (!atLeast('2.20.0')) return
  await using({ allowInternetAccess: false, network: { allowOut: outside } }, async (sandbox) => assert.equal(await reaches(sandbox), true))
}, { timeout: 60_000 })
test('Sandbox.create', 'network rules come back as they were given', async () => {
  if (!atLeast('2.20.0')) skip('this line does not show the network')
  const network = { allowOut: ['8.8.8.8'], denyOut: ['0.0.0.0/0'] }
  await using({ network }, async (sandbox) => {
    const info = await sandbox.getInfo()
    assert.deepEqual(info.network.allowOut, network.allowOut)
    assert.deepEqual(info.network.denyOut, network.denyOut)
  })
})
test('Sandbox.create', 'a domain without a general deny is refused', () =>
  rejects(own({ network: { allowOut: ['example.org'] } }), sdk.SandboxError, /400/))

test('E2B', 'a client with settings of its own', async () => {
  if (!sdk.E2B) skip('this line has no clients')
  const client = new sdk.E2B({ apiKey: process.env.E2B_API_KEY })
  const sandbox = await client.Sandbox.create(template, { timeoutMs: 60_000 })
  try {
    assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
    assert.equal(await client.Template.exists(template), true)
  } finally {
    await sandbox.kill()
  }
  await rejects(new sdk.E2B({ apiKey: `e2b_${'0'.repeat(40)}` }).Sandbox.create(template), sdk.AuthenticationError)
})
test('Sandbox.getFullInfo', 'is the same', async () => {
  if (!Sandbox.getFullInfo) skip('this line has no such call')
  assert.equal((await Sandbox.getFullInfo((await box()).sandboxId)).state, 'running')
})
test('Sandbox.create', 'under an idempotency key there is one, and another body is a conflict', async () => {
  if (!atLeast('2.45.0')) skip('this line sends no headers of its own')
  const options = { timeoutMs: 60_000, headers: { 'Idempotency-Key': `once-${process.pid}` }, metadata: { a: '1' } }
  const sandbox = await Sandbox.create(template, options)
  try {
    assert.equal((await Sandbox.create(template, options)).sandboxId, sandbox.sandboxId)
    await rejects(Sandbox.create(template, { ...options, metadata: { a: '2' } }), sdk.SandboxError, /409/)
  } finally {
    await sandbox.kill()
  }
})

test('Sandbox.connect', 'joins a running sandbox', () =>
  using({}, async (sandbox) => {
    await sandbox.files.write('mark', 'x')
    const other = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(other.sandboxId, sandbox.sandboxId)
    assert.equal(await other.files.read('mark'), 'x')
  }))
test('Sandbox.connect', 'extends the time, and never cuts it', () =>
  using({ timeoutMs: 60_000 }, async (sandbox) => {
    const before = (await sandbox.getInfo()).endAt
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 5_000 })
    assert.equal((await sandbox.getInfo()).endAt.getTime(), before.getTime())
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 })
    assert.ok((await sandbox.getInfo()).endAt > before)
  }))
test('Sandbox.connect', 'one that is not there is a not-found error', () =>
  rejects(Sandbox.connect(nowhere), NotFound))

test(['Sandbox.list', 'SandboxPaginator'], 'has the running ones, newest first, page by page', async () => {
  const mark = { list: String(Math.random()) }
  const made = []
  for (let i = 0; i < 3; i++) made.push(await own({ metadata: mark }))
  try {
    const paginator = Sandbox.list({ query: { metadata: mark }, limit: 2 })
    const first = await paginator.nextItems()
    assert.equal(first.length, 2)
    assert.ok(paginator.hasNext)
    const second = await paginator.nextItems()
    assert.equal(second.length, 1)
    assert.ok(!paginator.hasNext)
    const ids = [...first, ...second].map((one) => one.sandboxId)
    assert.deepEqual(ids, made.map((one) => one.sandboxId.split('-')[0]).reverse())
    assert.equal(first[0].state, 'running')
    assert.deepEqual(first[0].metadata, mark)
  } finally {
    await Promise.all(made.map((one) => one.kill()))
  }
})
test('Sandbox.list', 'finds by metadata with characters that need encoding', () =>
  using({ metadata: { 'a&b=c %': 'ü=&%20+' } }, async (sandbox) => {
    const found = await Sandbox.list({ query: { metadata: { 'a&b=c %': 'ü=&%20+' } } }).nextItems()
    assert.deepEqual(found.map((one) => one.sandboxId), [sandbox.sandboxId.split('-')[0]])
    assert.deepEqual(await Sandbox.list({ query: { metadata: { 'a&b=c %': 'other' } } }).nextItems(), [])
  }))
test('Sandbox.list', 'finds by state', async () => {
  const sandbox = await box()
  const running = await Sandbox.list({ query: { state: ['running'] } }).nextItems()
  assert.ok(running.some((one) => sandbox.sandboxId.startsWith(one.sandboxId)))
  const paused = await Sandbox.list({ query: { state: ['paused'] } }).nextItems()
  assert.ok(!paused.some((one) => sandbox.sandboxId.startsWith(one.sandboxId)))
})
test('Sandbox.list', 'finds by time and template, in either order', async () => {
  if (!atLeast('2.45.0')) skip('this line cannot ask for it')
  await using({}, async (sandbox) => {
    const { startedAt } = await sandbox.getInfo()
    const found = await Sandbox.list({ query: { startedAfter: startedAt, template }, order: 'asc' }).nextItems()
    assert.equal(found[0].sandboxId, sandbox.sandboxId)
    assert.deepEqual(await Sandbox.list({ query: { template: 'none-such' } }).nextItems(), [])
  })
})

test('Sandbox.getInfo', 'says what the sandbox is', async () => {
  const sandbox = await box()
  const info = await Sandbox.getInfo(sandbox.sandboxId)
  assert.ok(sandbox.sandboxId.startsWith(info.sandboxId))
  assert.ok(info.startedAt instanceof Date && info.endAt > info.startedAt)
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64)
  assert.equal(info.state, 'running')
})
test('Sandbox.getInfo', 'one that is not there is a not-found error', () => rejects(Sandbox.getInfo(nowhere), NotFound))

test('Sandbox.kill', 'ends it, once', async () => {
  const sandbox = await own()
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  assert.equal(await sandbox.isRunning(), false)
})
test('Sandbox.kill', 'a command in progress fails with a TimeoutError', async () => {
  const sandbox = await own()
  const running = sandbox.commands.run('sleep 100')
  await eventually(async () => (await sandbox.commands.list()).length > 0, 'the command')
  const [result] = await Promise.allSettled([running, sandbox.kill()])
  assert.equal(result.status, 'rejected')
  if (atLeast('2.45.0')) assert.ok(result.reason instanceof sdk.TimeoutError, String(result.reason))
})
test('Sandbox.kill', 'later calls fail with a TimeoutError', async () => {
  const sandbox = await own()
  await sandbox.kill()
  await rejects(sandbox.files.read('x'), sdk.TimeoutError)
  // What begins a process says it in another type in the newer lines.
  if (newest) await rejectsExactly(sandbox.commands.run('true'), sdk.SandboxNotFoundError)
  else await rejects(sandbox.commands.run('true'), atLeast('2.45.0') ? NotFound : sdk.SandboxError)
})

test('Sandbox.setTimeout', 'moves the end, also to an earlier time', () =>
  using({ timeoutMs: 600_000 }, async (sandbox) => {
    await sandbox.setTimeout(20_000)
    const left = (await sandbox.getInfo()).endAt - Date.now()
    assert.ok(left > 5_000 && left < 25_000, String(left))
    await Sandbox.setTimeout(sandbox.sandboxId, 1000)
    await eventually(async () => !(await sandbox.isRunning()), 'its end')
  }))
test('Sandbox.setTimeout', 'one that is not there is a not-found error', () =>
  rejects(Sandbox.setTimeout(nowhere, 1000), NotFound))

test('Sandbox.isRunning', 'is true while it runs', async () => assert.equal(await (await box()).isRunning(), true))

partly('Sandbox.getMetrics', 'a history of half an hour, from the first question on', 'has a sample', async () => {
  if (!Sandbox.getMetrics) skip('this line has no metrics')
  const sandbox = await box()
  const [sample] = await sandbox.getMetrics()
  assert.ok(sample.cpuCount >= 1 && sample.memTotal > 0 && sample.diskTotal > 0)
  assert.ok(sample.cpuUsedPct >= 0 && sample.memUsed > 0)
})
test('Sandbox.getMetrics', 'one that is not there is a not-found error', () => {
  if (!Sandbox.getMetrics) skip('this line has no metrics')
  return rejects(Sandbox.getMetrics(nowhere), atLeast('2.20.0') ? NotFound : sdk.SandboxError)
})

test(['Sandbox.updateNetwork', 'ALL_TRAFFIC'], 'closes and opens what is outside', async () => {
  if (!Sandbox.updateNetwork) skip('this line has no such call')
  needsOutside()
  const all = sdk.ALL_TRAFFIC ?? '0.0.0.0/0'
  await using({ network: { denyOut: [all], allowOut: outside } }, async (sandbox) => {
    assert.equal(await reaches(sandbox), true)
    await sandbox.updateNetwork({ denyOut: [all] })
    assert.equal(await reaches(sandbox), false)
    assert.deepEqual((await sandbox.getInfo()).network.denyOut, [all])
    await sandbox.updateNetwork({ denyOut: [all], allowOut: outside })
    assert.equal(await reaches(sandbox), true)
    await rejects(sandbox.updateNetwork({ denyOut: ['not a network'] }), sdk.SandboxError, /400/)
    assert.equal(await reaches(sandbox), true)
    await sandbox.updateNetwork({})
    assert.equal(await reaches(sandbox), false)
  })
  await rejects(Sandbox.updateNetwork(nowhere, {}), NotFound)
}, { timeout: 60_000 })
test('Sandbox.updateNetwork', 'says of the internet what holds', async () => {
  if (!Sandbox.updateNetwork) skip('this line has no such call')
  needsOutside()
  await using({ allowInternetAccess: false }, async (sandbox) => {
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
    assert.equal(await finds(sandbox), false)
    await sandbox.updateNetwork({})
    assert.equal(await finds(sandbox), true)
    assert.notEqual((await sandbox.getInfo()).allowInternetAccess, false)
    await sandbox.updateNetwork({ allowInternetAccess: false })
    assert.equal(await finds(sandbox), false)
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
  })
}, { timeout: 60_000 })

test('Sandbox.getHost', 'leads to a service inside', async () => {
  const sandbox = await box()
  const host = sandbox.getHost(8123)
  assert.match(host, /^8123-i[a-z0-9]{20}[.-]/)
  if (mode !== 'tls') skip('needs the TLS domain mode')
  // As little Python as the smallest template has: no http.server there.
  await sandbox.files.write('/tmp/serve.py', `
import socket
listener = socket.create_server(('127.0.0.1', 8123))
while True:
    client, _ = listener.accept()
    client.recv(65536)
    client.sendall(b'HTTP/1.0 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\nisland\\n')
    client.close()
`)
  const server = await sandbox.commands.run('python3 /tmp/serve.py', { background: true })
  const page = await eventually(async () => {
    const reply = await fetch(`https://${host}/index.html`)
    return reply.ok && (await reply.text())
  }, 'the service')
  assert.equal(page, 'island\n')
  await server.kill()
  const closed = await fetch(`https://${sandbox.getHost(8124)}/`)
  assert.equal(closed.status, 502)
  assert.equal((await closed.json()).code, 502)
})
test('Sandbox.getHost', 'a private sandbox wants its token', async () => {
  if (mode !== 'tls') skip('needs the TLS domain mode')
  if (!atLeast('2.10.0')) skip('this line has no private traffic')
  await using({ network: { allowPublicTraffic: false } }, async (sandbox) => {
    assert.ok(sandbox.trafficAccessToken)
    const url = `https://${sandbox.getHost(8125)}/`
    assert.equal((await fetch(url)).status, 403)
    const reply = await fetch(url, { headers: { 'e2b-traffic-access-token': sandbox.trafficAccessToken } })
    assert.equal(reply.status, 502)
  })
})

test('Sandbox.downloadUrl', 'is good for whoever has it, as long as it says', async () => {
  const sandbox = await box()
  await sandbox.files.write('signed.txt', 'for you')
  const url = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: 60 })
  const reply = await fetch(url)
  assert.equal(await reply.text(), 'for you')
  const broken = await fetch(url.replace('signed.txt', 'other.txt'))
  assert.equal(broken.status, 401)
  const old = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: -60 })
  assert.equal((await fetch(old)).status, 401)
})
test('Sandbox.uploadUrl', 'takes a form with a file', async () => {
  const sandbox = await box()
  const url = await sandbox.uploadUrl('up.txt', { useSignatureExpiration: 60 })
  const form = new FormData()
  form.append('file', new Blob(['sent']), 'up.txt')
  assert.equal((await fetch(url, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('up.txt'), 'sent')
})
