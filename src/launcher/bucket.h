// A bucket of an S3-compatible store, as a folder inside a sandbox.
//
// The jail forbids mounting, and the keys must not be inside: so the folder is a FUSE filesystem that is made here and
// bound in, and its server (the distribution's s3fs) runs outside, confined, one for each mount:
//
//   launcher             relay (isola bucket-relay)                  client (s3fs)
//   start_bucket()   →   opens /dev/fuse, makes the filesystem   →   namespaces of its own, a root of its own with
//                        becomes nobody                              nothing in it, nobody, no capabilities
//   mount  ←             the folder can be listed                ←   serves; speaks to the endpoint over
//                        forwards connections to the endpoint,   ←   a socket of its own network, which has
//                        and to nowhere else                         no other end
//
// Both live as long as the filesystem is mounted somewhere, that is as long as the sandbox, whoever else dies. When the
// client dies, whoever uses the folder gets an error (ENOTCONN), and nobody waits.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "kernel/cgroup.h"
#include "kernel/helper.h"
#include "launcher/protocol.h"

namespace isola::launcher {

struct Endpoint {
  bool tls = true;
  std::string host;  // a name, or an IPv4 address
  uint16_t port = 443;
  bool operator==(const Endpoint&) const = default;
};
// "https://s3.example", "http://10.0.0.5:9000": no path, no user, no IPv6 address.
Result<Endpoint> parse_endpoint(const std::string& url);
// Everything about it that becomes a word of somebody's command line is plain.
Result<void> check_bucket(const BucketMount& bucket);

// The words of the relay: it has the mount, or Helper::kFailed.
inline constexpr char kBucketMounted = 'M';
// Its descriptors: the conversation with the launcher, the mount, the socket that the client's connections arrive at,
// what the client writes, the client's pidfd.
inline constexpr int kRelayControl = 3, kRelayMount = 4, kRelayListener = 5, kRelayLog = 6, kRelayClient = 7;
// The client's: the filesystem's own device. It is handed to libfuse by a stand-in for fusermount (take_fuse).
inline constexpr int kClientDevice = 3;

// What all clients of one sandbox together may take.
kernel::CgroupLimits bucket_limits(size_t buckets);
// The control group of those clients.
inline std::string bucket_group(const std::string& sandbox) { return sandbox + "-buckets"; }

// The program, or why there are no buckets here.
Result<std::string> find_bucket_client();

// `credentials`: a pipe from which "ACCESS_KEY_ID:SECRET_ACCESS_KEY" comes, and then its end. Files belong to `owner`.
// The helper's first word is kBucketMounted with the mount as descriptor, or an error; it lives on afterwards.
Result<kernel::Helper> start_bucket(const BucketMount& bucket, uint32_t owner, const kernel::CgroupDoors& doors,
                                    int credentials, const std::string& authorities);

// In the client's libfuse, which believes to start fusermount: gives it the device that it was born with.
int take_fuse(int argc, char** argv);

}  // namespace isola::launcher
