// What templates there are, and what of them needs no server.
import assert from 'node:assert/strict'
import { absent, partly, rejects, skip, test } from './harness.mjs'
import { sdk, template } from './sdk.mjs'

const { Template } = sdk
const has = (thing, what) => thing ?? skip(`this line has no ${what}`)

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
test('Template.exists', 'knows other names of it', async () => {
  has(Template?.exists, 'exists')
  if (!(await Template.exists('code-interpreter'))) skip('the template code-interpreter is not built')
  assert.equal(await Template.exists('code-interpreter-v1'), true)
  assert.equal(await Template.exists(`${template}:latest`), true)
})
test('Template.getTags', 'has the one tag', async () => {
  has(Template?.getTags, 'tags')
  assert.equal((await Template.getTags(template))[0].tag, 'default')
})
test('Template.toDockerfile', 'needs no server', async () => {
  has(Template?.toDockerfile, 'toDockerfile')
  assert.match(Template.toDockerfile(Template().fromImage('ubuntu:22.04').runCmd('true')), /FROM ubuntu:22.04/)
})
test('Template.toJSON', 'needs no server', async () => {
  has(Template?.toJSON, 'toJSON')
  const steps = Template().fromTemplate(template).pipInstall('six').npmInstall('left-pad').aptInstall('jq')
  assert.deepEqual(JSON.parse(await Template.toJSON(steps)).steps.map((step) => step.type), ['RUN', 'RUN', 'RUN'])
})
const installs = (steps) => JSON.parse(steps).steps.map((step) => step.type)
partly(['Template.pipInstall', 'Template.npmInstall', 'Template.bunInstall', 'Template.aptInstall'],
  'steps like any other: what they install comes from outside, under the network that builds have', 'are commands', async () => {
    has(Template?.toJSON, 'toJSON')
    const first = Template().fromTemplate(template).pipInstall('six').npmInstall('left-pad').aptInstall('jq')
    assert.deepEqual(installs(await Template.toJSON(first.bunInstall ? first.bunInstall('left-pad') : first)).slice(0, 3), ['RUN', 'RUN', 'RUN'])
  })
partly('Template.addMcpServer', 'of the servers that the gateway of this server knows', 'is a command of the gateway', async () => {
  const steps = has(Template, 'templates')().fromTemplate('mcp-gateway')
  has(steps.addMcpServer, 'addMcpServer')
  assert.deepEqual(installs(await Template.toJSON(steps.addMcpServer('time'))), ['RUN'])
})
absent(['Template.betaDevContainerPrebuild', 'Template.betaSetDevContainerStart'],
  'there is no template devcontainer: devcontainer.json is built by `isola template build --devcontainer`', async () => {
    const steps = has(Template, 'templates')().fromTemplate('devcontainer')
    has(steps.betaDevContainerPrebuild, 'devcontainers')
    await rejects(Template.build(steps.betaDevContainerPrebuild('/x'), 'with-devcontainer', { alias: 'with-devcontainer' }), Error, /devcontainer/)
  })
absent(['Template.fromAWSRegistry', 'Template.fromGCPRegistry', 'Template.fromImage with credentials'],
  'images are fetched with what the machine knows of registries, not with a caller\'s own credentials', async () => {
    has(Template, 'templates')
    const steps = Template().fromImage('registry.example/x', { username: 'a', password: 'b' })
    await rejects(Template.build(steps, 'with-credentials', { alias: 'with-credentials' }), Error, /credentials/)
  })
