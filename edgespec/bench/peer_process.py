"""A peer in a process of its own: reads requests from standard input, a JSON line each.

Run by an interpreter that has the peer's package and perhaps not edgespec: it imports nothing of
ours. Each peer is given its threads, and every setting that is known to do it good.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PEERS = {
    "genai": "onnxruntime-genai",
    "llamacpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "transformers": "transformers torch",
}
"""Name of each peer, and what to install for it."""

MARK = "edgespec-bench:"
"""Begins the lines that are answers."""

Answer = tuple[str, int, float, float]
"""The text, its tokens, seconds of the prefill with the first token, seconds of the others."""
Write = Callable[[str, int], Answer]


def genai(model: str, threads: int) -> dict[str, Write]:
    """onnxruntime-genai, on a copy of the folder whose configuration sets the threads."""
    import onnxruntime_genai as og

    source = Path(model)
    copy = Path(tempfile.mkdtemp()) / "model"
    copy.mkdir()
    for path in source.iterdir():
        if path.name != "genai_config.json":
            (copy / path.name).symlink_to(path.resolve())
    config = json.loads((source / "genai_config.json").read_text(encoding="utf-8"))
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (copy / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = og.Model(str(copy))
    tokenizer = og.Tokenizer(loaded)

    def write(prompt: str, tokens: int, speculation: dict[str, Any]) -> Answer:
        messages = json.dumps([{"role": "user", "content": prompt}])
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        ids = tokenizer.encode(text)
        params = og.GeneratorParams(loaded)
        params.set_search_options(max_length=len(ids) + tokens, do_sample=False)
        if speculation:
            params.set_speculative_options(**speculation)
        generator = og.Generator(loaded, params)
        began = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        first = time.perf_counter()
        told = [int(generator.get_next_tokens()[0])]
        while not generator.is_done():
            generator.generate_next_token()
            told.append(int(generator.get_next_tokens()[0]))
        return tokenizer.decode(told), len(told), first - began, time.perf_counter() - first

    def n_gram(**settings: Any) -> Write:
        return lambda prompt, tokens: write(prompt, tokens, settings)

    chained = {"ngram_size": 4, "ngram_chained_lookup": True}
    adaptive = {**chained, "max_draft_tokens": 8, "min_adaptive_k": 2, "cooldown": True}
    return {
        "plain": n_gram(),
        "adaptive n-gram": n_gram(**adaptive),
        **{f"n-gram {k}": n_gram(**chained, max_draft_tokens=k) for k in (2, 4, 8, 16)},
    }


def llamacpp(model: str, threads: int) -> dict[str, Write]:
    """llama-cpp-python on a GGUF file; a loaded model for each way, as it fixes the draft."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    loaded: dict[int, Any] = {}

    def write(prompt: str, tokens: int, lookup: int) -> Answer:
        if lookup not in loaded:
            draft = None
            if lookup:
                draft = LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=lookup)
            loaded[lookup] = Llama(
                model,
                n_ctx=2048,
                n_threads=threads,
                n_threads_batch=threads,
                draft_model=draft,
                verbose=False,
            )
        llama = loaded[lookup]
        llama.reset()
        began = time.perf_counter()
        text, stamps = "", []
        for chunk in llama.create_chat_completion(
            [{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0.0,
            repeat_penalty=1.0,
            stream=True,
        ):
            piece = chunk["choices"][0]["delta"].get("content")
            if piece:
                text += piece
                stamps.append(time.perf_counter())
        count = len(llama.tokenize(text.encode(), add_bos=False))
        return text, count, stamps[0] - began, stamps[-1] - stamps[0]

    def looking_up(count: int) -> Write:
        return lambda prompt, tokens: write(prompt, tokens, count)

    return {"plain": looking_up(0), **{f"lookup {k}": looking_up(k) for k in (2, 5, 10)}}


def openvino(model: str, threads: int) -> dict[str, Write]:
    """OpenVINO GenAI on a GGUF file or a folder in its own form."""
    import openvino_genai

    pipes: dict[bool, Any] = {}

    def write(prompt: str, tokens: int, lookup: int) -> Answer:
        if bool(lookup) not in pipes:
            kind = {"prompt_lookup": True} if lookup else {}
            pipes[bool(lookup)] = openvino_genai.LLMPipeline(
                model, "CPU", INFERENCE_NUM_THREADS=threads, **kind
            )
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = lookup, 3
        history = openvino_genai.ChatHistory()
        history.append({"role": "user", "content": prompt})
        output = pipes[bool(lookup)].generate(history, config)
        metrics = output.perf_metrics
        first = metrics.get_ttft().mean / 1000
        total = metrics.get_generate_duration().mean / 1000
        return str(output.texts[0]), metrics.get_num_generated_tokens(), first, total - first

    def looking_up(count: int) -> Write:
        return lambda prompt, tokens: write(prompt, tokens, count)

    return {"plain": looking_up(0), "lookup 2": looking_up(2), "lookup 5": looking_up(5)}


def transformers(model: str, threads: int) -> dict[str, Write]:
    """The library transformers on PyTorch, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def write(prompt: str, tokens: int, options: dict[str, Any]) -> Answer:
        text = prompt
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        special = not tokenizer.chat_template  # a template spells them out
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=special)
        began = time.perf_counter()
        loaded.generate(**ids, max_new_tokens=1, do_sample=False)
        first = time.perf_counter()
        output = loaded.generate(**ids, max_new_tokens=tokens, do_sample=False, **options)
        took = time.perf_counter() - first - (first - began)  # it reads the prompt again
        new = output[0][ids["input_ids"].shape[1] :]
        told = tokenizer.decode(new, skip_special_tokens=True)
        return told, len(new), first - began, took

    def looking_up(**options: Any) -> Write:
        return lambda prompt, tokens: write(prompt, tokens, options)

    return {"plain": looking_up(), "lookup 10": looking_up(prompt_lookup_num_tokens=10)}


def serve(methods: dict[str, Write], requests: Iterable[str]) -> None:
    """Answer until the input ends."""
    _say({"methods": list(methods)})
    for line in requests:
        asked = json.loads(line)
        text, count, prefill_s, decode_s = methods[asked["method"]](
            asked["prompt"], asked["max_new_tokens"]
        )
        # The first token comes with the prefill.
        speed = (count - 1) / decode_s if decode_s > 0 else 0.0
        _say({"text": text, "tokens_per_s": speed, "prefill_s": prefill_s})


def _say(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    engine, model, threads = sys.argv[1:]
    engines = {f.__name__: f for f in (genai, llamacpp, openvino, transformers)}
    serve(engines[engine](model, int(threads)), sys.stdin)
