// Preloaded in the TLS domain mode: every name below the test's domain is this machine, as a wildcard in DNS would have it.
import dns from 'node:dns'

const domain = '.' + process.env.ISOLA_TEST_DOMAIN
const lookup = dns.lookup
dns.lookup = (host, options, done) => {
  if (typeof options === 'function') [done, options] = [options, {}]
  if (!String(host).endsWith(domain)) return lookup(host, options, done)
  const address = { address: '127.0.0.1', family: 4 }
  process.nextTick(() => (options?.all ? done(null, [address]) : done(null, address.address, 4)))
}
