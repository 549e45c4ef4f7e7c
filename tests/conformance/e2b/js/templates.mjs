// What templates there are, and what of them needs no server.
import assert from 'node:assert/strict'
import { absent, rejects, skip, test } from './harness.mjs'
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
absent(['Template.fromAWSRegistry', 'Template.fromGCPRegistry', 'Template.fromImage with credentials'],
  'images are fetched with what the machine knows of registries, not with a caller\'s own credentials', async () => {
    has(Template, 'templates')
    const steps = Template().fromImage('registry.example/x', { username: 'a', password: 'b' })
    await rejects(Template.build(steps, 'with-credentials', { alias: 'with-credentials' }), Error, /credentials/)
  })
