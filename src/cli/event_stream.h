// Server-sent events, out of pieces as they come.
//
//   EventStream stream([](const std::string& event, const std::string& data) { … });
//   stream.feed(piece);
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace isola::cli {

class EventStream {
 public:
  using Take = std::function<void(const std::string& event, const std::string& data)>;
  explicit EventStream(Take take) : take_(std::move(take)) {}
  void feed(std::string_view piece);

 private:
  void line(std::string_view text);
  Take take_;
  std::string line_, event_, data_;
};

}  // namespace isola::cli
