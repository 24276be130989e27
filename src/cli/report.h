// Facts in sections, printed as text or as JSON.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::cli {

class Report {
 public:
  using Json = nlohmann::ordered_json;

  struct Section {
    std::string key, title;
    struct Row {
      std::string key, label, text;  // several lines of `text` are aligned
      Json value;
    };
    std::vector<Row> rows;

    // `label` and `text` are printed as text, `key` and `value` as JSON. By default the value is the text.
    Section& row(std::string row_key, std::string label, std::string text) {
      Json value = text;
      return row(std::move(row_key), std::move(label), std::move(text), std::move(value));
    }
    Section& row(std::string row_key, std::string label, std::string text, Json value) {
      rows.push_back({std::move(row_key), std::move(label), std::move(text), std::move(value)});
      return *this;
    }
  };
  struct Problem {
    std::string what, hint;
  };

  // The reference is valid until the next call.
  Section& section(std::string key, std::string title) {
    sections_.push_back({std::move(key), std::move(title), {}});
    return sections_.back();
  }
  void problem(std::string what, std::string hint) {
    problems_.push_back({std::move(what), std::move(hint)});
  }

  std::string as_text(bool colour) const {
    const char* bold = colour ? "\033[1m" : "";
    const char* red = colour ? "\033[1;31m" : "";
    const char* plain = colour ? "\033[0m" : "";
    std::string out;
    for (const auto& section : sections_) {
      out += fmt::format("{}{}{}\n", bold, section.title, plain);
      size_t width = 12;
      for (const auto& row : section.rows) width = std::max(width, row.label.size());
      for (const auto& row : section.rows) {
        std::string text = row.text;
        std::string indent(1 + width + 4, ' ');
        indent.front() = '\n';
        for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += indent.size()) {
          text.replace(at, 1, indent);
        }
        out += fmt::format("  {:<{}}  {}\n", row.label, width, text);
      }
      out += '\n';
    }
    if (problems_.empty()) return out + "No problems found.\n";
    out += fmt::format("{}Problems{}\n", red, plain);
    for (const auto& problem : problems_) {
      out += fmt::format("  {}!{} {}\n    hint: {}\n", red, plain, problem.what, problem.hint);
    }
    return out;
  }

  std::string as_json() const {
    Json out;
    for (const auto& section : sections_) {
      auto& object = out[section.key] = Json::object();
      for (const auto& row : section.rows) object[row.key] = row.value;
    }
    out["problems"] = Json::array();
    for (const auto& problem : problems_) {
      out["problems"].push_back({{"what", problem.what}, {"hint", problem.hint}});
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  std::vector<Section> sections_;
  std::vector<Problem> problems_;
};

}  // namespace lockstep::cli
