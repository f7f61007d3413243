// Which sanitizer this is built with: DEEPREC_TEST_ASAN, DEEPREC_TEST_TSAN are 0 or 1.
#pragma once

#if defined(__has_feature)
#  define DEEPREC_TEST_FEATURE(name) __has_feature(name)
#else
#  define DEEPREC_TEST_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || DEEPREC_TEST_FEATURE(address_sanitizer)
#  define DEEPREC_TEST_ASAN 1
#else
#  define DEEPREC_TEST_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || DEEPREC_TEST_FEATURE(thread_sanitizer)
#  define DEEPREC_TEST_TSAN 1
#else
#  define DEEPREC_TEST_TSAN 0
#endif
#define DEEPREC_TEST_SANITIZED (DEEPREC_TEST_ASAN || DEEPREC_TEST_TSAN)
