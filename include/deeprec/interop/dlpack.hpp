// A DLPack tensor as a matrix_view, and back, without a copy. Includes no DLPack header: every function
// is a template over a struct with DLTensor's documented fields, so any version of the header can be used.
//
//   matrix_view<const float> weights;
//   if (status s = from_dlpack(managed->dl_tensor, weights); !s) ...      // T and space from the view
//   lookup(ctx, as_table(weights), bags, combiner::sum, out);
//
//   DLDeviceType           as a view in
//   kDLCPU                 host_space
//   kDLCUDA                device_space
//   kDLCUDAHost, ..Managed host_space, device_space, unified_space
//
// Not here: ownership (keep the DLManagedTensor until the view is no longer used), streams (wait for the
// producer before you read), and whether the memory may be written, which a DLTensor
// does not record.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The values of DLDeviceType that deeprec supports.
enum class dlpack_device_type : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

struct dlpack_device {
  static constexpr int any = -1;  ///< for from_dlpack: accepts a tensor on any device

  dlpack_device_type type = dlpack_device_type::cpu;
  int id = 0;
};

/// The fields of a DLTensor that these templates use.
template <class Tensor>
concept DLPackTensor = requires(Tensor& tensor, int i) {
  tensor.data = static_cast<void*>(nullptr);
  { tensor.device.device_type } -> std::convertible_to<int>;
  { tensor.device.device_id } -> std::convertible_to<int>;
  { tensor.ndim } -> std::convertible_to<int>;
  { tensor.dtype.code } -> std::convertible_to<int>;
  { tensor.dtype.bits } -> std::convertible_to<int>;
  { tensor.dtype.lanes } -> std::convertible_to<int>;
  { tensor.shape[i] } -> std::convertible_to<std::int64_t>;
  { tensor.strides[i] } -> std::convertible_to<std::int64_t>;
  { tensor.byte_offset } -> std::convertible_to<std::uint64_t>;
};

namespace detail {

/// Values of DLDataTypeCode.
enum : int { dlpack_int = 0, dlpack_uint = 1, dlpack_float = 2, dlpack_bfloat = 4 };

template <class T>
constexpr int dlpack_code() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, f16> ||
                    std::is_same_v<T, bf16> || IdInteger<T>,
                "deeprec: DLPack views hold float, double, f16, bf16, or integers of 32 or 64 bits. "
                "Fix: matrix_view<const float>.");
  if constexpr (std::is_same_v<T, bf16>) {
    return dlpack_bfloat;
  } else if constexpr (std::is_integral_v<T>) {
    return std::is_signed_v<T> ? dlpack_int : dlpack_uint;
  } else {
    return dlpack_float;
  }
}

template <MemorySpace Space>
constexpr bool lies_in(int device_type) {
  const auto is = [device_type](dlpack_device_type type) { return device_type == static_cast<int>(type); };
  const bool both = is(dlpack_device_type::cuda_host) || is(dlpack_device_type::cuda_managed);
  if constexpr (std::is_same_v<Space, host_space>) return both || is(dlpack_device_type::cpu);
  if constexpr (std::is_same_v<Space, device_space>) return both || is(dlpack_device_type::cuda);
  return both;
}

template <MemorySpace Space>
constexpr dlpack_device default_dlpack_device() {
  if constexpr (std::is_same_v<Space, device_space>) return {dlpack_device_type::cuda, 0};
  if constexpr (std::is_same_v<Space, unified_space>) return {dlpack_device_type::cuda_managed, 0};
  return {};
}

}  // namespace detail

/// Makes `view` refer to the tensor's memory.
///
/// @shape   (R,D) with unit inner stride and rows that don't overlap; or (D), as one row
/// @dtype   the view's T: float, double, f16, bf16, integers of 32 or 64 bits; lanes 1
/// @space   the view's: see the table above; `device_id` other than dlpack_device::any must be the tensor's
/// @post    on an error the view is unchanged
/// @cost    O(1)
/// @threads reentrant
/// @error   shape_mismatch: the rank, a negative size, null where there are elements, overlapping rows ·
///          unsupported: dtype, inner stride, device, an address that T can't have
template <DLPackTensor Tensor, class T, MemorySpace Space>
[[nodiscard]] status from_dlpack(const Tensor& tensor, matrix_view<T, Space>& view,
                                 int device_id = dlpack_device::any) {
  using value_type = std::remove_cv_t<T>;
  const auto rank = static_cast<int>(tensor.ndim);
  if (rank != 1 && rank != 2) {
    return {errc::shape_mismatch, "dlpack: the rank must be 1 or 2"};
  }
  if (static_cast<int>(tensor.dtype.code) != detail::dlpack_code<value_type>() ||
      static_cast<int>(tensor.dtype.bits) != static_cast<int>(sizeof(value_type) * 8) ||
      static_cast<int>(tensor.dtype.lanes) != 1) {
    return {errc::unsupported, "dlpack: the dtype must be the view's"};
  }
  if (!detail::lies_in<Space>(static_cast<int>(tensor.device.device_type))) {
    return {errc::unsupported, "dlpack: the device must be of the view's space"};
  }
  if (device_id != dlpack_device::any && static_cast<int>(tensor.device.device_id) != device_id) {
    return {errc::unsupported, "dlpack: the device must be the one that was asked for"};
  }
  if (tensor.shape == nullptr) return {errc::shape_mismatch, "dlpack: shape must not be null"};
  const auto rows = rank == 2 ? static_cast<index_t>(tensor.shape[0]) : index_t{1};
  const auto columns = static_cast<index_t>(tensor.shape[rank - 1]);
  if (rows < 0 || columns < 0) {
    return {errc::shape_mismatch, "dlpack: sizes must not be negative"};
  }
  // The stride of a dimension of one element is meaningless, and frameworks store arbitrary values there.
  index_t row_stride = columns;
  if (tensor.strides != nullptr && rows > 0 && columns > 0) {
    if (columns > 1 && tensor.strides[rank - 1] != 1) {
      return {errc::unsupported, "dlpack: the inner stride must be 1"};
    }
    if (rows > 1) row_stride = static_cast<index_t>(tensor.strides[0]);
    if (row_stride < columns) {
      return {errc::shape_mismatch, "dlpack: the outer stride must be at least the inner size"};
    }
  }
  if (rows == 0 || columns == 0) {
    view = matrix_view<T, Space>(nullptr, rows, columns);
    return {};
  }
  if (tensor.data == nullptr) {
    return {errc::shape_mismatch, "dlpack: data must not be null"};
  }
  const auto address =
      reinterpret_cast<std::uintptr_t>(tensor.data) + static_cast<std::uintptr_t>(tensor.byte_offset);
  if (address % alignof(value_type) != 0) {
    return {errc::unsupported, "dlpack: data must be aligned to the dtype"};
  }
  view = matrix_view<T, Space>(reinterpret_cast<T*>(address), rows, columns, row_stride);
  return {};
}

/// A DLTensor with the shape and the strides that it points to. Neither copyable nor movable.
template <DLPackTensor Tensor>
class dlpack_matrix {
 public:
  template <class T, MemorySpace Space>
  dlpack_matrix(const matrix_view<T, Space>& view, dlpack_device device)
      : shape_{view.extent(0), view.extent(1)}, strides_{view.stride(0), 1} {
    using value_type = std::remove_cv_t<T>;
    tensor_.data = const_cast<value_type*>(view.data_handle());
    tensor_.device.device_type = static_cast<decltype(tensor_.device.device_type)>(device.type);
    tensor_.device.device_id = device.id;
    tensor_.ndim = 2;
    tensor_.dtype.code = static_cast<decltype(tensor_.dtype.code)>(detail::dlpack_code<value_type>());
    tensor_.dtype.bits = static_cast<decltype(tensor_.dtype.bits)>(sizeof(value_type) * 8);
    tensor_.dtype.lanes = 1;
    tensor_.shape = shape_;
    tensor_.strides = strides_;
    tensor_.byte_offset = 0;
  }
  dlpack_matrix(const dlpack_matrix&) = delete;
  dlpack_matrix& operator=(const dlpack_matrix&) = delete;

  [[nodiscard]] Tensor* get() noexcept { return &tensor_; }
  [[nodiscard]] const Tensor& operator*() const noexcept { return tensor_; }

 private:
  std::int64_t shape_[2];
  std::int64_t strides_[2];
  Tensor tensor_{};
};

/// A tensor that refers to the view's memory: auto tensor = to_dlpack<DLTensor>(view);
/// The constness of T is lost: DLPack's data is a plain void*.
///
/// @shape   (R,D), strides {stride(0), 1}
/// @space   host: kDLCPU; device: kDLCUDA, device 0; unified: kDLCUDAManaged (pass cuda_host where the
///          memory is pinned); or `device` where it is given
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <DLPackTensor Tensor, class T, MemorySpace Space>
[[nodiscard]] dlpack_matrix<Tensor> to_dlpack(const matrix_view<T, Space>& view,
                                              dlpack_device device = detail::default_dlpack_device<Space>()) {
  return dlpack_matrix<Tensor>(view, device);
}

}}  // namespace deeprec::DEEPREC_ABI
