"""Are the flags of other tools taken as ours, where they mean the same?"""

import click
import pytest
from command_line import check_refused, run

from inferometer.cli.foreign_flags import check_given, in_our_words
from inferometer.cli.main import VERBS, app
from inferometer.errors import SpecError
from inferometer.inputs.option_names import in_our_names


def command(verb):
    return app.get_command(click.Context(app), verb)


@pytest.mark.parametrize(
    ("verb", "typed", "read"),
    [
        ("simulate", "--gpu h100 --qps 4", "--hardware h100 --rate 4"),
        ("simulate", "m --isl 512 --osl=128", "m --workload 512x128"),
        (
            "simulate",
            "--isl 512,1024 --osl 1,2",
            "--workload 512x1,512x2,1024x1,1024x2",
        ),
        (
            "simulate",
            "--workload t.jsonl --output-tokens 9",
            "--workload t.jsonl --output-tokens 9",
        ),
        ("simulate", "--input-tokens 7 --output-tokens 9", "--workload 7x9"),
        ("predict", "--input-len 512 --output-len 100", "--prompt 512 --output 100"),
        ("predict", "--isl 512", "--prompt 512"),
        ("predict", "--seq 512 --gen-tokens 8", "--prompt 512 --output 8"),
        ("predict", "m --prompt 8k --gen 500", "m --prompt 8k --output 500"),
        ("load", "URL --max-seconds 30", "URL --for 30s"),
        ("load", "URL --duration=1.5 --for-ever", "URL --for=1.5s --for-ever"),
        ("load", "URL --for 30", "URL --for 30"),
        ("load", "URL --max-concurrency 8", "URL --max-concurrency 8"),
        ("simulate", "--max-concurrency 8", "--concurrency 8"),
        ("load", "URL --request-rate inf --num-prompts 40", "URL --requests 40 --concurrency 40"),
        ("load", "URL --rate=inf --max-concurrency 8", "URL --max-concurrency 8"),
        ("simulate", "--request-rate INF --max-concurrency=8", "--concurrency=8"),
        ("simulate", "--rate inf", "--rate inf"),
        ("simulate", "--rate 5 --requests 40", "--rate 5 --requests 40"),
        ("size", "--num-gpus 8", "--total-gpus 8"),
        ("simulate", "--num-gpus 8", "--num-gpus 8"),
        ("load", "u --endpoint /v1/chat/completions", "u --endpoint chat"),
        ("load", "u --backend=vllm", "u --endpoint completions"),
        ("load", "u --endpoint-type chat --streaming", "u --endpoint chat --stream"),
        ("load", "u --dataset-name random --isl 8 --osl 9", "u --workload 8x9"),
        ("load", "u --dataset-name sharegpt", "u --workload sharegpt"),
        ("load", "u --dataset-path a --dataset-name=custom", "u --workload a"),
        ("simulate", "m --dataset-name random --input-file a", "m --workload a"),
        ("predict", "m --dataset-name random", "m --dataset-name random"),
        ("simulate", "-- --qps", "-- --qps"),
        ("sweep", "--isl 512 --osl 8", "--seq 512 --gen-tokens 8"),
        ("sweep", "--prompt=16,64 --batch 1,2", "--seq=16,64 --batch-sizes 1,2"),
        ("sweep", "--batch-size 4 --gen 8", "--batch-sizes 4 --gen-tokens 8"),
        ("sweep", "--output 8 --seq-len 16", "--gen-tokens 8 --seq 16"),
        ("sweep", "--repeats 3 --num-iters-warmup 1", "--reps 3 --warmup 1"),
        ("sweep", "qwen3-8b --dry-run", "--model qwen3-8b --dry-run"),
        ("quick", "qwen3-8b", "qwen3-8b"),
        ("predict", "--input 512 --output 9", "--prompt 512 --output 9"),
        ("simulate", "--input 512 --max-new-tokens 9", "--workload 512x9"),
        ("size", "--hardware h100 --rate 2", "--gpus h100 --rate 2"),
        ("size", "--gpu=h100", "--gpus=h100"),
        ("size", "--gpus rtx4090", "--gpus rtx4090"),
        ("size", "--gpus H100SXMx8", "--gpus H100SXM --total-gpus 8"),
        (
            "capacity",
            "--max_num_seqs 64 --tensor_parallel_size=2",
            "--max-num-seqs 64 --tensor-parallel-size=2",
        ),
        ("simulate", "--random_input_len 512 --random_output_len=9", "--workload 512x9"),
        (
            "simulate",
            "--workload a_b.toml -- --max_num_seqs",
            "--workload a_b.toml -- --max_num_seqs",
        ),
        ("predict", "--model qwen3-8b --gpu h100", "qwen3-8b --hardware h100"),
        ("predict", "--model=qwen3-8b", "qwen3-8b"),
        ("load", "--base-url http://h:1 --model m", "http://h:1 --model m"),
        ("predict", "m --hardware 8xH100 --isl 2k", "m --hardware H100 --tp 8 --prompt 2k"),
        ("predict", "m --gpu=H100:4", "m --hardware=H100 --tp 4"),
        ("predict", "m --hardware 8xH100 -tp 4", "m --hardware 8xH100 --tp 4"),
        ("size", "m --gpus 8xH100", "m --gpus H100 --total-gpus 8"),
        ("predict", "m --hardware p4de.24xlarge", "m --hardware a100_80gb_sxm --tp 8"),
        ("simulate", "m --trace a.csv", "m --workload a.csv"),
        ("simulate", "m --engine vllm,sglang", "m --policy vllm,sglang"),
        ("size", "m --policy sglang", "m --engine sglang"),
        (
            "simulate",
            "m --prefill-replicas 1 --decode-replicas 2",
            "m --prefill-replicas 1 --replicas 2",
        ),
        ("size", "m --gpus 8xH100,l40s", "m --gpus 8xH100,l40s"),
        ("simulate", "m --hardware 8xH100", "m --hardware 8xH100"),
        ("simulate", "m --hardware 8xH100 --tp 2", "m --hardware H100 --replicas 4 --tp 2"),
        ("simulate", "m --hardware=8xH100 --replicas=8", "m --hardware=H100 --tp 1 --replicas=8"),
        ("simulate", "m --hardware 8xH100 --tp 3", "m --hardware 8xH100 --tp 3"),
        ("simulate", "m --hardware 8xH100 --tp 1,2", "m --hardware 8xH100 --tp 1,2"),
        ("simulate", "m --hardware 8xH100 --tp 2 --pp 2", "m --hardware 8xH100 --tp 2 --pp 2"),
        *(
            (verb, f"m --hardware 8xH100 {words}", f"m --hardware 8xH100 {words}")
            for verb, words in (
                ("simulate", "--tp 2 --pipeline-parallel-size 2"),
                ("capacity", "--tp 2 --prefill-replicas 2"),
                ("predict", "--pp 2"),
            )
        ),
        ("simulate", "m --input 1000 --output 100", "m --workload 1000x100"),
        ("simulate", "m --output x.json", "m --output x.json"),
        ("predict", "m --max-concurrency 16", "m --batch 16"),
        (
            "simulate",
            "m --enable-prefix-caching --no-enable-chunked-prefill",
            "m --set enable_prefix_caching=true --set enable_chunked_prefill=false",
        ),
        (
            "simulate",
            "m --scheduling_policy priority --num-speculative-tokens=3",
            "m --set policy=priority --set num_speculative_tokens=3",
        ),
        ("predict", "m --enable-prefix-caching", "m --enable-prefix-caching"),
        ("load", "-u http://h:1 -c 8 -n 100", "http://h:1 --concurrency 8 --requests 100"),
    ],
)
def test_a_flag_of_another_tool_is_taken_as_ours(verb, typed, read):
    assert in_our_words(typed.split(), command(verb)) == read.split()


def test_devices_are_counted_with_a_space_too():
    predict = command("predict")
    assert in_our_words(["m", "--hardware", "8 H100"], predict) == [
        *("m", "--hardware", "H100", "--tp", "8")
    ]
    assert in_our_words(["--gpu=8x H100 SXM", "m"], predict) == [
        *("--hardware=H100 SXM", "--tp", "8", "m")
    ]


@pytest.mark.parametrize(
    ("flags", "counted"),
    [
        (["--dp", "8"], ["--hardware", "H200", "--tp", "1", "--data-parallel-size", "8"]),
        (["--dp", "4"], ["--hardware", "H200", "--tp", "2", "--data-parallel-size", "4"]),
        (["--dp", "3"], ["--hardware", "8xH200", "--data-parallel-size", "3"]),
        (
            ["--dp", "4", "--tp", "2"],
            ["--hardware", "H200", "--tp", "2", "--data-parallel-size", "4", "--tp", "2"],
        ),
        (
            ["--dp", "2", "--tp", "2"],
            ["--hardware", "8xH200", "--data-parallel-size", "2", "--tp", "2"],
        ),
    ],
)
def test_devices_that_are_counted_are_those_of_all_ranks(flags, counted):
    words = in_our_words(["m", "--hardware", "8xH200", *flags], command("simulate"))
    assert words == ["m", *counted]


@pytest.mark.parametrize("typed", ["--isl 512", "--osl 128", "--isl 5 --osl 6 --workload chat"])
def test_lengths_that_are_no_workload_are_refused(typed):
    with pytest.raises(SpecError, match="length"):
        in_our_words(typed.split(), command("simulate"))


@pytest.mark.parametrize(
    ("words", "try_"),
    [
        ("simulate llama-2-7b --hardware h100 --speculative-config {}", "--speculative eagle:3"),
        ("simulate llama-2-7b --hardware h100 --speculative eagle3", "--speculative eagle:3"),
        (
            "simulate llama-2-7b --hardware h100 --speculative ngram:3 --policy sglang",
            "the same command without --speculative",
        ),
        ("simulate m --speculative-algorithm EAGLE", "--speculative eagle:3 (ngram"),
        ("predict llama-2-7b --hardware h100 --speculative-config {}", "--speculative eagle"),
        ("predict m --enable-expert-parallel", "--ep"),
        ("simulate m --enable-expert-parallel", "--ep"),
        ("predict m --hardwar h100", "--hardware"),
        ("predict m --precision fp8", "--quantization"),
        ("load u --percentile-metrics ttft", "leave it out: p50 to p99"),
        ("load u --rate-type constant", "--rate 5 (Poisson; --burstiness X"),
        ("load u --random-range-ratio 0.5", "--workload prompt=512..2048,output=256"),
        ("load u --random-prefix-len 9", "--workload prompt=1024,output=256,prefix=512"),
        ("load u --num-warmups 3", "leave it out: the end of the warm-up is found"),
        ("load u --ignore-eos", "leave it out: the default; --respect-eos"),
        ("load u --temperature 0", "--body temperature=0"),
        ("load u --port 80", "the URL with its port"),
        ("load u --goodput ttft:9", "--slo 'ttft:p95<500ms, tpot:p95<50ms'"),
        ("predict m --num-gpus 8", "--tp"),
        ("simulate m --num-gpus 8", "--tp or --replicas"),
        ("predict llama-3.1-8b --hardware h100 --gpus 8", "--hardware h100_sxm --tp 8"),
        ("predict llama-3.1-8b --hardware cpu", "--hardware this"),
        ("size llama-3.1-8b --rate 1 --slo ttft:p95<1s --gpus 8", "--gpus h100_sxm --total-gpus 8"),
        ("predict m --out a.csv", "--csv > FILE, --json > FILE, or a page: --report FILE"),
        ("study batch m --csv a.csv", "--csv > a.csv"),
        ("predict m --what-if yes", "--what-if"),
        ("predict m --context 32k", "--prompt 32k: with --output it is the context"),
        ("predict m --workload chat", "--prompt 1024 --output 256; traffic: inferometer simulate"),
        ("study batch m --workload 512x128", "--prompt 1024 --output 256; traffic"),
        ("predict m --price 2", "--usd-per-hour 2.5"),
        ("predict m --energy", "leave it out: energy and cost are in the answer"),
        ("simulate m --lora", "leave it out: LoRA adapters are not simulated"),
        ("size m --kv-offload 9", "leave it out: KV caches beyond the device's memory"),
        ("simulate m --enable-dp-attention", "--data-parallel-size 8 --tp 1"),
        ("simulate m --prefix-caching", "--workload prompt=1024,output=256,prefix=512"),
        ("load u --turns 5", "--workload with a file of sessions"),
        ("size m --within 8h", "--rate 1M/8h --slo 'e2e:p95<1h'"),
        ("predict m --dp 2", "inferometer simulate MODEL --data-parallel-size VALUE"),
        ("predict m --datasheet --replicas 2", "inferometer simulate MODEL --replicas VALUE"),
    ],
)
def test_a_flag_that_is_none_is_answered_with_what_means_it_or_with_help(words, try_, tmp_path):
    check_refused(run(*words.split(), folder=tmp_path), 2, f"try: {try_}")


@pytest.mark.parametrize(
    ("words", "try_"),
    [
        ("predict llama-2-7b --hardware h100 --prompt 9000", "a shorter --prompt or --output"),
        ("predict llama-2-7b --hardware h100 --prefix-hit 1", "--prefix-hit 0.5"),
        (
            "simulate llama-2-7b --hardware h100 --rate 1 --concurrency 2",
            "the same command without --concurrency",
        ),
        (
            "load http://127.0.0.1:9 --concurrency 1 --max-concurrency 2",
            "the same command without --max-concurrency",
        ),
        ("simulate m --isl 5 --osl 6 --workload chat", "the same command without --workload"),
        ("simulate llama-2-7b --hardware h100 --set kv_cache_dtype=fp8", "--kv-cache-dtype fp8"),
        ("simulate llama-2-7b --hardware h100 --set data_parallel_size=2", "--data-parallel-size"),
        ("simulate llama-2-7b --hardware h100 --set enforce_eager=true", "--enforce-eager"),
        (
            "simulate llama-2-7b --hardware h100 --set enforce_eager=false",
            "the same command without --set enforce_eager=false",
        ),
        (
            "simulate llama-2-7b --hardware h100 --policy sglang --set max_num_seqs=8",
            "--max-num-seqs 8",
        ),
        (
            "size llama-2-7b --gpus h100 --rate 1 --slo ttft:p95<1s --set tensor_parallel_size=1,2",
            "--tp 1,2",
        ),
        ("emulate llama-2-7b --hardware h100 --time-scale 0", "--time-scale 1"),
        ("emulate llama-2-7b --hardware h100 --fault http-429:0.1.2", "--fault http-429:0.05"),
        ("emulate llama-2-7b --hardware h100 --fault stall(after=x)", "--fault 'stall:0.01(after"),
    ],
)
def test_values_that_cannot_be_are_answered_with_what_can(words, try_, tmp_path):
    check_refused(run(*words.split(), folder=tmp_path), 2, f"try: {try_}")


def test_our_own_flags_are_never_read_as_others():
    for verb in VERBS:
        made = command(verb)
        words = [flag for one in made.params if isinstance(one, click.Option) for flag in one.opts]
        assert in_our_words(words, made) == words, verb


def test_a_flag_given_twice_loses_no_value_in_silence(tmp_path):
    """Before, an SLO of two flags lost the first."""
    sizes = ("--slo", "ttft:p95<1s", "--slo", "tpot:p95<50ms")
    outcome = run("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", *sizes, folder=tmp_path)
    check_refused(outcome, 2, "given 2 times", "--slo 'ttft:p95<1s, tpot:p95<50ms'")
    device = ("--hardware", "l4", "--json")
    outcome = run("predict", "llama-3.1-8b", *device, "--batch", "1", "--batch=8", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "--batch is given 2 times: 1, 8; the last one counts; for each of them" in outcome.stderr
    outcome = run("catalog", "models", "--json", "--json", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--tp 2 --tensor-parallel-size=4", "--tp 2, --tensor-parallel-size 4 are one option"),
        ("--rate 2 --request-rate 3", "--rate is given 2 times: 2, 3"),
        ("--input-len 8 --output-len 9 --isl 16", "--input-len 8, --isl 16 are one option"),
        ("--set a=1 --set b=1 --set a=2", "--set a=1, --set a=2 are one setting"),
    ],
)
def test_two_names_of_one_flag_lose_no_value_in_silence(words, text, capsys):
    """Before, the value under the first name was lost."""
    made = command("simulate")
    check_given(in_our_words(words.split(), made), made)
    assert f"{text}; the last one counts" in capsys.readouterr().err


def test_a_switch_and_its_opposite_are_two_values_of_one_option(capsys):
    made = click.Command("verb", params=[click.Option(["--shared/--apart"]), click.Option(["-v"])])
    check_given(["--shared", "--shared"], made)
    assert not capsys.readouterr().err
    check_given(["--shared", "--apart"], made)
    assert "--shared, --apart are one option; the last one counts" in capsys.readouterr().err


def test_one_value_under_two_names_is_no_news(capsys):
    same = ["--tp", "2", "--tensor-parallel-size", "2", "--set", "a=1", "--set", "a=1"]
    check_given(same, command("simulate"))
    assert not capsys.readouterr().err


def test_a_flag_is_no_value_of_the_flag_before_it(tmp_path):
    """Before, `--out --json` wrote into a folder of that name."""
    outcome = run("import", "bench.json", "--out", "--json", folder=tmp_path)
    check_refused(outcome, 2, "--out has no value: --json follows it")


@pytest.mark.parametrize(
    ("verb", "typed", "read"),
    [
        ("simulate", "vllm serve m -tp 2 --port 1", "m --policy vllm --tp 2"),
        (
            "size",
            "trtllm-serve m --max_batch_size 64",
            "m --engine trtllm --max-num-seqs 64",
        ),
        (
            "capacity",
            "vllm serve m --no-enable-prefix-caching --kv-cache-dtype fp8",
            "m --policy vllm --set enable_prefix_caching=false --kv-cache-dtype fp8",
        ),
        ("simulate", "vllm serve m --enforce-eager", "m --policy vllm --enforce-eager"),
        (
            "simulate",
            """vllm serve m --speculative-config '{"method":"ngram"}'""",
            """m --policy vllm --speculative {"method":"ngram"}""",
        ),
        (
            "simulate",
            "sglang serve --model-path m --disable-cuda-graph",
            "m --policy sglang --enforce-eager",
        ),
    ],
)
def test_a_start_command_is_its_model_and_its_flags(verb, typed, read):
    assert in_our_words([typed, "--rate", "1"], command(verb)) == [*read.split(), "--rate", "1"]


def test_a_start_command_as_a_flag_s_value_stays():
    words = ["m", "--start", "vllm serve m --port 1"]
    assert in_our_words(words, command("tune")) == words


def test_a_flag_of_a_start_command_without_a_meaning_is_refused_with_the_rest():
    with pytest.raises(SpecError, match="--cpu-offload-gb of the server's command") as refused:
        in_our_words(["vllm serve m --cpu-offload-gb 4 -tp 2"], command("simulate"))
    assert refused.value.try_ == "inferometer simulate 'vllm serve m -tp 2'"


def test_all_flags_of_a_start_command_without_a_meaning_are_refused_at_once():
    words = "vllm serve m --cpu_offload_gb 4 -tp 2 --num-scheduler-steps=8"
    with pytest.raises(SpecError, match="--cpu-offload-gb, --num-scheduler-steps of") as refused:
        in_our_words([words], command("simulate"))
    assert refused.value.try_ == "inferometer simulate 'vllm serve m -tp 2'"


def test_flags_that_choose_kernels_are_named(capsys):
    in_our_words(["vllm serve m --attention-backend FLASHINFER"], command("simulate"))
    assert "usual kernels, not of --attention-backend" in capsys.readouterr().err


_BENCHMARK = (
    "vllm bench serve --backend vllm --model other --base-url http://h:1 --dataset-name random"
    " --random-input-len 64 --random-output-len 32 --request-rate 4 --percentile-metrics ttft"
)


def test_a_benchmarks_command_is_the_traffic_of_a_simulation():
    words = in_our_words(["llama-3.1-8b", "--hardware", "l4", _BENCHMARK], command("simulate"))
    assert words == [*("llama-3.1-8b", "--hardware", "l4", "--rate", "4", "--workload", "64x32")]


def test_a_benchmarks_command_alone_names_the_model_or_the_server():
    assert "other" in in_our_words([_BENCHMARK], command("simulate"))
    assert "other" in in_our_words(["--hardware", "l4", _BENCHMARK], command("simulate"))
    assert "http://h:1" in in_our_words([_BENCHMARK], command("load"))


def test_a_start_command_needs_no_quotes():
    words = [
        "vllm",
        "serve",
        "Qwen/Qwen3-8B",
        "--port",
        "80",
        "--dtype",
        "auto",
        "--hardware",
        "l4",
        "--rate",
        "2",
    ]
    found = in_our_words(words, command("simulate"))
    assert found[0] == "Qwen/Qwen3-8B"
    assert found[-4:] == ["--hardware", "l4", "--rate", "2"]
    assert "--port" not in found
    assert "--dtype" not in found


def test_a_start_command_without_an_unknown_flag_has_no_value_of_it():
    """The value in quotes of a flag that was left out stayed behind."""
    with pytest.raises(SpecError) as raised:
        in_our_words(["vllm serve m --foo-bar '{\"a\": 1}' --port 1"], command("simulate"))
    assert raised.value.try_ == "inferometer simulate 'vllm serve m --port 1'"


def test_a_share_of_memory_among_the_settings_is_the_option():
    """Published start commands of SGLang hold it; it was refused with the option's name."""
    names = {"set": "set", "gpu_memory_utilization": "gpu_memory_utilization"}
    settings = ("mem_fraction_static=0.8", "schedule_policy=fcfs")
    found = in_our_names({"set": settings}, names)
    assert found == {"set": settings[1:], "gpu_memory_utilization": 0.8}
    twice = {"set": settings, "gpu_memory_utilization": 0.9}
    assert in_our_names(twice, names) == twice
    assert in_our_names({"set": ("mem_fraction_static=most",)}, names)["set"] == (
        "mem_fraction_static=most",
    )
