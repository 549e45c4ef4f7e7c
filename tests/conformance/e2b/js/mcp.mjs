// The MCP gateway: the template of examples/e2b/mcp-gateway, built as a user builds it, with a server of ours in it.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { partly, rejects, skip, test } from './harness.mjs'
import { atLeast, box, mode, sdk, template } from './sdk.mjs'

const { Sandbox, Template } = sdk
const here = path.dirname(fileURLToPath(import.meta.url))
const slow = { timeout: 120_000 }
const has = (thing) => thing ?? skip('this line has no MCP')
const config = (run) => ({ 'github/acme/echo': { runCmd: run, envs: { COLOUR: 'blue' } } })

let built
// Once; the SDK asks for that name and no other.
const gateway = () =>
  (built ??= (async () => {
    if (template === 'minimal') skip('the template has too little in it')
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-mcp-'))
    try {
      fs.copyFileSync(path.join(here, '../../../../examples/e2b/mcp-gateway/mcp-gateway'), path.join(folder, 'mcp-gateway'))
      fs.copyFileSync(path.join(here, '../echo_mcp.py'), path.join(folder, 'echo.py'))
      const steps = Template({ fileContextPath: folder })
        .fromTemplate(template)
        .copy('mcp-gateway', '/usr/local/bin/mcp-gateway', { user: 'root', mode: 0o755 })
        .copy('echo.py', '/opt/mcp/github/acme/echo/echo.py', { user: 'root' })
      if (atLeast('2.45.0')) await Template.build(steps, 'mcp-gateway')
      else await Template.build(steps, { alias: 'mcp-gateway' })
    } finally {
      fs.rmSync(folder, { recursive: true })
    }
  })())

async function ask(sandbox, method, params, token) {
  const reply = await fetch(`${process.env.E2B_SANDBOX_URL}/mcp`, {
    method: 'POST',
    headers: {
      'E2b-Sandbox-Id': sandbox.sandboxId,
      'E2b-Sandbox-Port': '50005',
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      Authorization: `Bearer ${token ?? (await sandbox.getMcpToken())}`,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
  })
  return reply.ok ? await reply.json() : reply.status
}
const text = (reply) => reply.result.content[0].text

test(['Sandbox.create with mcp', 'Sandbox.getMcpToken'], 'its servers answer behind one address', async () => {
  has(Sandbox.prototype.getMcpToken)
  if (mode !== 'http') skip('told apart by headers here')
  await gateway()
  const sandbox = await Sandbox.create({ mcp: config('python3 echo.py'), timeoutMs: 60_000 })
  try {
    const about = await ask(sandbox, 'initialize', { protocolVersion: '2025-03-26', capabilities: {}, clientInfo: { name: 'x', version: '1' } })
    assert.equal(about.result.protocolVersion, '2025-03-26')
    assert.deepEqual((await ask(sandbox, 'tools/list', {})).result.tools.map((tool) => tool.name), ['echo', 'whoami', 'leave'])
    assert.equal(text(await ask(sandbox, 'tools/call', { name: 'echo', arguments: { text: 'grüße' } })), 'grüße')
    // Not as root, with its own variables, and without the gateway's token.
    assert.equal(text(await ask(sandbox, 'tools/call', { name: 'whoami', arguments: {} })), '1000 blue None')
    assert.equal((await ask(sandbox, 'tools/call', { name: 'nothing', arguments: {} })).error.code, -32602)
    // One that ends says so, and is there again for the next question.
    assert.match((await ask(sandbox, 'tools/call', { name: 'leave', arguments: {} })).error.message, /ended/)
    assert.equal(text(await ask(sandbox, 'tools/call', { name: 'echo', arguments: { text: 'again' } })), 'again')
    assert.equal(await ask(sandbox, 'tools/list', {}, 'another token'), 401)
    // Another client of the same sandbox reads the token.
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(await again.getMcpToken(), await sandbox.getMcpToken())
  } finally {
    await sandbox.kill()
  }
}, slow)
test('Sandbox.create with mcp', 'a server that does not start, or that nobody knows, rejects', async () => {
  has(Sandbox.prototype.getMcpToken)
  await gateway()
  // Older lines give the command's own error.
  const why = atLeast('2.45.0') ? /Failed to start MCP gateway.*ended/s : /exit status 1/
  await rejects(Sandbox.create({ mcp: config('exit 3'), timeoutMs: 60_000 }), sdk.SandboxError, why)
  await rejects(Sandbox.create({ mcp: { stripe: { secretKey: 'x' } }, timeoutMs: 60_000 }), sdk.SandboxError, atLeast('2.45.0') ? /stripe/ : /exit status 1/)
}, slow)
partly('Template.addMcpServer', 'of the servers that the gateway of this server knows', 'installs it while the template is built', async () => {
  has(Sandbox.prototype.getMcpToken)
  await gateway()
  const add = (name) => {
    const steps = Template().fromTemplate('mcp-gateway').addMcpServer(name)
    return atLeast('2.45.0') ? Template.build(steps, `with-mcp-${process.pid}`) : Template.build(steps, { alias: `with-mcp-${process.pid}` })
  }
  await add('github/acme/echo')
  await rejects(add('stripe'), sdk.BuildError, /exit status 1/)
}, slow)
test('Sandbox.getMcpUrl', 'names the port of the gateway', async () => {
  has(Sandbox.prototype.getMcpUrl)
  assert.match((await box()).getMcpUrl(), /^https:\/\/50005-/)
})
