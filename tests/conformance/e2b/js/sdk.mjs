// The SDK under test, out of the folder that E2B_PACKAGE names, and what all tests share.
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const folder = process.env.E2B_PACKAGE
const require = createRequire(path.join(folder, 'x.js'))
const packaged = require('e2b/package.json')
const entry = path.join(folder, 'node_modules/e2b', packaged.module ?? 'dist/index.mjs')
export const version = packaged.version
export const atLeast = (wanted) => {
  const [a, b] = [version, wanted].map((text) => text.split('.').map(Number))
  for (let i = 0; i < 3; i++) if (a[i] !== b[i]) return a[i] > b[i]
  return true
}
// The module form of some older versions cannot load its own dependencies ("Dynamic require of undici is not supported").
export const sdk = atLeast('2.45.0') ? await import(pathToFileURL(entry).href) : require('e2b')
export const template = process.env.ISOLA_TEMPLATE
export const mode = process.env.ISOLA_MODE // http or tls

let shared
// One sandbox for all tests that leave no mark on each other.
export const box = async () => (shared ??= await sdk.Sandbox.create(template, { timeoutMs: 300_000 }))
export const own = (options = {}) => sdk.Sandbox.create(template, { timeoutMs: 60_000, ...options })
// A sandbox for one test, gone afterwards.
export async function using(options, body) {
  const sandbox = await own(options)
  try {
    await body(sandbox)
  } finally {
    await sandbox.kill()
  }
}
// Whether a program inside gets an answer from the server outside (tests/server/demanding.py), which asks who it is.
// By its name: it lies on this machine, and its address is the sandbox's own inside. A policy that opens it names both.
const { ISOLA_OUTSIDE_NAME: outsideName, ISOLA_OUTSIDE_ADDRESS: outsideAddress } = process.env
export const outside = outsideName && [outsideName, outsideAddress]
export async function reaches(sandbox) {
  const ask = `curl -sk --max-time 20 -o /dev/null -w '%{http_code}' https://${outsideName}/ || true`
  return (await sandbox.commands.run(ask)).stdout === '401'
}
// Whether names are looked up, which they are where the internet is open: that a connection fails says nothing on a machine
// without it.
export const finds = async (sandbox) => (await sandbox.commands.run(`getent hosts ${outsideName} || true`)).stdout.includes(outsideName)
export const newest = atLeast('2.51.0')
let count = 0
export const fresh = async () => `/home/user/t${process.pid}-${count++}`
export const finish = async () => shared?.kill()
