#pragma once

// Criteo's lines the slow way: getline, split, strtof. Shares no code with the parser but the hash.

#include "data/support.hpp"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/data/criteo_format.hpp>

namespace deeprec_test {

struct oracle_answer {
  plain_rows rows;
  std::vector<index_t> bad_lines;  // from 1
};

inline std::vector<std::string> split(const std::string& line, char delimiter) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == delimiter) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

inline bool oracle_float(const std::string& text, float& value) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
  char* end = nullptr;
  value = std::strtof(text.c_str(), &end);
  return end == text.c_str() + text.size() && std::isfinite(value);
}

inline bool oracle_count(const std::string& text, float& value) {
  const std::string digits = text.substr(text.size() > 0 && (text[0] == '-' || text[0] == '+') ? 1 : 0);
  if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos) {
    errno = 0;
    (void)std::strtoll(text.c_str(), nullptr, 10);
    if (errno == ERANGE) return false;
  }
  return oracle_float(text, value);
}

/// Lines behind the header, with so many columns of ids and of labels.
inline oracle_answer criteo_oracle(const std::string& text, char delimiter,
                                   const deeprec::criteo_format& format, index_t header_lines = 0,
                                   int id_columns = 0, int label_columns = 1) {
  oracle_answer answer;
  std::istringstream in(text);
  std::string line;
  for (index_t number = 1; std::getline(in, line); ++number) {
    if (number <= header_lines) continue;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    std::vector<std::string> fields = split(line, delimiter);
    bool good = line.find('\0') == std::string::npos &&
                fields.size() == 39U + static_cast<unsigned>(id_columns + label_columns);
    plain_row row;
    if (good) {
      fields.erase(fields.begin(), fields.begin() + id_columns);
      if (label_columns == 0) fields.insert(fields.begin(), "0");
      float value = 0;
      good = oracle_float(fields[0], value) && (value == 0.0F || value == 1.0F);
      row.label = bits(value);
      for (std::size_t i = 1; i <= 13 && good; ++i) {
        if (fields[i].empty() || fields[i] == "\"\"") {
          value = format.missing_dense;
        } else {
          good = oracle_count(fields[i], value);
        }
        row.dense.push_back(bits(value));
      }
      for (std::size_t s = 0; s < 26 && good; ++s) {
        std::string token = fields[14 + s];
        index_t id = 0;
        if (format.tokens == deeprec::token_use::as_is) {
          id = static_cast<index_t>(std::strtod(token.c_str(), nullptr));
        } else {
          if (token == "\"\"") token.clear();
          const bool quoted = token.size() > 2 && (token.size() != 8 || format.bucket != nullptr) &&
                              token.front() == '"' && token.back() == '"';
          good = !quoted && static_cast<index_t>(token.size()) <= format.longest_token;
          const std::uint64_t hash = deeprec::hash_bytes(token, s);
          id = format.bucket != nullptr ? format.bucket(token, static_cast<int>(s), format.rows[s])
               : format.rows[s] == 0    ? static_cast<index_t>(hash)
                                        : deeprec::hash_bucket(hash, format.rows[s]);
        }
        row.ids.push_back({id});
        row.weights.emplace_back();
      }
    }
    if (good) {
      answer.rows.push_back(std::move(row));
    } else {
      answer.bad_lines.push_back(number);
    }
  }
  return answer;
}

/// A good line, of the shape of the real ones.
inline std::string random_criteo_line(dice& die, char delimiter = '\t') {
  std::string line = die.one_in(4) ? "1" : "0";
  for (int i = 0; i < 13; ++i) {
    line += delimiter;
    if (die.one_in(4)) continue;
    if (die.one_in(8)) line += '-';
    const int digits = 1 + static_cast<int>(die.below(die.one_in(6) ? 10 : 4));
    for (int d = 0; d < digits; ++d) line += static_cast<char>('0' + die.below(10));
    if (die.one_in(20)) line += ".5";
  }
  for (int s = 0; s < 26; ++s) {
    line += delimiter;
    if (die.one_in(5)) continue;
    const index_t length = die.one_in(10) ? 1 + die.below(40) : 8;
    for (index_t c = 0; c < length; ++c) line += "0123456789abcdef"[die.below(16)];
  }
  return line;
}

inline std::string random_criteo_text(dice& die, int lines, char delimiter = '\t') {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += random_criteo_line(die, delimiter);
    if (i + 1 < lines || !die.one_in(3)) text += die.one_in(10) ? "\r\n" : "\n";
  }
  return text;
}

/// The same with bytes changed, added and taken away.
inline std::string damaged(dice& die, std::string text) {
  static constexpr char bytes[] = {'\t', '\n', '\0', '\r', '-', '+', '.', 'e', '"', '7', 'x', ' ', '\x80'};
  const index_t hits = 1 + die.below(12);
  for (index_t i = 0; i < hits && !text.empty(); ++i) {
    const auto at = static_cast<std::size_t>(die.below(static_cast<index_t>(text.size())));
    const char byte = bytes[die.below(sizeof(bytes))];
    switch (die.below(3)) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1, byte);
        break;
      default:
        text.erase(at, 1 + static_cast<std::size_t>(die.below(3)));
        break;
    }
  }
  return text;
}

}  // namespace deeprec_test
