// What E2B has and this server does not yet: the call fails, with the type that users catch and a word about why.
import assert from 'node:assert/strict'
import { absent, rejects, skip, test } from './harness.mjs'
import { box, own, sdk, template } from './sdk.mjs'

const { Sandbox, Template, Secret } = sdk
const vault = 'the vault is not built yet'
const notYet = /501|not available/
const has = (thing, what) => thing ?? skip(`this line has no ${what}`)

test('Sandbox.deleteSnapshot', 'says false for what is not there', async () => {
  has(Sandbox.deleteSnapshot, 'snapshots')
  assert.equal(await Sandbox.deleteSnapshot('nothing:default'), false)
})
absent('Sandbox.getMcpUrl', 'there is no mcp-gateway template', async () => {
  has(Sandbox.prototype.getMcpUrl, 'MCP')
  assert.match((await box()).getMcpUrl(), /^https:\/\/50005-/)
})
test('Template.exists', 'knows what is there', async () => {
  has(Template?.exists, 'exists')
  assert.equal(await Template.exists(template), true)
  assert.equal(await Template.exists('no-such-template'), false)
})
test('Template.aliasExists', 'knows what is there', async () => {
  has(Template?.aliasExists, 'aliasExists')
  assert.equal(await Template.aliasExists(template), true)
  assert.equal(await Template.aliasExists('no-such-template'), false)
})
test('Template.getTags', 'has the one tag', async () => {
  has(Template?.getTags, 'tags')
  assert.equal((await Template.getTags(template))[0].tag, 'default')
})
test('Template.toDockerfile', 'needs no server', async () => {
  has(Template?.toDockerfile, 'toDockerfile')
  assert.match(Template.toDockerfile(Template().fromImage('ubuntu:22.04').runCmd('true')), /FROM ubuntu:22.04/)
})
absent('Secret', vault, async () => {
  has(Secret, 'secrets')
  await rejects(Secret.create('x', 'y'), Error, notYet)
  await rejects(Secret.list().nextItems(), Error, notYet)
  await rejects(Secret.destroy('x'), Error, notYet)
})
absent('Sandbox.create with network.rules', vault, async () => {
  if (!Sandbox.updateNetwork) skip('this line has no rules')
  const network = { rules: { 'example.org': [{ transform: { headers: { 'X-A': 'b' } } }] } }
  await rejects(own({ network }), sdk.SandboxError, notYet)
})
