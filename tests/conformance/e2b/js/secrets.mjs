// Secrets, and rules that set them in requests on their way out: a program inside reaches a server that demands a key
// which is nowhere inside. The server is run.py's (tests/server/demanding.py).
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { absent, partly, rejects, skip, test } from './harness.mjs'
import { atLeast, own, sdk, using } from './sdk.mjs'

const { ALL_TRAFFIC, Sandbox, Secret } = sdk
const { ISOLA_OUTSIDE_NAME: name, ISOLA_OUTSIDE_ADDRESS: address, ISOLA_OUTSIDE_KEY: key } = process.env
let count = 0
const fresh = () => `s${process.pid}-${count++}`

// One for a test, gone afterwards.
async function secret(value, body) {
  if (!Secret) skip('this line has no secrets')
  const made = await Secret.create(fresh(), value, { metadata: { team: 'a' } })
  try {
    await body(made)
  } finally {
    await Secret.destroy(made.secretId)
  }
}

test(['Secret.create', 'Secret.getInfo', 'Secret.exists', 'Secret.destroy', 'SecretError', 'SecretNotFoundError'], 'a life of one, by id and by name', async () => {
  await secret('hunter2', async (made) => {
    assert.deepEqual([made.version, made.metadata], [1, { team: 'a' }])
    assert.ok(made.createdAt instanceof Date && !Number.isNaN(made.createdAt.getTime()))
    for (const word of [made.name, made.secretId]) assert.deepEqual(await Secret.getInfo(word), made)
    assert.equal(await Secret.exists(made.name), true)
    await rejects(Secret.create(made.name, 'other'), sdk.SecretError, /409/)
    assert.equal(await Secret.destroy(made.name), true)
    assert.equal(await Secret.destroy(made.name), false)
    assert.equal(await Secret.exists(made.name), false)
    await rejects(Secret.getInfo(made.secretId), sdk.SecretNotFoundError)
  })
})
test('Secret.update', 'is another version, and keeps what is not said', () =>
  secret('one', async (made) => {
    const changed = await Secret.update(made.name, 'two')
    assert.deepEqual([changed.version, changed.metadata, changed.secretId], [2, { team: 'a' }, made.secretId])
    assert.deepEqual((await Secret.update(made.secretId, 'three', { metadata: { b: 'c' } })).metadata, { b: 'c' })
    await rejects(Secret.update('nobody-has-this', 'x'), sdk.SecretNotFoundError)
  }))
test(['Secret.list', 'SecretPaginator'], 'gives pages, and no values', () =>
  secret('hunter-in-a-list', (first) =>
    secret('hunter-in-a-list', async (second) => {
      const pages = Secret.list({ limit: 1 })
      const seen = []
      while (pages.hasNext) seen.push(...(await pages.nextItems()))
      for (const one of [first, second]) assert.ok(seen.some((other) => other.secretId === one.secretId))
      assert.ok(!JSON.stringify(seen).includes('hunter-in-a-list'))
    }),
  ))
test('Secret.create', 'an empty value rejects with SecretError', async () => {
  if (!Secret) skip('this line has no secrets')
  await rejects(Secret.create(fresh(), ''), sdk.SecretError, /400/)
  await rejects(Secret.create('sec_x', 'y'), sdk.SecretError, /400/)
})
test('Secret.create', 'a key that may not rejects', async () => {
  if (!Secret) skip('this line has no secrets')
  await rejects(Secret.create(fresh(), 'x', { apiKey: process.env.ISOLA_LIMITED_KEY }), sdk.SecretError, /403/)
  await rejects(Secret.list({ apiKey: `e2b_${'0'.repeat(40)}` }).nextItems(), sdk.AuthenticationError)
})
test('Secret.fill', 'needs no server', async () => {
  if (!Secret?.fill) skip('this line has no such helper')
  assert.equal(Secret.fill('x'), '${e2b.secrets.x}')
})
absent('Sandbox.create with network.egressProxy', 'this server passes traffic on to no other proxy', async () => {
  if (!atLeast('2.45.0')) skip('this line has no such option')
  await rejects(own({ network: { egressProxy: { address: 'proxy.example:1080' } } }), sdk.SandboxError, /501.*egressProxy/)
})

const IDENTITY = 'where the operator sets `issuer`; the subject is `project:P:sandbox:ID`, not a SPIFFE ID'

// ---- rules -----------------------------------------------------------------------------------------------------------

const network = (rules) => ({ allowOut: [name, address], denyOut: [ALL_TRAFFIC ?? '0.0.0.0/0'], rules })
const rule = (headers) => ({ [name]: [{ transform: { headers } }] })
const hash = (text) => createHash('sha256').update(text).digest('hex')

async function fetched(sandbox, path = '/') {
  const code = `
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode(), end="")
except Exception as error:
    print("failed:", error, end="")`
  await sandbox.files.write('/tmp/fetch.py', code)
  return (await sandbox.commands.run(`python3 /tmp/fetch.py 'https://${name}${path}'`)).stdout
}
const rules = () => {
  if (!Sandbox.updateNetwork) skip('this line has no rules')
  if (!name || process.env.ISOLA_TEMPLATE === 'minimal') skip('the template has no client for TLS')
}

test('Sandbox.create with network.rules', 'a secret goes out, and is nowhere inside', async () => {
  rules()
  await secret(key, (made) =>
    using({ network: network(rule({ Authorization: `Bearer \${e2b.secrets.${made.name}}` })) }, async (sandbox) => {
      assert.equal(await fetched(sandbox), 'welcome')
      const half = key.length / 2
      const hunt = `word=${key.slice(0, half)}; word=$word''${key.slice(half)}; env | grep -v ^word= | grep -c -F "$word" || true`
      assert.equal((await sandbox.commands.run(hunt)).stdout.trim(), '0')
      // Another value is used from the next request on; none is when it is gone.
      await Secret.update(made.name, 'opens nothing')
      assert.match(await fetched(sandbox), /who are you/)
    }),
  )
}, { timeout: 60_000 })
test('Sandbox.create with network.rules', 'a header that is written out', async () => {
  rules()
  await using({ network: network(rule({ Authorization: `Bearer ${key}`, 'X-Mine': 'my own' })) }, async (sandbox) => {
    assert.equal(await fetched(sandbox), 'welcome')
    assert.equal(await fetched(sandbox, '/hash?of=X-Mine'), hash('my own'))
    const shown = (await sandbox.getInfo()).network.rules[name][0].transform.headers
    assert.deepEqual(Object.keys(shown).sort(), ['Authorization', 'X-Mine'])
    assert.ok(!JSON.stringify(shown).includes(key), 'what is given is not given back')
  })
}, { timeout: 60_000 })
test('Sandbox.create with network.rules', 'a secret that is not there rejects', async () => {
  rules()
  await rejects(own({ network: network(rule({ A: '${e2b.secrets.nobody-has-this}' })) }), sdk.SandboxError, /400/)
  await rejects(own({ network: { rules: { '*': [{ transform: { headers: { A: 'b' } } }] } } }), sdk.SandboxError, /400/)
})
partly(['Secret.iamToken', 'Sandbox.create with iam'], IDENTITY, 'a token that is made when a request needs it', async () => {
  rules()
  if (!Secret?.iamToken) skip('this line has no workload identity')
  const tokens = { aws: Secret.iamToken({ audience: 'sts.example', tokenType: 'JWT-SVID' }) }
  const transform = ({ iam }) => ({ headers: { Authorization: `Bearer ${iam.tokens.aws}` } })
  await using({ iam: { tokens }, network: network({ [name]: [{ transform }] }) }, async (sandbox) => {
    const claims = JSON.parse(await fetched(sandbox, '/claims'))
    assert.deepEqual([claims.aud, claims.sandbox], ['sts.example', sandbox.sandboxId])
  })
}, { timeout: 60_000 })
test('Sandbox.updateNetwork', 'sets rules and takes them away', async () => {
  rules()
  await using({ network: network({}) }, async (sandbox) => {
    assert.notEqual(await fetched(sandbox), 'welcome')
    await sandbox.updateNetwork(network(rule({ Authorization: `Bearer ${key}` })))
    assert.equal(await fetched(sandbox), 'welcome')
    await sandbox.updateNetwork(network({}))
    assert.notEqual(await fetched(sandbox), 'welcome')
  })
}, { timeout: 60_000 })
test('Sandbox.pause', 'rules are there afterwards, and in a fork', async () => {
  rules()
  await using({ network: network(rule({ Authorization: `Bearer ${key}` })) }, async (sandbox) => {
    await sandbox.pause()
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(await fetched(again), 'welcome')
    if (!again.fork) return
    const [child] = await again.fork()
    try {
      assert.equal(await fetched(child), 'welcome')
    } finally {
      await child.kill()
    }
  })
}, { timeout: 60_000 })
