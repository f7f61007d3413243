namespace deeprec {

namespace combiner {
inline constexpr int sum = 1;
}  // namespace combiner

class table {
 public:
  void grow();  // once: shrink
};

}  // namespace deeprec
