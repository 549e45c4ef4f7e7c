// Volumes: made, mounted, and their files without a sandbox.
import assert from 'node:assert/strict'
import { rejects, skip, test } from './harness.mjs'
import { sdk, using } from './sdk.mjs'

const { Volume } = sdk
const FILES = ['list', 'makeDir', 'getInfo', 'exists', 'updateMetadata', 'readFile', 'writeFile', 'remove'].map((name) => `volume.${name}`)
let count = 0
// One for a test, gone afterwards.
async function volume(body) {
  if (!Volume) skip('this line has no volumes')
  const made = await Volume.create(`v${process.pid}-${count++}`)
  try {
    await body(made)
  } finally {
    assert.equal(await Volume.destroy(made.volumeId), true)
  }
}

test(['Volume.create', 'Volume.list', 'Volume.connect', 'Volume.getInfo', 'Volume.destroy'], 'is made, found, listed and ended', () =>
  volume(async (made) => {
    assert.ok((await Volume.list()).some((one) => one.volumeId === made.volumeId && one.name === made.name))
    assert.equal((await Volume.connect(made.volumeId)).name, made.name)
    assert.equal((await Volume.getInfo(made.volumeId)).name, made.name)
    await rejects(Volume.create(made.name), sdk.VolumeError, /taken/)
    assert.equal(await Volume.destroy('vnobody'), false)
  }))
test(['Volume.connect', 'VolumeNotFoundError'], 'rejects with VolumeNotFoundError for what is not there', async () => {
  if (!Volume) skip('this line has no volumes')
  await rejects(Volume.connect('vnobody'), sdk.VolumeNotFoundError ?? sdk.NotFoundError)
  await rejects(Volume.getInfo('vnobody'), sdk.VolumeNotFoundError ?? sdk.NotFoundError)
})
test(FILES, 'has files without a sandbox', () =>
  volume(async (made) => {
    const wrote = await made.writeFile('/a/text.txt', 'grüße\n')
    assert.deepEqual([wrote.name, wrote.type, wrote.path], ['text.txt', 'file', '/a/text.txt'])
    assert.equal(await made.readFile('/a/text.txt'), 'grüße\n')
    assert.equal((await made.getInfo('/a')).type, 'directory')
    assert.equal(await made.exists('/b'), false)
    await made.makeDir('/b')
    assert.deepEqual((await made.list('/')).map((one) => one.name).sort(), ['a', 'b'])
    assert.equal((await made.updateMetadata('/a/text.txt', { mode: 0o600, uid: 7 })).mode & 0o777, 0o600)
    await made.remove('/a')
    assert.equal(await made.exists('/a/text.txt'), false)
  }))
test(['volume.list', 'volume.remove', 'volume.updateMetadata'], 'of what is not there rejects with its type', () =>
  volume(async (made) => {
    const wrong = sdk.VolumePathNotFoundError ?? sdk.NotFoundError
    await rejects(made.list('/no/such'), wrong)
    await rejects(made.updateMetadata('/no/such', { mode: 0o600 }), wrong)
    await rejects(made.remove('/no/such'), wrong)
  }))
test('Sandbox.create with volumeMounts', 'shares its files with the volume', () =>
  volume(async (made) => {
    await made.writeFile('/in', 'from outside')
    await using({ volumeMounts: { '/mnt/data': made } }, async (sandbox) => {
      assert.equal(await sandbox.files.read('/mnt/data/in'), 'from outside')
      await sandbox.commands.run('echo inside >/mnt/data/out')
      await rejects(Volume.destroy(made.volumeId), sdk.VolumeError, /409/)
    })
    assert.equal(await made.readFile('/out'), 'inside\n')
  }))
