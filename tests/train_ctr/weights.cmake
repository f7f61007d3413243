# Weights of rows, a column of a schema: by hand, against rows left out and rows repeated, and what a weight must not be.

needs_python()
# Of each row the same columns; beside rows with weights: without the column, with ones, without rows of weight 0, each row as often as
# its weight tells, and with fields that are missing for those of weight 2.
file(WRITE "${WORK}/rows.py" "
import csv, random, sys
chance = random.Random(int(sys.argv[2]))
weights = sys.argv[4].split()
files = {name: csv.writer(open(sys.argv[1] + name, 'w', newline='')) for name in ('', '_plain', '_ones', '_left', '_repeated', '_missing')}
for name, to in files.items():
    to.writerow(['y', 'n', 'price', 'city', 'page', 'user'] + (['w'] if name not in ('_plain', '_repeated') else []))
for _ in range(int(sys.argv[3])):
    city, page = int(chance.paretovariate(0.8)) % 40, chance.randrange(200)
    y = int(chance.random() < (0.15 + 0.5 * (city % 3 == 0) + 0.3 * (page % 7 == 0)))
    row = [y, chance.randrange(30), f'{chance.gauss(3, 2):.3f}', f'c{city}', f'p{page}', f'u{chance.randrange(60)}']
    w = chance.choice(weights)
    files[''].writerow(row + [w])
    files['_plain'].writerow(row)
    files['_ones'].writerow(row + ['1'])
    files['_missing'].writerow(row + ['' if w == '2' else w])
    if float(w) > 0: files['_left'].writerow(row + [w])
    for _ in range(int(float(w))): files['_repeated'].writerow(row)
")
foreach(part IN ITEMS "train;1;3000;0 0.25 1 1 2 3.75" "test;2;1500;0 0.25 1 1 2 3.75" "whole;3;2500;0 1 2 3")
  list(POP_FRONT part name)
  execute_process(COMMAND "${python}" "${WORK}/rows.py" "${WORK}/${name}" ${part} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set(columns "{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"n\", \"use\": \"count\"}, {\"name\": \"price\", \"use\": \"dense\"},
  {\"name\": \"city\", \"use\": \"token\"}, {\"name\": \"page\", \"use\": \"token\"}, {\"name\": \"user\", \"use\": \"group\"}")
file(WRITE "${WORK}/plain.json" "{\"columns\": [${columns}]}")
file(WRITE "${WORK}/weighted.json" "{\"columns\": [${columns}, {\"name\": \"w\", \"use\": \"weight\"}]}")
file(WRITE "${WORK}/missing.json" "{\"columns\": [${columns}, {\"name\": \"w\", \"use\": \"weight\", \"missing\": 2}]}")
set(data --schema "${WORK}/weighted.json" --data "${WORK}/train" --test "${WORK}/test")

# Steps and figures by hand, whole and in parts, called and as a graph.
set(of_by_hand ${data} --valid "${WORK}/test")
by_hand("--batch-size;4000" batch=4000)
by_hand("--epochs;2" epochs=2)
by_hand("--epochs;2;--micro-batch;3" epochs=2)
by_hand("--step;graph;--threads;2" epochs=1)
by_hand("--step;graph;--micro-batch;3" epochs=1)
by_hand("--optimizer;sgd;--learning-rate;0.5;--row-learning-rate;2;--batch-size;64" optimizer=sgd rate=0.5 row_rate=2.0 batch=64)
# The weights are those of the file.
execute_process(COMMAND "${python}" -c "
import csv, struct, sys
data = open(sys.argv[1] + '/exported/test_weights.npy', 'rb').read()
head = 10 + struct.unpack('<H', data[8:10])[0]
made = struct.unpack('<%df' % ((len(data) - head) // 4), data[head:])
assert list(made) == [float(r['w']) for r in csv.DictReader(open(sys.argv[1] + '/test')) if float(r['w']) > 0], made"
                        "${WORK}" COMMAND_ERROR_IS_FATAL ANY)

# The same bits in every way of stepping.
foreach(models IN ITEMS "dlrm;lr" "wdl;deepfm" "dcn;lr")
  list(JOIN models ";--model;" words)
  checksums(one ${data} --model ${words} --threads 1)
  foreach(how IN ITEMS "--threads;3" "--step;graph" "--step;graph;--fusion;--threads;2" "--prefetch;0" "--smart-stage" "--memory;1;--window;3000")
    if(models MATCHES "deepfm|dcn" AND how MATCHES "step;graph|smart")
      continue()
    endif()
    checksums(other ${data} --model ${words} ${how})
    if(NOT other STREQUAL one)
      message(FATAL_ERROR "${models} ${how}: ${other}, not ${one}")
    endif()
  endforeach()
endforeach()
checksums(whole ${data} --model dlrm --model lr --micro-batch 1)
checksums(window ${data} --model dlrm --model lr --stale-window 1)
expect(window STREQUAL whole)
checksums(direct ${data} --model dlrm --model lr --keys raw)
checksums(graph ${data} --model dlrm --model lr --keys raw --step graph)
expect(graph STREQUAL direct)

set(models --model dlrm --model wdl --model deepfm --model dcn --model lr --importance)
# Weights of 1 have the bits of rows without weights.
figures(plain --schema "${WORK}/plain.json" --data "${WORK}/train_plain" --test "${WORK}/test_plain" ${models})
figures(ones --schema "${WORK}/weighted.json" --data "${WORK}/train_ones" --test "${WORK}/test_ones" ${models})
same("${plain}" "${ones}" "weights of 1 change something")
expect(plain MATCHES "checksum [0-9a-f]+\nauc ")
# Rows of weight 0 are as rows that are not there.
figures(all ${data} ${models})
figures(left --schema "${WORK}/weighted.json" --data "${WORK}/train_left" --test "${WORK}/test_left" ${models})
same("${all}" "${left}" "rows of weight 0 count")
expect(NOT all STREQUAL plain)
# A missing weight is the one that the schema has for it.
figures(missing --schema "${WORK}/missing.json" --data "${WORK}/train_missing" --test "${WORK}/test_missing" ${models})
same("${all}" "${missing}" "a missing weight is another one")

# Of rows to evaluate a weight of 3 is as three rows, but for rounding; predictions need no weights.
run(sum said ${data} --model dlrm --save "${WORK}/weighted.model")
file(READ "${WORK}/result.json" trained)
execute_process(COMMAND "${PROGRAM}" --schema "${WORK}/plain.json" --data "${WORK}/train_plain" --test "${WORK}/test_plain" --model dlrm
                        --save "${WORK}/plain.model" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
function(evaluate output model file)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/${model}.model" --evaluate "${WORK}/${file}" --json "${WORK}/found_${output}.json" --report
                          "${WORK}/page" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/found_${output}.json" found)
  set(${output} "${found}" PARENT_SCOPE)
endfunction()
# The first model of two results has the same figures, within a relative bound.
function(near bound one other)
  execute_process(COMMAND "${python}" -c "
import json, sys
one, other = (json.load(open(f))['models'][0] for f in sys.argv[2:])
for name in ('auc', 'logloss', 'calibration', 'group_auc'):
    assert abs(one[name] - other[name]) <= float(sys.argv[1]) * abs(one[name]), (name, one[name], other[name])
    print(name, one[name], other[name])
assert one['groups'] == other['groups']"
                          ${bound} "${WORK}/${one}.json" "${WORK}/${other}.json" COMMAND_ERROR_IS_FATAL ANY)
endfunction()
# The bits of a product depend on the number of rows in its chunk, and chunks of a test and of --evaluate differ by the rows of weight 0.
evaluate(found weighted test)
file(WRITE "${WORK}/trained.json" "${trained}")
near(1e-5 trained found_found)
# The same model twice, with and without a column of weights.
execute_process(COMMAND "${PROGRAM}" --schema "${WORK}/weighted.json" --data "${WORK}/train_ones" --test "${WORK}/test_ones" --model dlrm
                        --save "${WORK}/ones.model" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
evaluate(repeated plain whole_repeated)
evaluate(weighted ones whole)
near(1e-5 found_repeated found_weighted)
foreach(file IN ITEMS test test_plain)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/weighted.model" --predict "${WORK}/${file}" --output "${WORK}/${file}.out"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(READ "${WORK}/test.out" one)
file(READ "${WORK}/test_plain.out" other)
expect(one STREQUAL other)

# What a weight must not be: the file, the line, the column, and why.
file(WRITE "${WORK}/small.json" "{\"missing\": [\"NA\"], \"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"w\", \"use\": \"weight\"}, {\"name\": \"t\", \"use\": \"token\"}]}")
set(small --schema "${WORK}/small.json" --model lr --train-fraction 0.5 --data)
foreach(pair IN ITEMS "-0.5;the weight of a row is negative" "nan;not a finite number" "inf;not a finite number" ";the weight of a row is missing"
                      "NA;the weight of a row is missing" "1048577;the weight of a row is above 2.20" "two;not a number")
  list(GET pair 0 weight)
  list(GET pair 1 words)
  file(WRITE "${WORK}/bad" "y,w,t\n1,2,a\n0,${weight},b\n1,4,a\n0,5,b\n")
  expect_error(1 "bad:3:3: malformed text: ${words}" ${small} "${WORK}/bad")
endforeach()
file(WRITE "${WORK}/bad" "y,w,t\n1,0,a\n0,0,b\n1,0,a\n0,0,b\n")
expect_error(1 "too few rows: 0 to train, 0 to test" ${small} "${WORK}/bad")
# --skip-bad leaves them out, and counts them.
set(text "y,w,t\n")
foreach(i RANGE 300)
  math(EXPR label "${i} % 3 / 2")
  math(EXPR weight "${i} % 5")
  math(EXPR token "${i} % 40")
  string(APPEND text "${label},${weight},t${token}\n")
endforeach()
file(WRITE "${WORK}/clean" "${text}")
string(REPLACE "y,w,t\n" "y,w,t\n1,-1,t0\n0,,t1\n1,nan,t1\n" text "${text}")
file(WRITE "${WORK}/dirty" "${text}")
run(clean said ${small} "${WORK}/clean")
run(dirty said ${small} "${WORK}/dirty" --skip-bad 3)
expect(dirty STREQUAL clean)
file(READ "${WORK}/result.json" result)
string(JSON skipped GET "${result}" rows_skipped)
expect(skipped EQUAL 3)
string(JSON first GET "${result}" skipped 0)
expect(first MATCHES "dirty:2:3: .*the weight of a row is negative")
