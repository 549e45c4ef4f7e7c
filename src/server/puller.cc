#include "server/puller.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/log.h"
#include "image/oci_reference.h"
#include "sandbox/bell.h"
#include "vault/seal.h"

namespace isola::server {

namespace {

constexpr size_t kMostPulled = 1 << 20;

Result<std::string> read_report(const Fd& from) {
  std::string text;
  char buffer[16 << 10];
  for (;;) {
    ssize_t n = ::read(from.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot hear of the image");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMostPulled) return fail(Code::exhausted, "too much is said of the image");
  }
}

struct Waiting {
  std::mutex mutex;
  std::optional<Result<std::string>> name;  // under mutex
  sandbox::Bell bell;
};

}  // namespace

Result<std::string> pulled_name(std::string_view report) {
  auto json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_object()) return fail(Code::unavailable, "the image could not be fetched: see the server's log");
  if (auto name = json.find("name"); name != json.end() && name->is_string()) return name->get<std::string>();
  std::string why = "no reason is known", word;
  if (auto error = json.find("error"); error != json.end() && error->is_object()) {
    if (auto text = error->find("message"); text != error->end() && text->is_string()) why = text->get<std::string>();
    if (auto text = error->find("code"); text != error->end() && text->is_string()) word = text->get<std::string>();
  }
  for (int i = 0; i <= static_cast<int>(Code::internal); ++i)
    if (word == to_string(static_cast<Code>(i))) return fail(static_cast<Code>(i), why);
  return fail(Code::unavailable, why);
}

Result<void> check_registry(const std::vector<std::string>& registries, const std::string& image) {
  if (image.starts_with("oci:"))
    return fail(Code::denied, "an image on disk (" + log::quoted(image) +
                                  ") is for whoever is root on the server's machine: `isola template build` there");
  ISOLA_TRY(auto reference, image::parse_reference(image));
  if (std::ranges::find(registries, reference.registry) != registries.end()) return {};
  return fail(Code::unsupported,
              fmt::format("{} is no template here, and images are not fetched from {}: the setting `registries` has {}",
                          log::quoted(image), reference.registry,
                          registries.empty() ? "none" : fmt::format("{}", fmt::join(registries, ", "))));
}

Task<Result<std::string>> Puller::pull(std::string image, std::string credentials) {
  auto started = start_(image, credentials);
  vault::wipe(credentials);
  ISOLA_CO_TRY(Fd report, std::move(started));
  auto waiting = std::make_shared<Waiting>();
  // Builds are few at a time; whoever reads here only waits.
  std::thread([waiting, report = std::move(report)]() mutable {
    auto text = read_report(report);
    {
      std::lock_guard lock(waiting->mutex);
      waiting->name = text ? pulled_name(*text) : text;
    }
    waiting->bell.ring();
  }).detach();
  for (;;) {
    uint64_t ticket = waiting->bell.ticket();
    {
      std::lock_guard lock(waiting->mutex);
      if (waiting->name) co_return std::move(*waiting->name);
    }
    co_await waiting->bell.wait(ticket);
  }
}

}  // namespace isola::server
