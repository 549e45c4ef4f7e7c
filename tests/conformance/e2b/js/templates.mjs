// What templates there are, and what of them needs no server.
import assert from 'node:assert/strict'
import { absent, partly, rejectsExactly, skip, test } from './harness.mjs'
import { atLeast, sdk, template } from './sdk.mjs'

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
// Older lines take the name as an option.
const build = (steps, name) => (atLeast('2.45.0') ? Template.build(steps, name) : Template.build(steps, { alias: name }))

const NO_DEVCONTAINER = 'there is no template devcontainer: devcontainer.json is built by `isola template build --devcontainer`'
for (const call of ['betaDevContainerPrebuild', 'betaSetDevContainerStart'])
  absent(`Template.${call}`, NO_DEVCONTAINER, async () => {
    const steps = has(Template, 'templates')().fromTemplate('devcontainer')
    has(steps[call], 'devcontainers')
    await rejectsExactly(build(steps[call]('/x'), 'with-devcontainer'), sdk.BuildError, /devcontainer/)
  })
absent('Template.fromAWSRegistry', 'credentials are a user and a password, or a GCP service account\'s key', async () => {
  const steps = has(Template, 'templates')().fromAWSRegistry('registry.example/x', { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' })
  await rejectsExactly(build(steps, 'with-credentials'), sdk.BuildError, /aws/)
})
// What they open is shown with a registry (tests/server/oci_test.py).
const OF_THE_OPERATOR = 'from registries that the operator names (`registries`)'
const WITH_CREDENTIALS = {
  'Template.fromGCPRegistry': (steps) => steps.fromGCPRegistry('registry.example/x', { serviceAccountJSON: { a: 'b' } }),
  'Template.fromImage with credentials': (steps) => steps.fromImage('registry.example/x', { username: 'a', password: 'b' }),
}
for (const [method, begin] of Object.entries(WITH_CREDENTIALS))
  partly(method, OF_THE_OPERATOR, 'a registry that the operator does not name is a BuildError', async () => {
    await rejectsExactly(build(begin(has(Template, 'templates')()), 'with-credentials'), sdk.BuildError, /registries/)
  })
