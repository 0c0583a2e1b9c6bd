"""CTranslate2 behind the simplest FastAPI server: a request is a call.

    python benchmarks/servers/simple.py COPY PORT WORKERS THREADS PRECISION TOKENS

`def` and not `async def`, so that FastAPI runs calls in threads; CTranslate2 shares them out among its own workers.
"""

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI


def main() -> None:
    copy, port, workers, threads, precision, tokens = sys.argv[1:]
    sys.path.insert(0, str(Path(copy)))
    from translate import Exported

    exported: Any = Exported(copy, inter_threads=int(workers), intra_threads=int(threads), compute_type=precision)
    app = FastAPI()

    def translate(body: dict[str, Any]) -> dict[str, Any]:
        rows = [exported.encode(text) for text in body["q"]]
        results = exported.translator.translate_batch(
            rows,
            beam_size=5,
            length_penalty=1,
            suppress_sequences=[[token] for token in exported.settings["suppress"]],
            min_decoding_length=int(tokens),
            max_decoding_length=int(tokens),
            max_batch_size=64,
        )
        return {"translatedText": [exported.decode(result.hypotheses[0]) for result in results]}

    app.add_api_route("/translate", translate, methods=["POST"], response_model=None)
    uvicorn.run(app, port=int(port), log_level="error")


if __name__ == "__main__":
    main()
