# What a run must not do to its files, and options that would have no effect.

needs_python()
file(WRITE "${WORK}/rows.py" "
import random, sys
chance = random.Random(int(sys.argv[2]))
print('y,n,city,page,user', file=(to := open(sys.argv[1], 'w')))
for _ in range(int(sys.argv[3])):
    city, page = chance.randrange(20), chance.randrange(100)
    print(int(chance.random() < 0.2 + 0.4 * (city % 3 == 0)), chance.randrange(30), f'c{city}', f'p{page}', f'u{chance.randrange(40)}', sep=',', file=to)
")
foreach(part IN ITEMS "train;1;3000" "test;2;1000" "few;3;200")
  list(POP_FRONT part name)
  execute_process(COMMAND "${python}" "${WORK}/rows.py" "${WORK}/${name}" ${part} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set(columns "{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"n\", \"use\": \"count\"}, {\"name\": \"city\", \"use\": \"token\"},
             {\"name\": \"page\", \"use\": \"token\"}")
file(WRITE "${WORK}/schema.json" "{\"columns\": [${columns}, {\"name\": \"user\", \"use\": \"group\"}]}")
file(WRITE "${WORK}/token.json" "{\"columns\": [${columns}, {\"name\": \"user\", \"use\": \"token\"}]}")
file(WRITE "${WORK}/bags.json" "{\"columns\": [${columns}, {\"name\": \"user\", \"use\": \"tokens\", \"separator\": \"|\"}]}")
file(WRITE "${WORK}/dense.json" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"n\", \"use\": \"dense\"}, {\"name\": \"city\", \"use\": \"token\"}]}")
set(data --data "${WORK}/train" --test "${WORK}/test")
set(same --schema "${WORK}/schema.json" ${data} --model lr)

# An output must be no input, the schema neither.
foreach(option IN ITEMS --json --save --log --trace)
  file(SHA256 "${WORK}/schema.json" before)
  expect_error(1 "${option} and --schema must be different files" ${same} ${option} "${WORK}/schema.json")
  file(SHA256 "${WORK}/schema.json" after)
  expect(after STREQUAL before)
endforeach()
expect_error(2 "--json: -: the standard output is /dev/stdout here" ${same} --json -)
expect_error(2 "--log: -: " ${same} --log -)

file(WRITE "${WORK}/cities" "c1\nc2\nc3\n")
file(WRITE "${WORK}/words.json" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"city\", \"use\": \"token\", \"vocabulary\": \"cities\"}]}")
foreach(option IN ITEMS --json --save)
  expect_error(1 "${option} and a vocabulary must be different files" --schema "${WORK}/words.json" ${data} --model lr ${option} "${WORK}/cities")
endforeach()
file(READ "${WORK}/cities" cities)
expect(cities STREQUAL "c1\nc2\nc3\n")

# Predictions need no column that they do not use.
file(WRITE "${WORK}/named.json" "{\"columns\": [${columns}, {\"name\": \"user\", \"use\": \"name\"}]}")
run(sum said --schema "${WORK}/named.json" ${data} --model lr --save "${WORK}/named")
execute_process(COMMAND cut -d, -f 1-4 "${WORK}/test" OUTPUT_FILE "${WORK}/nameless")
foreach(file IN ITEMS test nameless)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/named" --predict "${WORK}/${file}" OUTPUT_VARIABLE of_${file} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
expect(of_test STREQUAL of_nameless)
expect(of_test MATCHES "^0[.][0-9]+\n")
expect_error(1 "nameless:1: .*user" --load "${WORK}/named" --predict "${WORK}/nameless" --output-format csv)

# A signal ends a run that waits for a pipe.
find_program(bash bash)
find_program(mkfifo mkfifo)
if(bash AND mkfifo)
  set(waiting [=[
    fifo="$1"; shift
    mkfifo "$fifo"
    exec 7<> "$fifo"
    printf 'y,n,city,page,user\n1,2,c1,p1,u1\n0,2' >&7
    "$0" "$@" > /dev/null 2>&1 &
    until ls -l /proc/$!/fd 2> /dev/null | grep -q "$fifo"; do
      kill -0 $! || exit 99
      sleep 0.05
    done
    kill -TERM $!
    wait $!]=])
  foreach(use IN ITEMS "--load;${WORK}/named;--predict;${WORK}/fifo0" "--schema;${WORK}/schema.json;--model;lr;--data;${WORK}/fifo1")
    list(GET use 3 fifo)
    if(use MATCHES "fifo1")
      list(GET use 5 fifo)
    endif()
    execute_process(COMMAND "${bash}" -c "${waiting}" "${PROGRAM}" "${fifo}" ${use} RESULT_VARIABLE got)
    expect(got STREQUAL "143")
  endforeach()
endif()

# With --patience a run that ends before its first validation is saved as it is.
run(patient said ${same} --valid "${WORK}/test" --patience 2 --steps 5 --save "${WORK}/patient")
run(plain said ${same} --steps 5 --save "${WORK}/plain")
expect(patient STREQUAL plain)
file(SHA256 "${WORK}/patient" patient)
file(SHA256 "${WORK}/plain" plain)
expect(patient STREQUAL plain)

# Where the weights are not finite nothing is written: what was there stays.
file(SHA256 "${WORK}/plain" before)
set(wild --schema "${WORK}/dense.json" ${data} --model dlrm --optimizer sgd --learning-rate 1000 --row-learning-rate 1000)
run(sum said --schema "${WORK}/dense.json" ${data} --model dlrm --save "${WORK}/dense")
file(SHA256 "${WORK}/dense" before)
expect_error(1 "dense is not written: weights after step [0-9]+ must be finite: the training diverged[.] Fix: a lower" ${wild} --load
             "${WORK}/dense" --new-data --save "${WORK}/dense")
file(SHA256 "${WORK}/dense" after)
expect(after STREQUAL before)
expect_error(1 "a prediction must be finite: the training diverged" ${wild})

# The best validation of a file is that of its own rows.
set(patient ${same} --valid-every 5 --patience 2 --epochs 2)
run(sum said ${patient} --valid "${WORK}/test" --save "${WORK}/best")
execute_process(COMMAND "${PROGRAM}" ${patient} --valid "${WORK}/few" --load "${WORK}/best" --save "${WORK}/next" --json "${WORK}/result.json"
                OUTPUT_QUIET ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
expect(said MATCHES "^train_ctr: [^\n]*best: its best validation was of other rows, and counts no more\n$")
execute_process(COMMAND "${PROGRAM}" ${patient} --valid "${WORK}/test" --load "${WORK}/best" --save "${WORK}/next" OUTPUT_QUIET ERROR_VARIABLE said
                COMMAND_ERROR_IS_FATAL ANY)
expect(NOT said MATCHES ".")

# A column with one token groups as well as one of use group; others do not.
figures(grouped --schema "${WORK}/schema.json" ${data} --model lr)
figures(ignored --schema "${WORK}/token.json" ${data} --model lr --group user)
foreach(text IN ITEMS grouped ignored) # the models differ, the groups do not
  string(REGEX MATCH "groups [0-9]+" ${text} "${${text}}")
endforeach()
expect(grouped STREQUAL "groups 40")
expect(ignored STREQUAL grouped)
run(sum said --schema "${WORK}/token.json" ${data} --model lr --save "${WORK}/token" --group user)
file(READ "${WORK}/result.json" trained)
execute_process(COMMAND "${PROGRAM}" --load "${WORK}/token" --evaluate "${WORK}/test" --group user --json "${WORK}/found.json" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
file(READ "${WORK}/found.json" found)
foreach(figure IN ITEMS auc group_auc groups)
  string(JSON one GET "${trained}" models 0 ${figure})
  string(JSON other GET "${found}" models 0 ${figure})
  expect(one STREQUAL other)
endforeach()
foreach(name IN ITEMS C1 C3 C26 n nobody)
  expect_error(1 "--group: ${name} must be a column of tokens, a column of use token" --load "${WORK}/token" --evaluate "${WORK}/test" --group ${name})
  expect_error(1 "--group: ${name} must be a column of tokens, a column of use token" --schema "${WORK}/token.json" ${data} --group ${name})
endforeach()
expect_error(1 "--group is not for a schema with a column of use group .has user." ${same} --group city)
expect_error(1 "--group: user must be a column of tokens" --schema "${WORK}/bags.json" ${data} --group user)
figures(bags --schema "${WORK}/bags.json" ${data} --model lr --group city)
expect(bags MATCHES "groups 20\n")

# What is evaluated has the settings of its model, and none of a training.
run(sum said --schema "${WORK}/schema.json" ${data} --model lr --keys raw --optimizer sgd --save "${WORK}/raw")
execute_process(COMMAND "${PROGRAM}" --load "${WORK}/raw" --evaluate "${WORK}/test" --json "${WORK}/found.json" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(READ "${WORK}/found.json" found)
string(JSON keys GET "${found}" keys)
expect(keys STREQUAL raw)
expect(NOT found MATCHES "optimizer|epochs|batch_size|\"seed\"")

# Several seeds: the rows of the first; and patterns.
execute_process(COMMAND "${PROGRAM}" --schema "${WORK}/schema.json" --data "${WORK}/train" --model lr --repeat 3 --json "${WORK}/found.json"
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(READ "${WORK}/found.json" found)
string(JSON repeated GET "${found}" train_rows)
string(JSON spread GET "${found}" repeat lr group_auc mean)
expect(spread GREATER 0.4)
run(sum said --schema "${WORK}/schema.json" --data "${WORK}/train" --model lr)
file(READ "${WORK}/result.json" found)
string(JSON once GET "${found}" train_rows)
expect(repeated EQUAL once)
run(pattern said ${same} --valid "${WORK}/tes[t]" --save "${WORK}/model")
run(file said ${same} --valid "${WORK}/test")
expect(pattern STREQUAL file)
execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --evaluate "${WORK}/t[e]st" OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
expect(said MATCHES "lr ")

# Options that would have no effect.
set(use --load "${WORK}/model" --evaluate "${WORK}/test")
foreach(option IN ITEMS "--epochs;2" "--learning-rate;0.1" "--batch-size;9" "--width;8" "--top;9" "--dropout;0.1" "--optimizer;sgd" "--l2;1"
                        "--steps;5" "--seed;2" "--train-fraction;0.5" "--save-every;3" "--stale-window;1" "--micro-batch;2" "--memory;1G" "--rows;100"
                        "--log-every;7" "--keys;raw" "--verbose" "--prefetch;0")
  list(GET option 0 name)
  expect_error(2 "${name} is not for --evaluate" ${use} ${option})
  expect_error(2 "${name} is not for --predict" --load "${WORK}/model" --predict "${WORK}/test" ${option})
endforeach()
expect_error(2 "--train-fraction is not for --test" ${same} --train-fraction 0.5)
expect_error(2 "--rows is not for --data" ${same} --rows 100)
expect_error(2 "--planted is not for --data" ${same} --planted product)
expect_error(2 "--log-every needs --log, --report or --tensorboard" ${same} --log-every 9)
expect_error(2 "--initial-squares is not for --optimizer sgd" ${same} --optimizer sgd --initial-squares 1)
expect_error(2 "--model is not for --synthesize" --synthesize "${WORK}/made" --model lr)
expect_error(1 "--warm-up must be less than the steps of the training .is 100, of 24." ${same} --schedule cosine --warm-up 100)
expect_error(2 "--seed: -1 must be a whole number from 0 to 2.64 - 1" ${same} --seed -1)
expect_error(2 "--seed: 99999999999999999999 must" ${same} --seed 99999999999999999999)
expect_error(2 "--steps: .*1099511627776" ${same} --steps -1)
file(WRITE "${WORK}/empty" "y,n,city,page,user\n")
expect_error(1 "empty: too few rows: 0 to train, 0 to test" --schema "${WORK}/schema.json" --data "${WORK}/empty")
expect_error_of_script("\"$0\" --schema \"$1\" --data <(cat \"$2\") --model lr --repeat 2" 2 "--data /dev/fd/[0-9]+ is not for --repeat: a pipe can be read once"
                       "${WORK}/schema.json" "${WORK}/train")
