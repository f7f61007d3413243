// oneDNN without anything of ours around it. Its types are not templates of the unit's flags, so both
// builds may share them.
#include "gemm/baseline.hpp"

#if __has_include(<oneapi/dnnl/dnnl.hpp>)
#  include <oneapi/dnnl/dnnl.hpp>

#  include <unordered_map>

namespace gemm_baseline::DEEPREC_BASELINE_NS {
namespace {

using dnnl::memory;

class matmul final : public raw_matmul {
 public:
  matmul(long m, long n, long k, const raw_options& how)
      : k_(k), n_(n), how_(how), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using tag = memory::format_tag;
    const auto type = how.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({m, k}, type, how.a_transposed ? tag::ba : tag::ab);
    const memory::desc b({k, n}, type, how.packed ? tag::any : how.b_transposed ? tag::ba : tag::ab);
    const memory::desc c({m, n}, memory::data_type::f32, tag::ab);
#  if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc made(engine_, a, b, c);
#  else
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(a, b, c), engine_);
#  endif
    implementation_ = made.impl_info_str();
    primitive_ = dnnl::matmul(made);
    a_ = memory(a, engine_, nullptr);
    c_ = memory(c, engine_, nullptr);
    b_ = how.packed ? memory(made.weights_desc(), engine_) : memory(b, engine_, nullptr);
  }
  void pack(const float* b) override {
    const memory plain({{k_, n_},
                        memory::data_type::f32,
                        how_.b_transposed ? memory::format_tag::ba : memory::format_tag::ab},
                       engine_, const_cast<float*>(b));
    memory packed = b_;
    dnnl::reorder(plain, packed).execute(stream_, const_cast<memory&>(plain), packed);
  }
  void run(const void* a, const void* b, float* c) override {
    a_.set_data_handle(const_cast<void*>(a));
    if (!how_.packed) b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    primitive_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
  }
  const char* implementation() const override { return implementation_; }

 private:
  long k_, n_;
  raw_options how_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  memory a_, b_, c_;
  const char* implementation_ = "";
};

}  // namespace

std::unique_ptr<raw_matmul> make_raw(long m, long n, long k, const raw_options& how) {
  return std::make_unique<matmul>(m, n, k, how);
}

}  // namespace gemm_baseline::DEEPREC_BASELINE_NS
#else
namespace gemm_baseline::DEEPREC_BASELINE_NS {
std::unique_ptr<raw_matmul> make_raw(long, long, long, const raw_options&) { return nullptr; }
}  // namespace gemm_baseline::DEEPREC_BASELINE_NS
#endif
