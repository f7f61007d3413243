// Hashes: frozen values, no byte read too far, and the statistics that tables live on.

#include <deeprec/core/hash.hpp>

#include "support/guarded.hpp"
#include "support/seed.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace deeprec;

namespace {

std::string random_text(std::mt19937_64& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// The largest distance from 1/2 of the chance that an output bit flips when one input bit does.
template <class Hash>
double worst_bias(Hash hash, std::size_t size, std::uint64_t seed) {
  constexpr int trials = 2000;
  std::mt19937_64 random(seed);
  std::vector<int> flips(size * 8 * 64);
  for (int t = 0; t < trials; ++t) {
    std::string text = random_text(random, size);
    const std::uint64_t plain = hash(text);
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      const char mask = static_cast<char>(1 << bit % 8);
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ mask);
      const std::uint64_t changed = plain ^ hash(text);
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ mask);
      for (std::size_t o = 0; o < 64; ++o) flips[bit * 64 + o] += changed >> o & 1;
    }
  }
  double worst = 0;
  for (const int f : flips) worst = std::max(worst, std::fabs(f / double{trials} - 0.5));
  return worst;
}

// Tokens that share a hash with a token of another column that differs in one byte.
template <class Hash>
int pairs_across_seeds(Hash hash) {
  std::set<std::uint64_t> seen;
  int count = 0;
  for (const std::size_t size : {5, 8, 12, 16, 17, 24, 32}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      for (std::size_t i = 0; i < size; ++i) {
        for (char c = '1'; c <= '9'; ++c) {
          std::string token(size, '0');
          token[i] = c;
          count += !seen.insert(hash(token, seed)).second;
        }
      }
    }
  }
  return count;
}

}  // namespace

TEST_CASE("hash: the values of saved models never change") {
  struct golden {
    const char* text;
    std::uint64_t seed;
    std::uint64_t hash;
  };
  const golden values[] = {
      {"", 0, 0xffb743701b7ab855},
      {"", 1, 0x7213fd81f4132293},
      {"a", 0, 0x13fd144f3f302937},
      {"ab", 0, 0x4b92ad92255b38c3},
      {"abc", 0, 0x81b11e7ebf13a9fe},
      {"abcd", 0, 0x0c073b4c6a3227ee},
      {"abcdefg", 0, 0xea597e83f704e139},
      {"68fd1e64", 0, 0x04fb9e82666852f3},
      {"68fd1e64", 1, 0x3f775f6ab1a27f8f},
      {"68fd1e64", 25, 0xf4706a63da3555ed},
      {"abcdefghijklm", 0, 0x0c8ad8dbcd5a8ce1},
      {"0123456789abcdef", 0, 0xa668e83a2e2af790},
      {"0123456789abcdef", 1, 0x0d3b191bdb3a7d9c},
      {"0123456789abcdefg", 0, 0x32666c09b3c21e79},
      {"the quick brown fox jumps over the lazy dog", 42, 0xf9914516653ee67c},
  };
  for (const golden& g : values) {
    CAPTURE(g.text);
    CHECK(hash_bytes(g.text, g.seed) == g.hash);
  }
  static_assert(mix64(1) == 0x5692161d100b05e5);
  static_assert(mix64(0) == 0);
  static_assert(hash_bucket(0x8000000000000000, 1000) == 500);
}

TEST_CASE("hash: exactly the string's bytes are read, for every length") {
  for (std::size_t size = 0; size <= 64; ++size) {
    std::mt19937_64 random(deeprec_test::seed() + size);
    const std::string text = random_text(random, size);
    const std::uint64_t expected = hash_bytes(text, 3);
    const auto at_end = deeprec_test::guarded<char>::copy_of(text);
    CHECK(hash_bytes({at_end.data(), size}, 3) == expected);
    deeprec_test::guarded<char> page(4096);  // begins where a page without access ends
    std::copy(text.begin(), text.end(), page.data());
    CHECK(hash_bytes({page.data(), size}, 3) == expected);
  }
  CHECK(hash_bytes({}) == hash_bytes(""));
}

TEST_CASE("hash: runs of zeros of different lengths differ, and so does every single byte") {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size <= 256; ++size) seen.insert(hash_bytes(std::string(size, '\0')));
  CHECK(seen.size() == 257);
  int unchanged = 0;
  for (std::size_t size = 1; size <= 64; ++size) {
    std::mt19937_64 random(deeprec_test::seed() + size);
    const std::string text = random_text(random, size);
    for (std::size_t i = 0; i < size; ++i) {
      for (const int bit : {0, 3, 7}) {
        std::string other = text;
        other[i] = static_cast<char>(other[i] ^ (1 << bit));
        unchanged += hash_bytes(other) == hash_bytes(text);
      }
    }
  }
  CHECK(unchanged == 0);
}

TEST_CASE("hash: one bit of the text or of the seed flips every output bit half of the time") {
  for (const std::size_t size : {2, 3, 4, 7, 8, 13, 16, 17, 24, 40}) {
    CAPTURE(size);
    CHECK(worst_bias([](const std::string& s) { return hash_bytes(s, 5); }, size, deeprec_test::seed()) <
          0.08);
  }
  const auto of_seed = [](const std::string& s) {
    return hash_bytes("68fd1e64", detail::read_u64(s.data()));
  };
  CHECK(worst_bias(of_seed, 8, deeprec_test::seed()) < 0.08);
  const auto of_number = [](const std::string& s) { return mix64(detail::read_u64(s.data())); };
  CHECK(worst_bias(of_number, 8, deeprec_test::seed()) < 0.08);
  const auto weak = [](const std::string& s) { return detail::read_u64(s.data()) * 0x9e3779b97f4a7c15; };
  CHECK(worst_bias(weak, 8, deeprec_test::seed()) > 0.4);
}

TEST_CASE("hash: tokens of two columns don't pair up") {
  CHECK(pairs_across_seeds([](const std::string& s, std::uint64_t seed) { return hash_bytes(s, seed); }) ==
        0);
  const auto seed_as_it_is = [](std::string s, std::uint64_t seed) {
    s.back() = static_cast<char>(s.back() ^ static_cast<char>(seed));
    return hash_bytes(s);
  };
  CHECK(pairs_across_seeds(seed_as_it_is) > 0);
}

TEST_CASE("hash: tokens in sequence spread evenly over the rows") {
  constexpr index_t rows = 1000;
  constexpr int count = 200000;
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    std::vector<int> hits(rows);
    for (int i = 0; i < count; ++i) {
      const auto number = static_cast<std::uint64_t>(i);
      char text[16];
      std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(i));
      const std::uint64_t hash = kind == 0   ? hash_bytes(text)
                                 : kind == 1 ? hash_bytes(std::to_string(i), 25)
                                             : mix64(number);
      const index_t row = hash_bucket(hash, rows);
      REQUIRE((row >= 0 && row < rows));
      ++hits[static_cast<std::size_t>(row)];
    }
    const double expected = static_cast<double>(count) / rows;
    double chi_square = 0;
    for (const int hit : hits) chi_square += (hit - expected) * (hit - expected) / expected;
    CHECK(std::fabs(chi_square - (rows - 1)) < 6 * std::sqrt(2.0 * (rows - 1)));
  }
}

TEST_CASE("hash: a bucket is a row, whatever the number of rows") {
  for (const index_t rows : {index_t{1}, index_t{2}, index_t{3}, index_t{1} << 31, index_t{1} << 62,
                             std::numeric_limits<index_t>::max()}) {
    CHECK(hash_bucket(0, rows) == 0);
    CHECK(hash_bucket(~std::uint64_t{0}, rows) == rows - 1);
  }
}
