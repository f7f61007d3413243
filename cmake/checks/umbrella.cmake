# cmake -DROOT=<repository> -P umbrella.cmake
# FOLDER.hpp includes every header of a folder that users include and that needs no optional component; deeprec.hpp includes the
# umbrellas and what stands beside them; deeprec.cuh includes it and every device header.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# For no umbrella of the host: private headers, headers of one component or of one host framework.
set(apart "(^|/)detail/" "/kernels/" "_kernels[.]hpp$" "^(support|simd|interop)/" "(^|/)cuda_" "onednn" "^data/(gzip|zstd)_"
          "^data/(farmhash[.]|parquet_)" "^comm/mpi_")

# Faults unless an umbrella of this tree includes a header.
function(expect_in umbrella header)
  set(text)
  if(EXISTS "${INCLUDE}/${umbrella}")
    file(READ "${INCLUDE}/${umbrella}" text)
  endif()
  if(NOT text MATCHES "\n#include <deeprec/${header}>")
    fault("${umbrella} does not include deeprec/${header}")
    set(FAULTS "${FAULTS}" PARENT_SCOPE)
  endif()
endfunction()

foreach(header IN LISTS HEADERS)
  if(header MATCHES "^deeprec[.]")
    continue()
  elseif(header MATCHES "[.]hpp$")
    set(skip FALSE)
    foreach(pattern IN LISTS apart)
      if(header MATCHES "${pattern}")
        set(skip TRUE)
      endif()
    endforeach()
    if(skip)
      continue()
    elseif(header MATCHES "^([^/]+)/")
      expect_in("${CMAKE_MATCH_1}.hpp" "${header}")
    else()
      expect_in(deeprec.hpp "${header}")
    endif()
  elseif(header MATCHES "[.]cuh$" AND NOT header MATCHES "/detail/|/kernels/|^interop/")
    expect_in(deeprec.cuh "${header}")
  endif()
endforeach()
if(EXISTS "${INCLUDE}/deeprec.cuh")
  expect_in(deeprec.cuh deeprec.hpp)
endif()
report_faults()
