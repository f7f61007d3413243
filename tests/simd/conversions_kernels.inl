// What conversions_test.cpp calls of the words of one region. No include guard: included once for each.

inline void narrow_block(region, const float* from, std::uint16_t* to, std::uint32_t count) {
  auto* const stored = static_cast<bf16*>(static_cast<void*>(to));
  for (std::uint32_t i = 0; i < count; i += lanes) store(stored + i, load(from + i));
}
