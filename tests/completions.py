"""A made-up completions server: what it says of a prompt depends on the prompt alone.

As a program it is the command of an engine `server`, for tests of everything around one:
`python completions.py --port PORT --model FOLDER [--seconds S] [--writes-only]`. Each answer to
more than a probe takes S seconds. It imports only the standard library, so that it starts at once.
"""

import argparse
import http.server
import json
import time
import zlib
from pathlib import Path
from typing import Any

VOCABULARY = 384
WORDS = ("the", " answer", " is", " yes", " no", " Paris", " 42", "\n", " x")
UNKNOWN = {"logprob_token_ids"}
"""What the program does not take: as most servers."""


def _logprob(before: list[int], token: int) -> float:
    return -0.01 - zlib.crc32(json.dumps([before[-8:], len(before), token]).encode()) / 2**30


def complete(body: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request for a completion of token ids, or of a text as its bytes."""
    prompt = body["prompt"]
    prompt = list(prompt.encode()) if isinstance(prompt, str) else prompt
    drawn = [body.get("temperature"), body.get("seed")] if body.get("temperature") else []
    number = zlib.crc32(json.dumps([prompt, drawn]).encode())
    count = min(1 + number % 24, body["max_tokens"])
    ids = [(number >> n % 24) % len(WORDS) for n in range(count)]
    text = "".join(WORDS[each] for each in ids)
    finish = "length" if count == body["max_tokens"] else "stop"
    for stop in body.get("stop") or ():
        if stop in text:
            text, finish = text[: text.index(stop)], "stop"
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
    own = [_logprob(prompt[:n], token) for n, token in enumerate(prompt)]
    best = [max(o, _logprob(prompt[:n], 0)) for n, o in enumerate(own)]
    if body.get("echo"):
        choice["logprobs"] = {
            "tokens": [str(each) for each in [*prompt, *ids]],
            "token_logprobs": [None, *own[1:], *[-1.0] * count],
            "top_logprobs": [None, *[{"x": each} for each in best[1:]], *[{"x": -1.0}] * count],
        }
    if "prompt_logprobs" in body:
        choice["prompt_logprobs"] = [
            None,
            *(
                {str(token): {"logprob": o}, "-1": {"logprob": b}}
                for token, o, b in zip(prompt[1:], own[1:], best[1:], strict=True)
            ),
        ]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
    return {"object": "text_completion", "choices": [choice], "usage": usage}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seconds = 0.0

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "made-up"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if known := UNKNOWN & body.keys():
            self._send({"error": {"message": f"unknown parameter {min(known)}"}}, 400)
            return
        time.sleep(self.seconds * (len(body["prompt"]) > 4))
        self._send(complete(body))

    def _send(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--writes-only", action="store_true")
    asked = parser.parse_args()
    assert (asked.model / "config.json").exists()
    _Handler.seconds = asked.seconds
    UNKNOWN.update({"prompt_logprobs", "echo"} if asked.writes_only else ())
    with http.server.ThreadingHTTPServer(("127.0.0.1", asked.port), _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
