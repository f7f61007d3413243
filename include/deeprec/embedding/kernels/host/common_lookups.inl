// The lookup kernels that the component deeprec::kernels holds, of one region. Units that use it read this
// list as declarations, its sources as definitions, each one part. No include guard: see
// simd/foreach_region.hpp.

#if DEEPREC_COMMON_PART(1)
DEEPREC_COMMON struct lookup_kernels<float, ::deeprec::detail::pool_args<float>>;
DEEPREC_COMMON bool any_bad_id(region, const std::int32_t*, index_t, index_t, index_t);
DEEPREC_COMMON bool any_bad_id(region, const std::int64_t*, index_t, index_t, index_t);
#endif
#if DEEPREC_COMMON_PART(2)
DEEPREC_COMMON struct lookup_kernels<f16, ::deeprec::detail::pool_args<float>>;
DEEPREC_COMMON struct lookup_kernels<bf16, ::deeprec::detail::pool_args<float>>;
#endif
#if DEEPREC_COMMON_PART(3)
DEEPREC_COMMON struct lookup_kernels<::deeprec::detail::scaled_code<8, float>,
                                     ::deeprec::detail::pool_args<float>>;
DEEPREC_COMMON struct lookup_kernels<::deeprec::detail::scaled_code<4, f16>,
                                     ::deeprec::detail::pool_args<float>>;
DEEPREC_COMMON struct lookup_kernels<::deeprec::detail::split_float, ::deeprec::detail::pool_args<float>>;
#endif
#if DEEPREC_COMMON_PART(4)
DEEPREC_COMMON struct lookup_kernels<float, ::deeprec::detail::pool_args<bf16>>;
DEEPREC_COMMON struct lookup_kernels<bf16, ::deeprec::detail::pool_args<bf16>>;
DEEPREC_COMMON struct lookup_kernels<float, ::deeprec::detail::pool_args<f16>>;
DEEPREC_COMMON struct lookup_kernels<f16, ::deeprec::detail::pool_args<f16>>;
#endif
