// Templates that users build: the builder's steps, files, what runs at the start, failures, tags.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { eventually, rejects, skip, test } from './harness.mjs'
import { sdk, template, atLeast } from './sdk.mjs'

const { Sandbox, Template } = sdk
const has = (thing, what) => thing ?? skip(`this line has no ${what}`)
let count = 0
const fresh = () => `built-${process.pid}-${count++}`
const slow = { timeout: 120_000 }
// Older lines take the name as an option.
const build = (steps, name, options = {}) =>
  atLeast('2.45.0') ? Template.build(steps, name, options) : Template.build(steps, { alias: name, ...options })

async function inside(name, body) {
  const sandbox = await Sandbox.create(name, { timeoutMs: 60_000 })
  try {
    return await body(sandbox)
  } finally {
    await sandbox.kill()
  }
}

test('Template.build', 'runs the steps, and sandboxes have what they made', async () => {
  has(Template, 'templates')
  const name = fresh()
  const said = []
  const steps = Template()
    .fromTemplate(template)
    .setEnvs({ COLOUR: 'blue' })
    .setWorkdir('/home/user/work')
    .runCmd('echo $COLOUR > made')
    .setUser('root')
    .runCmd('whoami > /opt/who')
    .setUser('user')
  await build(steps, name, { onBuildLogs: (entry) => said.push(String(entry.message ?? entry)) })
  assert.ok(said.some((line) => line.includes('made')), said.join('\n'))
  await inside(name, async (sandbox) => {
    assert.equal((await sandbox.commands.run('cat /home/user/work/made /opt/who')).stdout, 'blue\nroot\n')
    assert.equal((await sandbox.commands.run('echo $COLOUR; pwd')).stdout, 'blue\n/home/user/work\n')
  })
}, slow)

test('Template.build', 'copies files', async () => {
  has(Template, 'templates')
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-build-'))
  fs.mkdirSync(path.join(folder, 'app/deep'), { recursive: true })
  fs.writeFileSync(path.join(folder, 'app/a.txt'), 'one')
  fs.writeFileSync(path.join(folder, 'app/deep/b.txt'), 'two')
  const name = fresh()
  try {
    await build(Template({ fileContextPath: folder }).fromTemplate(template).copy('app', '/home/user/app'), name)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
  await inside(name, async (sandbox) => {
    assert.equal((await sandbox.commands.run('cat app/a.txt app/deep/b.txt; stat -c %U app/a.txt')).stdout, 'onetwouser\n')
  })
}, slow)

test('Template.build', 'keeps what the start command runs', async () => {
  has(Template, 'templates')
  const name = fresh()
  const steps = Template()
    .fromTemplate(template)
    .setStartCmd('echo started > /home/user/mark; exec sleep 54321', 'test -e /home/user/mark')
  await build(steps, name)
  await inside(name, async (sandbox) => {
    assert.equal((await sandbox.commands.run('cat mark; pgrep -c -x sleep')).stdout, 'started\n1\n')
  })
}, slow)

test('Template.build', 'a step that fails rejects with BuildError', async () => {
  has(Template, 'templates')
  const error = await rejects(build(Template().fromTemplate(template).runCmd('exit 3'), fresh()), sdk.BuildError ?? Error)
  assert.match(error.message, /exit status 3/)
}, slow)

test('Template.build', 'an image that cannot be fetched rejects', async () => {
  has(Template, 'templates')
  await rejects(build(Template().fromImage('ubuntu:22.04'), fresh()), Error, /ubuntu/)
}, slow)

test('Template.buildInBackground', 'gives ids at once, and the status follows', async () => {
  has(Template?.buildInBackground, 'background builds')
  const steps = Template().fromTemplate(template).runCmd('sleep 1')
  const name = fresh()
  const info = atLeast('2.45.0')
    ? await Template.buildInBackground(steps, name)
    : await Template.buildInBackground(steps, { alias: name })
  assert.ok(info.templateId && info.buildId)
  await eventually(async () => (await Template.getBuildStatus(info)).status === 'ready', 'the build', 60_000)
}, slow)

test('Template.getBuildStatus', 'unknown builds reject', async () => {
  has(Template?.getBuildStatus, 'build status')
  await rejects(Template.getBuildStatus({ templateId: 'a', buildId: 'b' }), Error)
})

test('Template.assignTags', 'a tag means a build', async () => {
  has(Template?.assignTags, 'tags')
  const name = fresh()
  await build(Template().fromTemplate(template).runCmd('echo 1 > /home/user/n'), `${name}:v1`)
  await Template.assignTags(`${name}:v1`, ['stable'])
  assert.ok((await Template.getTags(name)).some((one) => one.tag === 'stable'))
  await inside(`${name}:stable`, async (sandbox) => {
    assert.equal((await sandbox.commands.run('cat /home/user/n')).stdout, '1\n')
  })
}, slow)

test('Template.removeTags', 'and then no more', async () => {
  has(Template?.removeTags, 'tags')
  const name = fresh()
  await build(Template().fromTemplate(template).runCmd('true'), `${name}:v1`)
  await Template.removeTags(name, 'v1')
  await rejects(Sandbox.create(`${name}:v1`), Error)
  await rejects(Template.removeTags(name, 'v1'), Error)
}, slow)

test(
  ['copyItems', 'makeDir', 'makeSymlink', 'rename', 'remove', 'setUser', 'skipCache', 'gitClone', 'setReadyCmd', 'fromBaseImage']
    .map((name) => `Template.${name}`),
  'steps of every kind',
  async () => {
    has(Template, 'templates')
    if (template === 'minimal') skip('there is no template base')
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-build-'))
    for (const name of ['one', 'two']) fs.writeFileSync(path.join(folder, name), name)
    const name = fresh()
    const first = Template({ fileContextPath: folder }).fromBaseImage()
    const steps = (first.skipCache ? first.skipCache() : first)
      .copyItems([{ src: 'one', dest: '/home/user/in/one' }, { src: 'two', dest: '/home/user/in/two' }])
      .makeDir('/home/user/made/deep')
      .makeSymlink('/home/user/in/one', '/home/user/link')
      .rename('/home/user/in/two', '/home/user/in/three', { user: 'root' })
      .runCmd('touch /home/user/gone')
      .remove('/home/user/gone')
      .runCmd('git init -q /tmp/repo && cd /tmp/repo && git -c user.name=a -c user.email=a@b.example commit -q --allow-empty -m x')
      .gitClone('/tmp/repo', '/home/user/clone')
      .setUser('root')
      .runCmd('whoami > /opt/who')
      .setUser('user')
      .setReadyCmd('test -e /opt/who')
    try {
      await build(steps, name)
    } finally {
      fs.rmSync(folder, { recursive: true })
    }
    await inside(name, async (sandbox) => {
      const { stdout } = await sandbox.commands.run('cat link in/three /opt/who; ls -d clone in link made; test -d made/deep -a -d clone/.git')
      assert.equal(stdout, 'onetworoot\nclone\nin\nlink\nmade\n')
    })
  },
  slow,
)

test('Template.fromDockerfile', 'its lines are steps', async () => {
  has(Template, 'templates')
  if (template === 'minimal') skip('there is no template base')
  const name = fresh()
  await build(Template().fromDockerfile('FROM e2bdev/base\nENV A=b\nRUN echo $A > /home/user/who\n'), name)
  await inside(name, async (sandbox) => assert.equal((await sandbox.commands.run('cat /home/user/who')).stdout, 'b\n'))
}, slow)

test(['waitForFile', 'waitForPort', 'waitForProcess', 'waitForTimeout', 'waitForURL'].map((name) => `Template.setStartCmd with ${name}`),
  'what was started is there when a sandbox is', async () => {
    has(sdk.waitForPort, 'such helpers')
    const serve = 'touch /home/user/up; exec python3 -m http.server 8123'
    for (const ready of [sdk.waitForFile('/home/user/up'), sdk.waitForPort(8123), sdk.waitForProcess('python3'),
      sdk.waitForTimeout(500), sdk.waitForURL('http://127.0.0.1:8123/')]) {
      if (template === 'minimal') skip('the template has no http.server')
      const name = fresh()
      await build(Template().fromTemplate(template).setStartCmd(serve, ready), name)
      await inside(name, (sandbox) => sandbox.commands.run('test -e /home/user/up && pgrep -f http.server'))
    }
  }, { timeout: 300_000 })
