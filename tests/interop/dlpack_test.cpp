// DLPack tensors as views and back: with a look-alike of DLTensor, and with the real one where its
// header is installed.

#include <deeprec/interop/dlpack.hpp>

#include <doctest/doctest.h>
#include <cstdint>
#include <vector>

#if __has_include(<dlpack/dlpack.h>)
#  include <dlpack/dlpack.h>
#endif

using namespace deeprec;

namespace {

struct look_alike {  // the fields of a DLTensor, with integers where the real one has enums
  void* data;
  struct {
    std::int32_t device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

// A tensor of floats (3, 4) that a test then bends.
template <class Tensor>
struct sample {
  alignas(64) float values[64] = {};
  std::int64_t shape[3] = {3, 4, 1};
  std::int64_t strides[3] = {5, 1, 1};
  Tensor tensor{};
  sample() {
    for (int i = 0; i < 64; ++i) values[i] = static_cast<float>(i);
    tensor.data = values;
    place(1);
    tensor.ndim = 2;
    type(2, 32);
    tensor.shape = shape;
    tensor.strides = strides;
  }
  void type(int code, int bits, int lanes = 1) {
    tensor.dtype.code = static_cast<std::uint8_t>(code);
    tensor.dtype.bits = static_cast<std::uint8_t>(bits);
    tensor.dtype.lanes = static_cast<std::uint16_t>(lanes);
  }
  void place(int device, int id = 0) {
    tensor.device.device_type = static_cast<decltype(tensor.device.device_type)>(device);
    tensor.device.device_id = id;
  }
};

template <class T, class Tensor>
errc code_of(const Tensor& tensor, int device_id = dlpack_device::any) {
  T nothing_changed{};
  matrix_view<T> view(&nothing_changed, 1, 1);
  const status s = from_dlpack(tensor, view, device_id);
  if (!s) {
    CHECK(s.detail() != nullptr);
    CHECK(view.data_handle() == &nothing_changed);
  }
  return s.code();
}

template <class Space, class Tensor>
bool fits(const Tensor& tensor) {
  matrix_view<float, Space> view;
  return from_dlpack(tensor, view).ok();
}

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("dlpack: a tensor is seen where it lies", Tensor, seen) {
  sample<Tensor> s;
  matrix_view<const float> view;
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view.data_handle() == s.values);
  CHECK(view.extent(0) == 3);
  CHECK(view.extent(1) == 4);
  CHECK(view.stride(0) == 5);
  CHECK(view(2, 3) == 13.0F);

  s.tensor.byte_offset = 8;
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view(0, 0) == 2.0F);

  s.tensor.strides = nullptr;  // compact
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view.stride(0) == 4);
  CHECK(view(1, 0) == 6.0F);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: a vector is one row", Tensor, vector) {
  sample<Tensor> s;
  s.tensor.ndim = 1;
  s.shape[0] = 7;
  s.strides[0] = 1;
  matrix_view<float> view;
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view.extent(0) == 1);
  CHECK(view.extent(1) == 7);
  CHECK(view.row(0)[6] == 6.0F);
  s.strides[0] = 2;
  CHECK(code_of<float>(s.tensor) == errc::unsupported);
  s.shape[0] = 1;
  CHECK(code_of<float>(s.tensor) == errc::ok);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: the stride of a dimension of one element means nothing", Tensor, single) {
  sample<Tensor> s;
  s.shape[0] = 1;
  s.strides[0] = 1;  // as PyTorch writes it
  matrix_view<float> view;
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view.stride(0) == 4);
  s.shape[0] = 3;
  s.shape[1] = 1;
  s.strides[0] = 2;
  s.strides[1] = 77;
  REQUIRE(from_dlpack(s.tensor, view).ok());
  CHECK(view.stride(0) == 2);
  CHECK(view(2, 0) == 4.0F);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: every dtype is told by code and bits", Tensor, dtypes) {
  sample<Tensor> s;
  const struct {
    int code, bits;
  } types[] = {{2, 32}, {2, 16}, {4, 16}, {2, 64}, {0, 32}, {0, 64}, {1, 32}, {1, 64}};
  for (int i = 0; i < 8; ++i) {
    s.type(types[i].code, types[i].bits);
    CHECK((code_of<float>(s.tensor) == errc::ok) == (i == 0));
    CHECK((code_of<f16>(s.tensor) == errc::ok) == (i == 1));
    CHECK((code_of<bf16>(s.tensor) == errc::ok) == (i == 2));
    CHECK((code_of<double>(s.tensor) == errc::ok) == (i == 3));
    CHECK((code_of<std::int32_t>(s.tensor) == errc::ok) == (i == 4));
    CHECK((code_of<std::int64_t>(s.tensor) == errc::ok) == (i == 5));
    CHECK((code_of<std::uint32_t>(s.tensor) == errc::ok) == (i == 6));
    CHECK((code_of<std::uint64_t>(s.tensor) == errc::ok) == (i == 7));
  }
  s.type(2, 32, 4);
  CHECK(code_of<float>(s.tensor) == errc::unsupported);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: the device decides the space", Tensor, spaces) {
  sample<Tensor> s;
  const struct {
    int device;
    bool host, device_memory, unified;
  } places[] = {{1, true, false, false}, {2, false, true, false},   {3, true, true, true},
                {13, true, true, true},  {10, false, false, false}, {4, false, false, false}};
  for (const auto& place : places) {
    CAPTURE(place.device);
    s.place(place.device);
    CHECK(fits<host_space>(s.tensor) == place.host);
    CHECK(fits<device_space>(s.tensor) == place.device_memory);
    CHECK(fits<unified_space>(s.tensor) == place.unified);
  }
  s.place(2, 1);
  matrix_view<float, device_space> view;
  CHECK(from_dlpack(s.tensor, view, 1).ok());
  CHECK(from_dlpack(s.tensor, view, 0).code() == errc::unsupported);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: what doesn't fit is said", Tensor, faults) {
  const auto bent = [](auto bend) {
    sample<Tensor> s;
    bend(s);
    return code_of<float>(s.tensor);
  };
  CHECK(bent([](auto& s) { s.tensor.ndim = 0; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.tensor.ndim = 3; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.tensor.shape = nullptr; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.shape[0] = -1; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.strides[1] = 2; }) == errc::unsupported);
  CHECK(bent([](auto& s) { s.strides[1] = 3, s.strides[0] = 1; }) == errc::unsupported);  // transposed
  CHECK(bent([](auto& s) { s.strides[0] = 3; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.strides[0] = 0; }) == errc::shape_mismatch);  // expanded
  CHECK(bent([](auto& s) { s.strides[0] = -5; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.tensor.data = nullptr; }) == errc::shape_mismatch);
  CHECK(bent([](auto& s) { s.tensor.byte_offset = 2; }) == errc::unsupported);
  CHECK(bent([](auto& s) { s.shape[0] = 0, s.tensor.data = nullptr; }) == errc::ok);
  CHECK(bent([](auto& s) { s.shape[1] = 0, s.tensor.data = nullptr; }) == errc::ok);
}

TEST_CASE_TEMPLATE_DEFINE("dlpack: a view makes a tensor, and the tensor the same view", Tensor, back) {
  std::vector<bf16> memory(100);
  const matrix_view<const bf16> view(memory.data(), 4, 8, 20);
  const auto tensor = to_dlpack<Tensor>(view);
  CHECK((*tensor).data == memory.data());
  CHECK((*tensor).ndim == 2);
  CHECK(static_cast<int>((*tensor).device.device_type) == 1);
  CHECK((*tensor).byte_offset == 0);
  matrix_view<const bf16> again;
  REQUIRE(from_dlpack(*tensor, again).ok());
  CHECK(again.data_handle() == view.data_handle());
  CHECK(again.extent(0) == 4);
  CHECK(again.extent(1) == 8);
  CHECK(again.stride(0) == 20);

  const matrix_view<bf16, device_space> on_device(memory.data(), 4, 8);
  const auto second = to_dlpack<Tensor>(on_device, {dlpack_device_type::cuda, 1});
  matrix_view<bf16, device_space> there;
  CHECK(from_dlpack(*second, there, 1).ok());
  CHECK(there.extent(1) == 8);
  CHECK(static_cast<int>((*to_dlpack<Tensor>(on_device)).device.device_type) == 2);
  const matrix_view<bf16, unified_space> both(memory.data(), 4, 8);
  CHECK(static_cast<int>((*to_dlpack<Tensor>(both)).device.device_type) == 13);
}

// Every test, with the look-alike and where it is with the real header.
TEST_CASE_TEMPLATE_INVOKE(seen, look_alike);
TEST_CASE_TEMPLATE_INVOKE(vector, look_alike);
TEST_CASE_TEMPLATE_INVOKE(single, look_alike);
TEST_CASE_TEMPLATE_INVOKE(dtypes, look_alike);
TEST_CASE_TEMPLATE_INVOKE(spaces, look_alike);
TEST_CASE_TEMPLATE_INVOKE(faults, look_alike);
TEST_CASE_TEMPLATE_INVOKE(back, look_alike);
#if __has_include(<dlpack/dlpack.h>)
TEST_CASE_TEMPLATE_INVOKE(seen, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(vector, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(single, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(dtypes, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(spaces, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(faults, DLTensor);
TEST_CASE_TEMPLATE_INVOKE(back, DLTensor);

TEST_CASE("dlpack: our numbers are those of dlpack.h") {
  CHECK(static_cast<int>(dlpack_device_type::cpu) == static_cast<int>(kDLCPU));
  CHECK(static_cast<int>(dlpack_device_type::cuda) == static_cast<int>(kDLCUDA));
  CHECK(static_cast<int>(dlpack_device_type::cuda_host) == static_cast<int>(kDLCUDAHost));
  CHECK(static_cast<int>(dlpack_device_type::cuda_managed) == static_cast<int>(kDLCUDAManaged));
  CHECK(detail::dlpack_int == static_cast<int>(kDLInt));
  CHECK(detail::dlpack_uint == static_cast<int>(kDLUInt));
  CHECK(detail::dlpack_float == static_cast<int>(kDLFloat));
  CHECK(detail::dlpack_bfloat == static_cast<int>(kDLBfloat));
}
#endif
