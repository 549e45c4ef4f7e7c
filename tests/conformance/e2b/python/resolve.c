// Preloaded into clients: every name below ISOLA_TEST_DOMAIN is this machine, as a wildcard in DNS would have it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static int is_below(const char* name, const char* domain) {
  size_t have = strlen(name), want = strlen(domain);
  return have > want && name[have - want - 1] == '.' && strcmp(name + have - want, domain) == 0;
}

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
  int (*real)(const char*, const char*, const struct addrinfo*, struct addrinfo**) = dlsym(RTLD_NEXT, "getaddrinfo");
  const char* domain = getenv("ISOLA_TEST_DOMAIN");
  return real(node && domain && is_below(node, domain) ? "127.0.0.1" : node, service, hints, found);
}
