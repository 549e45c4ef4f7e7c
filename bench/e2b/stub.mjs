// The floor: a server that does nothing, and answers the SDK as fast as Node can. What the SDK itself costs is what is
// measured against it. Prints its port.
import http from 'node:http'

const envelope = (flags, text) => {
  const body = Buffer.from(text)
  const head = Buffer.alloc(5)
  head[0] = flags
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}
const output = Buffer.concat([
  envelope(0, '{"event":{"start":{"pid":7}}}'),
  envelope(0, '{"event":{"data":{"stdout":"aGkK"}}}'),
  envelope(0, '{"event":{"end":{"exited":true,"status":"exit status 0"}}}'),
  envelope(2, '{}'),
])
const sandbox = JSON.stringify({
  sandboxID: 'i00000000000000000000',
  templateID: 'base',
  clientID: 'x',
  envdVersion: '0.6.13',
  envdAccessToken: 'x',
  domain: null,
})

const server = http.createServer((request, reply) => {
  request.resume()
  request.on('end', () => {
    if (request.url.startsWith('/process.Process/')) {
      reply.writeHead(200, { 'Content-Type': 'application/connect+json' })
      reply.end(output)
    } else if (request.method === 'DELETE') {
      reply.writeHead(204).end()
    } else {
      reply.writeHead(201, { 'Content-Type': 'application/json' }).end(sandbox)
    }
  })
})
server.keepAliveTimeout = 60_000
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
