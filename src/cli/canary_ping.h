// What `ping-out` inside and the runner outside say to each other by ICMP. Inside a sandbox every address may be its
// own, and then its own kernel answers a ping as well as any host would: only these words tell the two apart.
#pragma once

#include <netinet/ip_icmp.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace isola::cli {

inline constexpr std::string_view kPingQuestion = "isola-prove asks", kPingAnswer = "isola-prove answers";

// The whole ICMP message, with its checksum: the kernel makes none for raw sockets.
inline std::string echo_message(icmphdr header, std::string_view words) {
  header.checksum = 0;
  std::string message(sizeof header, '\0');
  std::memcpy(message.data(), &header, sizeof header);
  message += words;
  if (message.size() % 2) message += '\0';
  uint32_t sum = 0;
  for (size_t i = 0; i < message.size(); i += 2) {
    uint16_t word = 0;
    std::memcpy(&word, message.data() + i, sizeof word);
    sum += word;
  }
  sum = (sum >> 16) + (sum & 0xffff);
  header.checksum = static_cast<uint16_t>(~(sum + (sum >> 16)));
  std::memcpy(message.data(), &header, sizeof header);
  return message;
}

}  // namespace isola::cli
