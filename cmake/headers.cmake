# Every public header. Written by: cmake -P cmake/list_headers.cmake

set(DEEPREC_HEADERS
    include/deeprec/core/config.hpp
    include/deeprec/core/context.hpp
    include/deeprec/core/contract.hpp
    include/deeprec/core/dtypes.hpp
    include/deeprec/core/executor.hpp
    include/deeprec/core/hash.hpp
    include/deeprec/core/isa.hpp
    include/deeprec/core/jagged_view.hpp
    include/deeprec/core/matrix_view.hpp
    include/deeprec/core/random.hpp
    include/deeprec/core/result.hpp
    include/deeprec/core/space.hpp
    include/deeprec/core/status.hpp
    include/deeprec/core/verb.hpp)
