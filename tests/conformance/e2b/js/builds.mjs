// Templates that users build: the builder's steps, files, what runs at the start, failures, tags.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { eventually, partly, rejects, skip, test } from './harness.mjs'
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

test(['Template.build', 'Template.fromTemplate', 'Template.runCmd', 'Template.setEnvs', 'Template.setWorkdir'], 'runs the steps, and sandboxes have what they made', async () => {
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

test(['Template.build', 'Template.copy'], 'copies files', async () => {
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

test(['Template.setUser', 'Template.build'], 'the last one is who commands and files of a sandbox belong to', async () => {
  has(Template, 'templates')
  const name = fresh()
  await build(Template().fromTemplate(template).runCmd('true').setUser('root'), name)
  await inside(name, async (sandbox) => {
    assert.equal((await sandbox.commands.run('whoami; pwd')).stdout, 'root\n/root\n')
    await sandbox.files.write('mine', 'x')
    assert.equal((await sandbox.commands.run('stat -c "%U %n" /root/mine')).stdout, 'root /root/mine\n')
    assert.equal((await sandbox.commands.run('whoami; pwd', { user: 'user' })).stdout, 'user\n/home/user\n')
  })
  // And one that stands on it begins there.
  const other = fresh()
  await build(Template().fromTemplate(name).runCmd('whoami > /opt/who'), other)
  await inside(other, async (sandbox) => assert.equal((await sandbox.commands.run('cat /opt/who; whoami')).stdout, 'root\nroot\n'))
}, slow)

test(['Template.copy', 'Template.setWorkdir'], 'relative paths begin at home', async () => {
  has(Template, 'templates')
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-build-'))
  fs.writeFileSync(path.join(folder, 'one'), 'one')
  const name = fresh()
  const steps = Template({ fileContextPath: folder }).fromTemplate(template)
    .copy('one', 'here/one').runCmd('pwd > ran').setWorkdir('deep').copy('one', 'two').runCmd('pwd > ran')
  try {
    await build(steps, name)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
  await inside(name, async (sandbox) => {
    const { stdout } = await sandbox.commands.run('cd; cat here/one deep/two; echo; cat ran deep/ran; stat -c %U here/one deep deep/two')
    assert.equal(stdout, 'oneone\n/home/user\n/home/user/deep\nuser\nuser\nuser\n')
  })
}, slow)

const OF_THE_OPERATOR =
  'an image is what the operator has for it: fetched from registries that are allowed (`registries`), or a template that stands for it (`e2b.images`)'
partly('Template.fromImage', OF_THE_OPERATOR, 'is what the operator says it is', async () => {
  has(Template, 'templates')
  const name = fresh()
  await build(Template().fromImage('debian:mapped').runCmd('echo image > /home/user/who'), name)
  await inside(name, async (sandbox) => assert.equal(await sandbox.files.read('/home/user/who'), 'image\n'))
}, slow)
const IMAGES = ['Debian', 'Ubuntu', 'Fedora', 'Alpine', 'Arch', 'Python', 'Node', 'Bun']
partly(IMAGES.map((name) => `Template.from${name}Image`), OF_THE_OPERATOR, 'is what the operator says it is', async () => {
    has(Template, 'templates')
    for (const image of IMAGES) {
      const begun = Template()
      if (!begun[`from${image}Image`]) continue
      const name = fresh()
      await build(begun[`from${image}Image`]('mapped').runCmd(`echo ${image} > /home/user/who`), name)
      await inside(name, async (sandbox) => assert.equal(await sandbox.files.read('/home/user/who'), `${image}\n`))
    }
  }, { timeout: 300_000 })

// A wheel is a zip archive without compression: made here, since what is installed may not come from outside.
const WHEEL = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/island-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('island.py', 'print("from a wheel")\\n')
    wheel.writestr('island-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: island\\nVersion: 1.0\\n')
    wheel.writestr('island-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('island-1.0.dist-info/RECORD', 'island.py,,\\nisland-1.0.dist-info/METADATA,,\\nisland-1.0.dist-info/WHEEL,,\\nisland-1.0.dist-info/RECORD,,\\n')
`
const FROM_OUTSIDE = 'steps like any other: what they install comes from outside, under the network that builds have'
partly('Template.pipInstall', FROM_OUTSIDE, 'installs a wheel that was copied', async () => {
  has(Template, 'templates')
  if (template === 'minimal') skip('the template has no pip')
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'isola-build-'))
  const name = fresh()
  try {
    execFileSync('python3', ['-c', WHEEL, folder])
    const wheel = 'island-1.0-py3-none-any.whl'
    await build(Template({ fileContextPath: folder }).fromTemplate(template).copy(wheel, `/home/user/${wheel}`).pipInstall(`/home/user/${wheel}`), name)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
  await inside(name, async (sandbox) => assert.equal((await sandbox.commands.run('python3 -m island')).stdout, 'from a wheel\n'))
}, slow)
partly(['Template.npmInstall', 'Template.bunInstall', 'Template.aptInstall'], FROM_OUTSIDE, 'run the program of that name', async () => {
  has(Template, 'templates')
  const name = fresh()
  // In the place of each program one that writes down what it was asked for, and by whom.
  const stand = 'for one in npm bun apt-get; do printf \'#!/bin/sh\\necho "%s $* $(whoami)" >> /opt/asked\\n\' $one > /usr/local/bin/$one; chmod 755 /usr/local/bin/$one; done; touch /opt/asked; chmod 666 /opt/asked'
  const begun = Template().fromTemplate(template).runCmd(stand, { user: 'root' }).npmInstall('left-pad', { g: true })
  await build((begun.bunInstall ? begun.bunInstall('left-pad') : begun).aptInstall('jq'), name)
  const wanted = ['npm install -g left-pad root', ...(begun.bunInstall ? ['bun install left-pad user'] : []), 'apt-get update root', 'apt-get install -y jq root']
  await inside(name, async (sandbox) => assert.deepEqual((await sandbox.files.read('/opt/asked')).trimEnd().split('\n'), wanted))
}, slow)

test(['Template.build', 'Template.setStartCmd'], 'keeps what the start command runs', async () => {
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

test(['Template.build', 'BuildError'], 'a step that fails rejects with BuildError', async () => {
  has(Template, 'templates')
  const error = await rejects(build(Template().fromTemplate(template).runCmd('exit 3'), fresh()), sdk.BuildError)
  assert.match(error.message, /exit status 3/)
}, slow)

test('Template.build', 'an image that cannot be fetched rejects', async () => {
  has(Template, 'templates')
  await rejects(build(Template().fromImage('ubuntu:20.04'), fresh()), sdk.BuildError, /ubuntu/)
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
  await rejects(Template.getBuildStatus({ templateId: 'a', buildId: 'b' }), sdk.BuildError, /404/)
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

test(['Template.assignTags', 'Sandbox.create'], 'latest is a tag like any other, and of this machine\'s templates the only one', async () => {
  has(Template?.assignTags, 'tags')
  const name = fresh()
  await build(Template().fromTemplate(template).runCmd('echo old > /home/user/n'), name)
  await build(Template().fromTemplate(template).runCmd('echo new > /home/user/n'), `${name}:latest`)
  await inside(`${name}:latest`, async (sandbox) => assert.equal(await sandbox.files.read('n'), 'new\n'))
  await inside(`${name}:default`, async (sandbox) => assert.equal(await sandbox.files.read('n'), 'old\n'))
  await inside(`${template}:latest`, async (sandbox) => assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n'))
  await rejects(Sandbox.create(`${template}:v7`), sdk.SandboxError, /404/)
}, slow)

test('Template.build', 'its id means it, too', async () => {
  has(Template?.buildInBackground, 'background builds')
  if (!atLeast('2.45.0')) skip('this line does not give the id')
  const name = fresh()
  const info = await build(Template().fromTemplate(template).runCmd('echo 1 > /home/user/n'), name)
  const sandbox = await Sandbox.create(info.templateId, { timeoutMs: 60_000 })
  try {
    assert.equal(await sandbox.files.read('n'), '1\n')
    assert.equal((await sandbox.getInfo()).templateId, info.templateId)
    for (const query of [{ template: name }, { template: info.templateId }])
      if (atLeast('2.51.0')) assert.deepEqual((await Sandbox.list({ query }).nextItems()).map((one) => one.sandboxId), [sandbox.sandboxId])
  } finally {
    await sandbox.kill()
  }
}, slow)

test('Template.removeTags', 'and then no more', async () => {
  has(Template?.removeTags, 'tags')
  const name = fresh()
  await build(Template().fromTemplate(template).runCmd('true'), `${name}:v1`)
  await Template.removeTags(name, 'v1')
  await rejects(Sandbox.create(`${name}:v1`), sdk.SandboxError, /404/)
  await rejects(Template.removeTags(name, 'v1'), sdk.TemplateError, /404/)
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

test(['waitForFile', 'waitForPort', 'waitForProcess', 'waitForTimeout', 'waitForURL'],
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
