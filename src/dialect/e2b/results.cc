#include "dialect/e2b/results.h"

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "dialect/shared/text.h"

namespace isola::e2b {

using dialect::text_of;
using nlohmann::json;

namespace {

// What isola_ipython gives, at most.
constexpr size_t kMostColumns = 200, kMostRecords = 1000;

std::string now() {
  auto passed = std::chrono::system_clock::now().time_since_epoch();
  return dialect::when(std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
}

// 'abc' as it is written in Python and JavaScript: clients want the text itself.
std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"'))
    return text.substr(1, text.size() - 2);
  return text;
}

// Base64 as clients want it: without the line break that Python puts behind it.
std::string without_end(std::string text) {
  text.resize(text.find_last_not_of('\n') + 1);
  return text;
}

// {"a": [1, 2], "b": […]} of our records; nothing where there are more than our kernels ever send.
std::optional<json> columns_of(json& frame) {
  if (!frame.is_object()) return std::nullopt;
  auto columns = frame.find("columns"), records = frame.find("records");
  if (columns == frame.end() || !columns->is_array() || records == frame.end() || !records->is_array())
    return std::nullopt;
  if (columns->size() > kMostColumns || records->size() > kMostRecords) return std::nullopt;
  json out = json::object();
  for (const auto& column : *columns) {
    std::string name = text_of(column, "name");
    if (out.contains(name)) continue;  // each value goes to one place
    json& values = out[name] = json::array();
    for (auto& record : *records) {
      auto value = record.is_object() ? record.find(name) : record.end();
      values.push_back(record.is_object() && value != record.end() ? std::move(*value) : json());
    }
  }
  return out;
}

// Our kernels give dates in UTC and leave that out; clients of this dialect read an offset.
void say_offset(json& value) {
  if (!value.is_string()) return;
  auto& text = value.get_ref<std::string&>();
  if (text.size() >= 19 && text[4] == '-' && text[10] == 'T' && text.find_first_of("+-Z", 19) == text.npos)
    text += "+00:00";
}

void say_offsets(json& chart, const char* ticks, size_t place) {
  if (auto at = chart.find(ticks); at != chart.end() && at->is_array())
    for (auto& tick : *at) say_offset(tick);
  auto elements = chart.find("elements");
  if (elements == chart.end() || !elements->is_array()) return;
  for (auto& element : *elements) {
    if (!element.is_object()) continue;
    auto points = element.find("points");
    if (points == element.end() || !points->is_array()) continue;
    for (auto& point : *points)
      if (point.is_array() && point.size() > place) say_offset(point[place]);
  }
}

// As E2B has it: labels as they were written, with their unit.
void to_theirs(json& chart, bool whole = true) {
  if (!chart.is_object()) return;
  for (auto [axis, place] : {std::pair("x", size_t{0}), std::pair("y", size_t{1})}) {
    const std::string name = axis;
    if (auto text = chart.find(name + "_text"); text != chart.end()) {
      if (text->is_string()) chart[name + "_label"] = *text;
      chart.erase(name + "_text");
    }
    if (text_of(chart, (name + "_scale").c_str()) == "datetime") say_offsets(chart, (name + "_ticks").c_str(), place);
  }
  if (auto parts = chart.find("elements");
      whole && text_of(chart, "type") == "superchart" && parts != chart.end() && parts->is_array())
    for (auto& part : *parts) to_theirs(part, false);
}

json result_of(json event) {
  static const std::map<std::string, const char*> kNames = {{"text/plain", "text"},
                                                            {"text/html", "html"},
                                                            {"text/markdown", "markdown"},
                                                            {"image/svg+xml", "svg"},
                                                            {"image/png", "png"},
                                                            {"image/jpeg", "jpeg"},
                                                            {"application/pdf", "pdf"},
                                                            {"text/latex", "latex"},
                                                            {"application/json", "json"},
                                                            {"application/javascript", "javascript"},
                                                            {"application/vnd.isola.chart+json", "chart"}};
  json out = {{"type", "result"}, {"is_main_result", (event.contains("main") && event["main"] == json(true))}};
  auto data = event.find("data");
  if (data == event.end() || !data->is_object()) return out;
  for (auto& [type, value] : data->items()) {
    if (type == "application/vnd.isola.frame+json") {
      if (auto columns = columns_of(value)) out["data"] = std::move(*columns);
      continue;
    }
    auto known = kNames.find(type);
    // A type has a slash; without one it would be a field of the event itself, or another type's.
    if (known == kNames.end() && type.find('/') == std::string::npos) continue;
    std::string name = known == kNames.end() ? type : known->second;
    if (name == "text" && value.is_string())
      out[name] = unquoted(std::move(value.get_ref<std::string&>()));
    else if ((name == "png" || name == "jpeg" || name == "pdf") && value.is_string())
      out[name] = without_end(std::move(value.get_ref<std::string&>()));
    else
      out[name] = std::move(value);
    if (name == "chart") to_theirs(out[name]);
  }
  return out;
}

}  // namespace

json translated(json event) {
  std::string type = text_of(event, "type");
  if (type == "stdout" || type == "stderr")
    return {{"type", type}, {"text", text_of(event, "text")}, {"timestamp", now()}};
  if (type == "result" || type == "display_update") return result_of(std::move(event));
  if (type == "ping") return {{"type", "keepalive"}};
  if (type == "truncated")
    return {{"type", "stderr"},
            {"text", "[the output of this cell was cut here: it is over the limit of " +
                         std::to_string(dialect::number_of(event, "limit_bytes")) + " bytes]\n"},
            {"timestamp", now()}};
  if (type == "lost")
    return {{"type", "stderr"}, {"text", "[" + text_of(event, "message") + "]\n"}, {"timestamp", now()}};
  if (type == "failure")
    return {{"type", "error"}, {"name", "InterpreterError"}, {"value", text_of(event, "message")}, {"traceback", ""}};
  if (type == "error") {
    std::string lines;
    if (auto found = event.find("traceback"); found != event.end() && found->is_array())
      for (const auto& line : *found)
        if (line.is_string()) lines += (lines.empty() ? "" : "\n") + line.get<std::string>();
    return {
        {"type", "error"}, {"name", text_of(event, "name")}, {"value", text_of(event, "value")}, {"traceback", lines}};
  }
  return nullptr;
}

}  // namespace isola::e2b
