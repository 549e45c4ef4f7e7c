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
let count = 0
export const fresh = async () => `/home/user/t${process.pid}-${count++}`
export const finish = async () => shared?.kill()
