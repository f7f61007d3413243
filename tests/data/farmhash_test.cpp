#include "data/criteo_oracle.hpp"

#if DEEPREC_WITH_FARMHASH
#  include <deeprec/data/farmhash.hpp>
#  include <deeprec/data/key_value_format.hpp>

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// Bytes of every value, zeros among them.
std::string sample(std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += static_cast<char>((i * i * 7 + length * 13 + i) & 0xff);
  return text;
}

struct buckets {
  index_t of_thousand;
  index_t of_mersenne;  // 2^31 - 1
  index_t of_tera;      // 2^40
};

/// tf.strings.to_hash_bucket_fast(sample(n), num_buckets) of TensorFlow 2.21.0, n = 0 ... 130.
// clang-format off
constexpr buckets by_tensorflow[] = {
    {263, 1699943623, 0x3b2f90404f}, {390, 832711418, 0xf91c5bc106}, {107, 695983541, 0x3048c30953},
    {958, 1566659415, 0x8b5189643e}, {306, 971745633, 0xa67a72ae12}, {486, 540726433, 0xd91590feee},
    {374, 1253668112, 0x2cd2f8e8b6}, {615, 1275902765, 0xde9c22cd6f}, {69, 653269148, 0x631b25ddd5},
    {719, 470442291, 0xeddcafc957}, {258, 783504115, 0x5885f99c42}, {430, 570675225, 0x41cbf240e},
    {198, 2031705286, 0xb46c584b5e}, {774, 1047159775, 0x2b34ba4186}, {811, 1770552303, 0x2caf529393},
    {644, 2016627290, 0x31ea68054}, {169, 693714443, 0x7fbbfb7309}, {344, 2126398532, 0x4d3c646da8},
    {863, 186624783, 0xc2d4852d87}, {756, 840864009, 0xa1666b89c4}, {827, 271281211, 0xc3c85c30b3},
    {689, 1302496484, 0x192741c4b1}, {193, 1826670858, 0xf3ee8adf21}, {454, 359048142, 0xcacf1c2c36},
    {921, 1595301417, 0x8aa3a13311}, {688, 1661756233, 0x304781eae8}, {695, 259267860, 0xe9c6fb933f},
    {934, 405231152, 0x34d50e2fc6}, {138, 229284096, 0x1d6eebf8c2}, {134, 655931543, 0xa6bb12f546},
    {104, 1336933964, 0xae1aa9eaf0}, {437, 1971390112, 0x412bf7601d}, {597, 529303385, 0xb8886555},
    {391, 246602040, 0xcfef311b97}, {932, 1170439844, 0x8033444da4}, {598, 830104637, 0x6f63ae695e},
    {399, 512529276, 0x69403980a7}, {991, 1047482657, 0xa12a29dbdf}, {750, 404099467, 0x16b6aeb86},
    {17, 245044426, 0x204207f689}, {932, 1378242031, 0x94b18e2ac4}, {607, 997768785, 0x4892436fbf},
    {265, 2017868292, 0x757f3d0d19}, {150, 340129331, 0xf97ba9a43e}, {366, 718774248, 0x30c79d0586},
    {987, 1010928686, 0x302bd6d9cb}, {702, 1915109197, 0xd24bf1efa6}, {410, 198501302, 0xd835f3ac02},
    {780, 481860163, 0x6e701b6164}, {90, 1468508597, 0x8e4b23ba2}, {277, 1496774630, 0x67d4bccf15},
    {588, 1165855987, 0x21dd7824ac}, {602, 1202650269, 0x532cd2a92}, {227, 711481263, 0xe9d67601db},
    {388, 1191244726, 0x20c4d1af74}, {184, 2078650576, 0x1037acc2b0}, {466, 2046793612, 0xabe987a432},
    {742, 502305548, 0xd30aae5f66}, {289, 1263882579, 0x5762ba24a1}, {831, 2053493127, 0xe7134d61b7},
    {953, 1969852653, 0x34a1de9e81}, {263, 638621958, 0x3b02dae48f}, {812, 1297926074, 0x3976539944},
    {589, 1684880511, 0xc4997a9ef5}, {323, 111126769, 0xbe80dabb73}, {208, 1875952552, 0xee5907f88},
    {752, 351459176, 0xa8142f4818}, {80, 942918765, 0x32837eee08}, {269, 1433367530, 0x78d87d48f5},
    {130, 1491923361, 0xc799bdca12}, {682, 1789221434, 0xa0392290fa}, {715, 1135012976, 0x9597a4bf43},
    {228, 1686199050, 0x8f44e8afec}, {408, 274603991, 0xbf33dc2258}, {50, 1024968895, 0x9dc71c1182},
    {987, 1822172484, 0xf82a26eb53}, {510, 976383715, 0xe50837c716}, {374, 1295046713, 0x9bdb8bbcfe},
    {140, 1538051283, 0xd7818a9324}, {277, 195623439, 0xfa274bbed}, {454, 1357944276, 0xa5fdc1c286},
    {192, 1281943682, 0x5c29b001c8}, {942, 1911971286, 0x367c306f66}, {468, 1097758169, 0xbd84049e5c},
    {481, 1938567281, 0xa82bf8c521}, {291, 1328296677, 0x33e6aebe7b}, {511, 61018773, 0x3d4ef28a17},
    {662, 100493907, 0x91de79612e}, {706, 368218562, 0xe40f32f5fa}, {21, 1827689816, 0xe853d9bb85},
    {65, 241441782, 0x1de33903b9}, {963, 2097755053, 0x20b3b04d6b}, {695, 1002285531, 0x866bd15c7},
    {604, 95450928, 0xe14e78736c}, {384, 326177960, 0xf27d7ac4c0}, {317, 1502651252, 0x59e89836bd},
    {395, 1777001887, 0x955a477673}, {428, 891494773, 0x93c322484c}, {655, 1666866661, 0xae2a853c87},
    {657, 2072247556, 0x24623740b9}, {749, 143615380, 0x56b9f17ae5}, {108, 1689281457, 0xfd332767b4},
    {611, 713032887, 0x149c241a8b}, {281, 1743485259, 0xb1350d27e9}, {197, 1409130, 0x89686f9955},
    {112, 1853834957, 0x7e82e305d0}, {708, 1649693946, 0x29a4ec44a4}, {623, 1668686059, 0xce5a52474f},
    {786, 489497377, 0xfea29c9322}, {700, 950316532, 0xa374e4d0ac}, {554, 839587942, 0xa46d34291a},
    {594, 2080470236, 0x60d9de261a}, {769, 225165291, 0x2b8d655791}, {951, 1211941018, 0x3cab36981f},
    {108, 74472707, 0x9761c85dd4}, {835, 186269578, 0xe5ef763fbb}, {740, 896974979, 0x66d69a1bb4},
    {780, 1188011068, 0x6f1a91d75c}, {356, 618124534, 0x27e3faeaa4}, {432, 162038647, 0x69dc2578a0},
    {710, 1574246670, 0x970566edde}, {588, 941049949, 0xdaddba4ca4}, {913, 863311922, 0x70120fc151},
    {373, 744669225, 0x2856ea91d5}, {262, 569409423, 0x2480d23346}, {434, 432483507, 0x6c3a0675da},
    {9, 986401521, 0xb278986989}, {978, 1344873451, 0xe425606022}, {497, 1794670995, 0x17d69a0161},
    {483, 1218968602, 0x778d4fbd2b}, {293, 171181832, 0xe843657535}
};
// clang-format on

}  // namespace

TEST_CASE("farmhash: the rows of tf.strings.to_hash_bucket_fast") {
  static_assert(std::size(by_tensorflow) == 131);
  for (std::size_t n = 0; n < std::size(by_tensorflow); ++n) {
    CAPTURE(n);
    const std::string token = sample(n);
    for (const int feature : {0, 25}) {
      CHECK(farmhash_bucket(token, feature, 1) == 0);
      CHECK(farmhash_bucket(token, feature, 1000) == by_tensorflow[n].of_thousand);
      CHECK(farmhash_bucket(token, feature, (index_t{1} << 31) - 1) == by_tensorflow[n].of_mersenne);
      CHECK(farmhash_bucket(token, feature, index_t{1} << 40) == by_tensorflow[n].of_tera);
    }
  }
  CHECK(farmhash_bucket({}, 0, 1000) == by_tensorflow[0].of_thousand);
  CHECK(farmhash_bucket("68fd1e64", 0, (index_t{1} << 31) - 1) == 1959646491);
}

TEST_CASE("farmhash: Criteo's tokens get TensorFlow's rows") {
  const std::vector<std::string> tokens = {"68fd1e64", "", "\"\"", "a", "123456789", "caf\xC3\xA9 au lait"};
  criteo_format format{
      .rows = criteo_format::same_size((index_t{1} << 31) - 1), .row_of = farmhash_bucket, .delimiter = '\t'};
  format.rows[25] = 1000;
  std::string line = "1" + std::string(13, '\t');
  for (std::size_t s = 0; s < 26; ++s) line += '\t' + tokens[s % tokens.size()];
  sparse_batch batch;
  REQUIRE(parse_text(format, line + "\r\n" + line, batch).or_throw().rows == 2);
  for (std::size_t s = 0; s < 26; ++s) {
    CAPTURE(s);
    const std::string& field = tokens[s % tokens.size()];
    const std::string token = field == "\"\"" ? "" : field;
    const auto bags = batch.feature(static_cast<index_t>(s));
    for (index_t r = 0; r < 2; ++r) CHECK(bags.ids()[r] == farmhash_bucket(token, 0, format.rows[s]));
  }
  CHECK(batch.feature(0).ids()[0] == 1959646491);
  CHECK(batch.feature(1).ids()[0] == by_tensorflow[0].of_mersenne);
  CHECK(batch.feature(2).ids()[0] == by_tensorflow[0].of_mersenne);
}

TEST_CASE("farmhash: keys of key:value lines get TensorFlow's rows") {
  const key_value_format format{
      .features = 1, .keys = token_use::hashed, .row_of = farmhash_bucket, .rows = (index_t{1} << 31) - 1};
  sparse_batch batch;
  REQUIRE(parse_text(format, "68fd1e64:2,a\n", batch).or_throw().rows == 1);
  CHECK(batch.feature(0).ids()[0] == 1959646491);
  CHECK(batch.feature(0).ids()[1] == 493484721);
}
#endif
