"""Ask a server of `vllm serve` through the OpenAI client.

usage: python chat_client.py [URL] [QUESTION]
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(
    url: str = "http://localhost:8000/v1", question: str = "What is the capital of France?"
) -> None:
    client = OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=32,
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
