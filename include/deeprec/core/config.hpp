// The only header that defines macros: compiler facts, the ABI namespace, and annotations.
//
//   namespace deeprec { inline namespace v0_2_ex_c0 { ... } }
//                                     |    |  contract level (debug checks compiled in or not)
//                                     |    exceptions on (ex) or off (nx)
//                                     version
//
// Two units built with different settings get different symbols, so one never calls the other's copy.
// Users need to set none of these. Optional: DEEPREC_CONTRACTS=0|1 switches debug-only checks; DEEPREC_X86=0
// compiles the portable kernels only (and appends _p to the contract level), for short builds.
#pragma once

#include <version>

#if !defined(__cpp_concepts) || __cplusplus < 202002L
#  error "deeprec needs C++20. Fix: compile with -std=c++20 (g++ 12+, clang 14+, nvcc 12.4+)."
#endif

#define DEEPREC_VERSION_MAJOR 0
#define DEEPREC_VERSION_MINOR 2
#define DEEPREC_VERSION_PATCH 0

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#  define DEEPREC_EXCEPTIONS 1
#else
#  define DEEPREC_EXCEPTIONS 0
#endif

#if !defined(DEEPREC_CONTRACTS)
#  if defined(NDEBUG)
#    define DEEPREC_CONTRACTS 0
#  else
#    define DEEPREC_CONTRACTS 1
#  endif
#endif

#if !defined(DEEPREC_X86)
#  if defined(__x86_64__)
#    define DEEPREC_X86 1
#  else
#    define DEEPREC_X86 0
#  endif
#endif

#if DEEPREC_EXCEPTIONS && DEEPREC_CONTRACTS
#  define DEEPREC_ABI_SETTINGS ex_c1
#elif DEEPREC_EXCEPTIONS
#  define DEEPREC_ABI_SETTINGS ex_c0
#elif DEEPREC_CONTRACTS
#  define DEEPREC_ABI_SETTINGS nx_c1
#else
#  define DEEPREC_ABI_SETTINGS nx_c0
#endif
#if defined(__x86_64__) && !DEEPREC_X86
#  define DEEPREC_ABI_KERNELS _p
#else
#  define DEEPREC_ABI_KERNELS
#endif
#define DEEPREC_JOIN_AS_IS(a, b, c) a##b##c
#define DEEPREC_JOIN(a, b, c) DEEPREC_JOIN_AS_IS(a, b, c)
#define DEEPREC_ABI DEEPREC_JOIN(v0_2_, DEEPREC_ABI_SETTINGS, DEEPREC_ABI_KERNELS)

// One-line functions that kernels are built from.
#define DEEPREC_INLINE inline __attribute__((always_inline))

// Loops that compilers vectorise, in namespace DEEPREC_UNIT (below): never inlined into functions that are
// shared between units with different flags.
#if defined(__CUDA_ARCH__)
#  define DEEPREC_APART
#else
#  define DEEPREC_APART __attribute__((noinline))
#endif

// Storage types that foreign memory (PyTorch's BFloat16, Eigen's half ...) may be read through.
#define DEEPREC_MAY_ALIAS __attribute__((may_alias))

// Device code that may have PTX in it; an emulation of the CUDA runtime on the host may not.
#if defined(__CUDA_ARCH__) && (defined(__NVCC__) || defined(__CUDA__))
#  define DEEPREC_PTX 1
#endif

// Scalar code that device kernels call as well.
#if defined(__CUDACC__)
#  define DEEPREC_HD __host__ __device__
#else
#  define DEEPREC_HD
#endif

// Put before a loop. ROLLED: device code must not unroll it (a large body, or rarely entered). UNROLLED: it
// must (the loop indexes registers).
#if defined(__CUDA_ARCH__)
#  define DEEPREC_ROLLED _Pragma("unroll 1")
#  define DEEPREC_UNROLLED _Pragma("unroll")
#else
#  define DEEPREC_ROLLED
#  define DEEPREC_UNROLLED
#endif

// Kernels are in a namespace named after the device architectures that the unit is compiled for, so two
// libraries in one process, built for different GPUs, never launch each other's kernels.
#if defined(__CUDA_ARCH_LIST__)
#  define DEEPREC_SM1(a) sm_##a
#  define DEEPREC_SM2(a, b) sm_##a##_##b
#  define DEEPREC_SM3(a, b, c) sm_##a##_##b##_##c
#  define DEEPREC_SM4(a, b, c, d) sm_##a##_##b##_##c##_##d
#  define DEEPREC_SM5(a, b, c, d, e) sm_##a##_##b##_##c##_##d##_##e
#  define DEEPREC_SM6(a, b, c, d, e, f) sm_##a##_##b##_##c##_##d##_##e##_##f
#  define DEEPREC_SM7(a, b, c, d, e, f, g) sm_##a##_##b##_##c##_##d##_##e##_##f##_##g
#  define DEEPREC_SM8(a, b, c, d, e, f, g, h) sm_##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h
#  define DEEPREC_SM_PICK(a, b, c, d, e, f, g, h, name, ...) name
#  define DEEPREC_SM_NAME(...)                                                                    \
    DEEPREC_SM_PICK(__VA_ARGS__, DEEPREC_SM8, DEEPREC_SM7, DEEPREC_SM6, DEEPREC_SM5, DEEPREC_SM4, \
                    DEEPREC_SM3, DEEPREC_SM2, DEEPREC_SM1, )                                      \
    (__VA_ARGS__)
#  define DEEPREC_DEVICE DEEPREC_SM_NAME(__CUDA_ARCH_LIST__)
#endif

// Debug-only check of a caller's contract; see contract.hpp. Host code only: kernels check nothing.
#if DEEPREC_CONTRACTS && !defined(__CUDA_ARCH__)
#  define DEEPREC_EXPECTS(condition)    \
    ((condition) ? static_cast<void>(0) \
                 : ::deeprec::detail::contract_violated(#condition, __FILE__, __LINE__))
#else
#  define DEEPREC_EXPECTS(condition) static_cast<void>(0)
#endif

// The portable kernels are compiled with the unit's own flags, so the name of their namespace encodes the
// unit's architecture: one letter or digit for each feature that changes the code of a vector loop. Units
// with different flags then never share a symbol.
#if defined(__SSE4_2__)
#  define DEEPREC_BIT_SSE42 4
#else
#  define DEEPREC_BIT_SSE42 0
#endif
#if defined(__AVX__)
#  define DEEPREC_BIT_AVX 1
#else
#  define DEEPREC_BIT_AVX 0
#endif
#if defined(__AVX2__)
#  define DEEPREC_BIT_AVX2 2
#else
#  define DEEPREC_BIT_AVX2 0
#endif
#if defined(__FMA__)
#  define DEEPREC_BIT_FMA f
#else
#  define DEEPREC_BIT_FMA 0
#endif
#if defined(__BMI2__)
#  define DEEPREC_BIT_BMI2 b
#else
#  define DEEPREC_BIT_BMI2 0
#endif
#if defined(__AVX512F__)
#  define DEEPREC_BIT_AVX512F 5
#else
#  define DEEPREC_BIT_AVX512F 0
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#  define DEEPREC_BIT_AVX512BW w
#else
#  define DEEPREC_BIT_AVX512BW 0
#endif
#if defined(__AVX512VBMI__)
#  define DEEPREC_BIT_VBMI v
#else
#  define DEEPREC_BIT_VBMI 0
#endif
#if defined(__AVX512BF16__)
#  define DEEPREC_BIT_BF16 h
#else
#  define DEEPREC_BIT_BF16 0
#endif
#if defined(__AVX512FP16__)
#  define DEEPREC_BIT_FP16 p
#else
#  define DEEPREC_BIT_FP16 0
#endif
#if defined(__ARM_FEATURE_SVE)
#  define DEEPREC_BIT_SVE s
#else
#  define DEEPREC_BIT_SVE 0
#endif
#if defined(__CUDACC__)
#  define DEEPREC_BIT_CUDA c
#else
#  define DEEPREC_BIT_CUDA 0
#endif
#define DEEPREC_PASTE_(prefix, a, b, c, d, e, f, g, h, i, j, k, l) prefix##a##b##c##d##e##f##g##h##i##j##k##l
#define DEEPREC_PASTE(prefix, a, b, c, d, e, f, g, h, i, j, k, l) \
  DEEPREC_PASTE_(prefix, a, b, c, d, e, f, g, h, i, j, k, l)
#define DEEPREC_WITH_FLAGS(prefix)                                                             \
  DEEPREC_PASTE(prefix, DEEPREC_BIT_SSE42, DEEPREC_BIT_AVX, DEEPREC_BIT_AVX2, DEEPREC_BIT_FMA, \
                DEEPREC_BIT_BMI2, DEEPREC_BIT_AVX512F, DEEPREC_BIT_AVX512BW, DEEPREC_BIT_VBMI, \
                DEEPREC_BIT_BF16, DEEPREC_BIT_FP16, DEEPREC_BIT_SVE, DEEPREC_BIT_CUDA)
#define DEEPREC_PORTABLE DEEPREC_WITH_FLAGS(isa_portable_)
// The same encoding for the other regions: a target region adds to the unit's flags, so with -march=native
// the AVX2 kernels may contain AVX-512 code.
#define DEEPREC_UNIT DEEPREC_WITH_FLAGS(unit_)
// Before a function that vectorises or calls one that does: its symbol has the unit's flags, so the linker
// never merges it with that of a unit for other machines (docs/adr/0003-kernels-once-per-isa.md).
#define DEEPREC_TEXT_(x) #x
#define DEEPREC_TEXT(x) DEEPREC_TEXT_(x)
#define DEEPREC_PER_UNIT [[gnu::abi_tag(DEEPREC_TEXT(DEEPREC_UNIT))]]

// A number for what decides whether this unit may call kernels that another unit holds: the version, the ABI
// namespace, the processor and the flags above.
#define DEEPREC_FLAG_0 0
#define DEEPREC_FLAG_1 1
#define DEEPREC_FLAG_2 1
#define DEEPREC_FLAG_4 1
#define DEEPREC_FLAG_5 1
#define DEEPREC_FLAG_f 1
#define DEEPREC_FLAG_b 1
#define DEEPREC_FLAG_w 1
#define DEEPREC_FLAG_v 1
#define DEEPREC_FLAG_h 1
#define DEEPREC_FLAG_p 1
#define DEEPREC_FLAG_s 1
#define DEEPREC_FLAG_c 1
#define DEEPREC_FLAG_AS_IS(bit) DEEPREC_FLAG_##bit
#define DEEPREC_FLAG(bit) DEEPREC_FLAG_AS_IS(bit)
#if defined(__x86_64__)
#  define DEEPREC_PROCESSOR (2 - DEEPREC_X86)
#elif defined(__aarch64__)
#  define DEEPREC_PROCESSOR 3
#else
#  define DEEPREC_PROCESSOR 0
#endif
#define DEEPREC_KERNELS_NUMBER                                                                     \
  (((DEEPREC_VERSION_MAJOR * 100 + DEEPREC_VERSION_MINOR) * 100 + DEEPREC_VERSION_PATCH) * 65536 + \
   DEEPREC_EXCEPTIONS * 32768 + DEEPREC_CONTRACTS * 16384 + DEEPREC_PROCESSOR * 4096 +             \
   DEEPREC_FLAG(DEEPREC_BIT_SSE42) + DEEPREC_FLAG(DEEPREC_BIT_AVX) * 2 +                           \
   DEEPREC_FLAG(DEEPREC_BIT_AVX2) * 4 + DEEPREC_FLAG(DEEPREC_BIT_FMA) * 8 +                        \
   DEEPREC_FLAG(DEEPREC_BIT_BMI2) * 16 + DEEPREC_FLAG(DEEPREC_BIT_AVX512F) * 32 +                  \
   DEEPREC_FLAG(DEEPREC_BIT_AVX512BW) * 64 + DEEPREC_FLAG(DEEPREC_BIT_VBMI) * 128 +                \
   DEEPREC_FLAG(DEEPREC_BIT_BF16) * 256 + DEEPREC_FLAG(DEEPREC_BIT_FP16) * 512 +                   \
   DEEPREC_FLAG(DEEPREC_BIT_SVE) * 1024 + DEEPREC_FLAG(DEEPREC_BIT_CUDA) * 2048)

// Sanitizers know only what they compiled.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define DEEPREC_SANITIZED 1
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#    define DEEPREC_SANITIZED 1
#  else
#    define DEEPREC_SANITIZED 0
#  endif
#else
#  define DEEPREC_SANITIZED 0
#endif

// The compiled component (docs/adr/0027-compiled-kernels.md). Linking deeprec::kernels defines
// DEEPREC_KERNELS as the number of its units. A unit of the same number only declares the common kernels; any
// other one instantiates its own. The component's sources define the last two before they include a header.
#if !defined(DEEPREC_COMMON)
#  if !defined(DEEPREC_KERNELS)
#    define DEEPREC_COMPILED 0
#  elif DEEPREC_KERNELS == DEEPREC_KERNELS_NUMBER && !DEEPREC_SANITIZED
#    define DEEPREC_COMPILED 1
#  else
#    define DEEPREC_COMPILED 0
#  endif
#  define DEEPREC_COMMON extern template
#  define DEEPREC_COMMON_PART(part) 1
#else
#  define DEEPREC_COMPILED 1
#endif
