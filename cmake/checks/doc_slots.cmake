# cmake -DROOT=<repository> -P doc_slots.cmake
# The slots of a documentation comment stand in one order. @cost never comes without @threads and @error,
# and a documented function at namespace scope has all three, unless it is private (detail, kernels) or
# its comment begins with "The same, for".

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

set(order shape dtype space pre post numerics cost threads error example source)
set(needed cost threads error)

# What begins a declaration that is no function, or no function of its own.
set(other "class|struct|enum|union|concept|using|typedef|namespace|static_assert|extern|friend")

foreach(header IN LISTS HEADERS)
  read_lines("${header}" lines)
  list(APPEND lines "end")
  set(number 0)
  set(slots)
  set(detail FALSE)
  if(header MATCHES "(^|/)detail/|[.]inl$")
    set(detail TRUE)
  endif()
  set(same FALSE)
  set(documented 0) # the line where a comment at namespace scope ends; 0: none waits for its function
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "^[ \t]*///[ \t]*@([a-z]+)")
      list(FIND order "${CMAKE_MATCH_1}" place)
      if(place EQUAL -1)
        continue()
      endif()
      set(slot "${CMAKE_MATCH_1}")
      if(slots)
        list(GET slots -1 last)
        list(FIND order "${last}" last_place)
        if(place LESS last_place)
          fault("${header}:${number}: @${slot} stands after @${last}")
        endif()
      endif()
      list(APPEND slots ${slot})
    endif()
    if(line MATCHES "^[ \t]*///")
      set(documented 0)
      if(line MATCHES "^///[ \t]*The same, for ")
        set(same TRUE) # an overload of what stands above
      endif()
      if(line MATCHES "^///" AND NOT same)
        set(documented ${number})
      endif()
      continue()
    endif()

    # The first line of a declaration stands in column 0, and what continues it is indented; read_lines
    # has made blanks of brackets, so [[nodiscard]] is "  nodiscard  ".
    set(function FALSE)
    if(documented AND NOT detail)
      string(REGEX REPLACE "^  nodiscard  +" "" head "${line}")
      if(head MATCHES "^(template|requires|[ #]|//)")
        if(NOT head MATCHES "^ +$")
          continue() # what comes before the function itself
        endif()
      elseif(NOT head MATCHES "^(${other})[^a-z_]" AND head MATCHES "^[^(=]+ [^(=]*[(]|operator")
        set(function TRUE)
      endif()
    endif()
    if(function OR "cost" IN_LIST slots)
      foreach(slot IN LISTS needed)
        if(NOT slot IN_LIST slots)
          fault("${header}:${number}: the comment above has no @${slot}")
        endif()
      endforeach()
    endif()
    set(slots)
    set(same FALSE)
    set(documented 0)

    if(line MATCHES "^namespace.*(detail|DEEPREC_DEVICE) {")
      set(detail TRUE)
    elseif(line MATCHES "^}.*namespace.*(detail|DEEPREC_DEVICE)" AND NOT header MATCHES "(^|/)detail/|[.]inl$")
      set(detail FALSE)
    endif()
  endforeach()
endforeach()
report_faults()
