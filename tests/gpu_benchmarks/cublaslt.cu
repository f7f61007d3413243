// As much of cuBLASLt as the GPU suite calls, as plain loops on the run time of tests/host_cuda: column-major
// products of floats and bf16, transposes, an added matrix, bias and ReLU. tests/dense holds what gemm()
// tells the library against an oracle in more depth.
#include <cublasLt.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <deeprec/core/dtypes.hpp>

namespace {

struct steps {
  cublasOperation_t first, second;
  cublasLtEpilogue_t epilogue;
  const float* bias;
};
struct layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};

template <class T, class Opaque>
T& as(Opaque* memory) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *static_cast<T*>(static_cast<void*>(memory));
}
template <class Opaque>
Opaque* made() {
  return static_cast<Opaque*>(std::calloc(1, sizeof(Opaque)));
}

float get(const void* p, const layout& of, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t at = column * static_cast<std::uint64_t>(of.stride) + row;
  return of.type == CUDA_R_32F ? static_cast<const float*>(p)[at]
                               : static_cast<float>(static_cast<const deeprec::bf16*>(p)[at]);
}
void put(void* p, const layout& of, std::uint64_t row, std::uint64_t column, float x) {
  const std::uint64_t at = column * static_cast<std::uint64_t>(of.stride) + row;
  if (of.type == CUDA_R_32F) {
    static_cast<float*>(p)[at] = x;
  } else {
    static_cast<deeprec::bf16*>(p)[at] = deeprec::bf16(x);
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t, cublasComputeType_t,
                                               cudaDataType_t) {
  as<steps>(desc) = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = made<cublasLtMatmulDescOpaque_t>();
  return cublasLtMatmulDescInit_internal(*desc, 0, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  std::free(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  steps& of = as<steps>(desc);
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      std::memcpy(&of.first, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      std::memcpy(&of.second, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      std::memcpy(&of.epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      std::memcpy(&of.bias, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: {
      cudaDataType type{};
      std::memcpy(&type, value, bytes);
      return type == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t of, size_t, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t stride) {
  as<layout>(of) = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* of, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  *of = made<cublasLtMatrixLayoutOpaque_t>();
  return cublasLtMatrixLayoutInit_internal(*of, 0, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t of) {
  std::free(of);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, size_t) {
  int batches = 1;
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) std::memcpy(&batches, value, sizeof batches);
  return batches == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* wish) {
  *wish = made<cublasLtMatmulPreferenceOpaque_t>();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
  std::free(wish);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = std::min(most, 2);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].workspaceSize = 64;
    found[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_of, const void* b, cublasLtMatrixLayout_t b_of,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_of, void* d,
                              cublasLtMatrixLayout_t d_of, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t on) {
  const steps how = as<steps>(desc);
  const layout of_a = as<layout>(a_of), of_b = as<layout>(b_of), of_c = as<layout>(c_of),
               of_d = as<layout>(d_of);
  const float times = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  const bool relu = how.epilogue == CUBLASLT_EPILOGUE_RELU || how.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  const bool bias = how.epilogue == CUBLASLT_EPILOGUE_BIAS || how.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  if (!relu && !bias && how.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool a_turned = how.first != CUBLAS_OP_N, b_turned = how.second != CUBLAS_OP_N;
  const std::uint64_t inner = a_turned ? of_a.rows : of_a.columns;
  if (inner != (b_turned ? of_b.columns : of_b.rows) || of_d.rows != (a_turned ? of_a.columns : of_a.rows) ||
      of_d.columns != (b_turned ? of_b.rows : of_b.columns)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cudaError_t given = host_cuda::enqueue(on, [=] {
    for (std::uint64_t i = 0; i < of_d.rows; ++i) {
      for (std::uint64_t j = 0; j < of_d.columns; ++j) {
        float sum = 0;
        for (std::uint64_t k = 0; k < inner; ++k) {
          sum += (a_turned ? get(a, of_a, k, i) : get(a, of_a, i, k)) *
                 (b_turned ? get(b, of_b, j, k) : get(b, of_b, k, j));
        }
        float x = times * sum + (old != 0 ? old * get(c, of_c, i, j) : 0);
        if (bias) x += how.bias[i];
        put(d, of_d, i, j, relu && x < 0 ? 0 : x);
      }
    }
  });
  return given == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
