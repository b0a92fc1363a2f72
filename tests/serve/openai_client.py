"""Asks an emulated server through OpenAI's own client, in an environment that has it; prints what came as JSON."""

import json
import sys


def main(url):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    whole = client.completions.create(
        model=model, prompt="one two three", max_tokens=5, extra_body={"ignore_eos": True}
    )
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "one two"}], max_completion_tokens=4
    )
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": "one two"}]}],
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    try:
        client.completions.create(model="other", prompt="x")
    except openai.NotFoundError as error:
        refused = error.message
    try:
        client.completions.create(model=model, prompt="x " * 100_000)
    except openai.BadRequestError as error:
        too_long = error.message
    return {
        "model": model,
        "whole": whole.model_dump(),
        "chat": chat.model_dump(),
        "role": chunks[0].choices[0].delta.role,
        "text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "finish_reason": chunks[-2].choices[0].finish_reason,
        "usage": chunks[-1].usage.model_dump(),
        "refused": refused,
        "too_long": too_long,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 -- what the test reads
