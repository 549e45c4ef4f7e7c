// The public methods, functions and errors of the package, out of its own declarations: one that no test is about fails the
// run, so that the matrix has a row for each of them.
import fs from 'node:fs'
import path from 'node:path'

const PREFIXES = {
  SandboxApi: 'Sandbox', Sandbox: 'Sandbox', Filesystem: 'files', Commands: 'commands', CommandHandle: 'commandHandle',
  WatchHandle: 'watchHandle', Pty: 'pty', Git: 'git', Volume: 'volume', Secret: 'Secret', TemplateBase: 'Template',
}
const METHOD = /^(?:    |  |\t)((?:(?:static|abstract|private|protected|readonly|get|set) )*)(\w+)(?:<[^(]*?>)?\(/gm
// Not for callers: what classes of the package ask each other.
const INNER = new Set(['Template.toString', 'Sandbox.resolveTemplateAndOpts'])

// What is exported beside methods: classes whose methods have rows of their own, words, and what never asks a server.
const NO_ROW = new Set(['default', 'ApiClient', 'CommandHandle', 'Commands', 'ConnectionConfig', 'Filesystem', 'Git', 'Pty', 'ReadyCmd', 'Sandbox',
  'Secret', 'Template', 'TemplateBase', 'Volume', 'VolumeConnectionConfig', 'WatchHandle',
  'FileType', 'FilesystemEventType', 'VolumeFileType', 'LogEntry', 'LogEntryStart', 'LogEntryEnd', 'defaultBuildLogger'])

function exported(text) {
  const list = [...text.matchAll(/^export \{(.*?)\}/gms)].flatMap(([, inside]) => inside.split(','))
  return list.map((word) => word.trim()).flatMap((word) => {
    const name = word.replace(/^type /, '').replace(/^.* as /, '')
    return name && !NO_ROW.has(name) && (!word.startsWith('type ') || name.endsWith('Paginator')) ? [name] : []
  })
}

export function declared(text) {
  const names = new Set()
  for (const [, name, inside] of text.matchAll(/^declare (?:abstract )?class (\w+)[^{]*\{\n(.*?)^\}/gms)) {
    if (name.endsWith('Error')) names.add(name)
    if (!PREFIXES[name]) continue
    for (const [, words, method] of inside.replace(/\/\*\*.*?\*\//gs, '').matchAll(METHOD)) {
      if (/private|protected|get |set /.test(words) || method === 'constructor') continue
      // What a volume itself does, and what makes one.
      const prefix = name === 'Volume' && words.includes('static') ? 'Volume' : PREFIXES[name]
      if (!INNER.has(`${prefix}.${method}`)) names.add(`${prefix}.${method}`)
    }
  }
  return [...names]
}

// Those without a row of exactly that name: "Template.fromImage with credentials" says nothing of Template.fromImage.
export function untested(folder, tested) {
  const text = fs.readFileSync(path.join(folder, 'node_modules/e2b/dist/index.d.ts'), 'utf8')
  return [...new Set([...declared(text), ...exported(text)])].filter((name) => !tested.has(name))
}
