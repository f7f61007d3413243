# What a person looks at: --log, --tensorboard, --report, --importance.

find_program(chromium NAMES chromium chromium-browser google-chrome)
function(succeeds)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE complained)
  if(code)
    message(FATAL_ERROR "train_ctr ${ARGN} ended with ${code}:\n${text}${complained}")
  endif()
  set(said "${text}" PARENT_SCOPE)
endfunction()
# The first element of <output> is a number of the result of the last run, in <path> of the first model.
function(number output)
  file(READ "${WORK}/result.json" result)
  string(JSON value GET "${result}" models 0 ${ARGN})
  set(${output} "${value}" PARENT_SCOPE)
endfunction()
set(all --log "${WORK}/log.jsonl" --log-every 4 --tensorboard "${WORK}/events" --report "${WORK}/page" --importance)

# No bit of the weights depends on who looks.
set(same --rows 3000 --epochs 2 --model dlrm --model deepfm --valid 0.2 --valid-every 6)
checksums(plain ${same})
checksums(looked_at ${same} ${all})
expect(looked_at STREQUAL plain)
# The losses of steps have the same bits for any number of threads and either form of a step.
function(losses output)
  succeeds(--rows 3000 --model dlrm --model wdl --log "${WORK}/losses.jsonl" --log-every 2 ${ARGN})
  file(STRINGS "${WORK}/losses.jsonl" lines REGEX "\"event\":\"step\"")
  list(TRANSFORM lines REPLACE "\"seconds\":[^,]*," "")
  set(${output} "${lines}" PARENT_SCOPE)
endfunction()
losses(one --threads 1)
foreach(how IN ITEMS "--threads;3" "--step;graph;--threads;2" "--prefetch;0" "--smart-stage")
  losses(other ${how})
  if(NOT other STREQUAL one)
    message(FATAL_ERROR "${how}: other losses or norms")
  endif()
endforeach()
list(LENGTH one count)
expect(count GREATER 10)
if(python)
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/read_events.py" "${WORK}/log.jsonl" "${WORK}/events"
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/check_page.py" "${WORK}/page/report.html" 18 COMMAND_ERROR_IS_FATAL ANY)
else()
  message("SKIPPED: no program python3")
endif()
# Its own file grows where a run goes on, and begins anew where another one begins.
set(same --rows 2000 --model lr --log "${WORK}/grows.jsonl" --log-every 3)
succeeds(${same} --epochs 2 --steps 7 --save "${WORK}/saved")
succeeds(${same} --epochs 2 --load "${WORK}/saved")
file(STRINGS "${WORK}/grows.jsonl" lines REGEX "\"event\":\"step\"")
string(REGEX MATCHALL "\"step\":[0-9]+" steps "${lines}")
list(JOIN steps " " steps)
expect(steps MATCHES "^\"step\":3 \"step\":6 \"step\":9 ")
succeeds(${same} --steps 3)
file(STRINGS "${WORK}/grows.jsonl" lines REGEX "\"event\":\"step\"")
list(LENGTH lines count)
expect(count EQUAL 1)
# Of synthetic rows whose labels depend on a product of two tokens, those tokens are what the model looks at.
succeeds(--rows 12000 --planted product --model dlrm --epochs 2 --importance --json "${WORK}/result.json")
file(READ "${WORK}/result.json" result)
string(JSON slots GET "${result}" models 0 importance)
string(JSON count LENGTH "${slots}")
expect(count EQUAL 39)
set(told)
foreach(n RANGE 38)
  string(JSON slot MEMBER "${slots}" ${n})
  string(JSON rise GET "${slots}" "${slot}")
  if(rise MATCHES "^0[.]([1-9]|0[1-9])" )
    list(APPEND told ${slot})
  endif()
endforeach()
message("slots that tell: ${told}")
list(LENGTH told count)
expect(count EQUAL 2)
# Histories have steps and a page as well.
# Units that no row switches on, counted by hand; of many rows and large steps there are some in each model.
write_rows("${WORK}/ten" 10 --seed 9)
file(STRINGS "${WORK}/ten" lines)
list(SUBLIST lines 0 3 lines)
string(JOIN "\n" text ${lines})
file(WRITE "${WORK}/few" "${text}\n")
write_rows("${WORK}/many" 600)
set(how --data "${WORK}/many" --report "${WORK}/dead" --json "${WORK}/result.json")
succeeds(${how} --test "${WORK}/few" --model dlrm --bottom 400 --learning-rate 1e-9 --row-learning-rate 1e-9 --export "${WORK}/exported")
number(dead dead_units "bottom 1" dead)
number(units dead_units "bottom 1" units)
expect(units EQUAL 400)
if(python)
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/dead_by_hand.py" "${WORK}/exported" 400 OUTPUT_VARIABLE by_hand
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  message("dead units: ${dead}, by hand ${by_hand}")
  expect(dead GREATER 20)
  expect(dead EQUAL by_hand)
endif()
foreach(words IN ITEMS "wdl;3" "deepfm;3" "dcn;1")
  list(GET words 0 model)
  list(GET words 1 rate)
  succeeds(--rows 2000 --report "${WORK}/dead" --json "${WORK}/result.json" --model ${model} --learning-rate ${rate})
  number(dead dead_units "stack 1" dead)
  message("${model}: ${dead} dead")
  expect(dead GREATER 10)
  expect(dead LESS 257)
endforeach()
file(READ "${WORK}/dead/report.html" text)
expect(text MATCHES "layer stack 1: units that none of the first 8192 rows of the test switches on")
succeeds(--rows 400 --model din --model dssm --log "${WORK}/histories.jsonl" --log-every 5 --report "${WORK}/histories")
file(READ "${WORK}/histories/report.html" text)
expect(text MATCHES "<h2>din</h2>")
# What can't be written is told behind the results, and ends nothing before.
expect_error_of_script("\"$0\" --rows 2000 --model lr --log-every 1 --log /dev/full > \"$1\"; code=$?; grep -q '^lr ' \"$1\" || exit 99; exit $code"
                       1 "cannot write /dev/full: No space left" "${WORK}/said")
execute_process(COMMAND unshare -rm true RESULT_VARIABLE no_mounts OUTPUT_QUIET ERROR_QUIET)
if(no_mounts)
  message("SKIPPED: full and read-only file systems (unshare -rm is not allowed)")
else()
  file(MAKE_DIRECTORY "${WORK}/small")
  foreach(option IN ITEMS "--report" "--tensorboard" "--log")
    # Full: the results are printed first, and the files of before stay.
    expect_error_of_script([=[
      unshare -rm bash -c '
        mount -t tmpfs -o size=16k none "$2" || exit 98
        echo before > "$2/kept"
        "$0" --rows 2000 --model lr --epochs 9 --log-every 1 "$3" "$2/page" > "$1"
        code=$?
        grep -q "^lr  *0[.]" "$1" || exit 97
        [ "$(cat "$2/kept")" = before ] || exit 96
        exit $code' "$0" "$1" "$2" "$3"]=] 1 "cannot write .*: No space left" "${WORK}/said" "${WORK}/small" "${option}")
    # Read-only: refused before anything is read.
    expect_error_of_script([=[
      unshare -rm bash -c '
        mount -t tmpfs -o ro none "$2" || exit 98
        "$0" --rows 2000 --model lr "$3" "$2/page" > "$1"
        code=$?
        [ -s "$1" ] && exit 97
        exit $code' "$0" "$1" "$2" "$3"]=] 1 "cannot write .*: Read-only file system" "${WORK}/said" "${WORK}/small" "${option}")
  endforeach()
endif()
file(WRITE "${WORK}/file" "")
foreach(option IN ITEMS --report --tensorboard)
  expect_error(1 "cannot write .*file: " --rows 100 --model lr ${option} "${WORK}/file")
  expect_error(2 "${option}: " --rows 100 --model lr ${option} "")
endforeach()
write_rows("${WORK}/page/report.html" 500)
expect_error(1 "--data must not be the page of --report" --data "${WORK}/page/report.html" --model lr --report "${WORK}/page")
expect_error(1 "--log and --data must be different files" --data "${WORK}/page/report.html" --model lr --log "${WORK}/page/report.html")
# In a browser, wide and narrow, light and dark: it is drawn, and nothing is complained about.
if(NOT chromium)
  message("SKIPPED: no program chromium; the page was not looked at in a browser")
  return()
endif()
succeeds(${all} --rows 3000 --epochs 2 --model dlrm --valid 0.2)
foreach(size IN ITEMS "1280,4000" "360,6000")
  string(REPLACE "," "x" name "${size}")
  execute_process(COMMAND "${chromium}" --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr --v=0
                          --user-data-dir=${WORK}/browser --window-size=${size} --screenshot=${WORK}/page_${name}.png
                          "file://${WORK}/page/report.html"
                  RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text TIMEOUT 120)
  if(code OR text MATCHES "CONSOLE" OR NOT EXISTS "${WORK}/page_${name}.png")
    message(FATAL_ERROR "the page in a window of ${size}: ${code}\n${text}")
  endif()
  file(SIZE "${WORK}/page_${name}.png" bytes)
  expect(bytes GREATER 20000)
  # A narrow window has no need to scroll sideways.
  file(WRITE "${WORK}/width.html" "<script>addEventListener('load',()=>{const f=document.querySelector('iframe');const d=f.contentDocument;document.title='';document.body.append(d?'WIDTH '+d.documentElement.scrollWidth+' OF '+d.documentElement.clientWidth:'CLOSED')})</script><iframe src='page/report.html' style='width:360px;height:600px;border:0'></iframe>")
  execute_process(COMMAND "${chromium}" --headless --no-sandbox --disable-gpu --allow-file-access-from-files
                          --user-data-dir=${WORK}/browser --dump-dom "file://${WORK}/width.html"
                  OUTPUT_VARIABLE text ERROR_QUIET TIMEOUT 120)
  string(REGEX MATCH "WIDTH ([0-9]+) OF ([0-9]+)" found "${text}")
  expect(found AND CMAKE_MATCH_1 EQUAL CMAKE_MATCH_2)
endforeach()
