"""Clients that ask a server as fast as it answers, each over a connection of its own.

    python benchmarks/servers/clients.py PORT SECONDS SENTENCES KIND=CONNECTIONS ...

In: how many connections of which kind; a request of `short` has one sentence, of `long` twenty. Out: JSON on standard
output: for each kind the seconds that each request took, the sentences that were answered and the words that these
answers have, and faults by status.
"""

import json
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from itertools import count
from pathlib import Path

SENTENCES = {"short": 1, "long": 20}


class Clients:
    """All connections of one kind."""

    def __init__(self, kind: str, port: int, sentences: list[str]) -> None:
        self.kind, self.port, self.sentences = kind, port, sentences
        self.latencies: list[float] = []
        self.num_sentences = self.num_words = 0
        self.faults: Counter[str] = Counter()

    def run(self, first: int, until: float) -> None:
        """One connection until the time is over; what was begun before counts."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        size = SENTENCES[self.kind]
        for turn in count():
            began = time.monotonic()
            if began >= until:
                break
            start = (first + turn * 977) % (len(self.sentences) - size)
            texts = self.sentences[start : start + size]
            body = json.dumps({"q": texts, "source": "en", "target": "xx"})
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            outputs = json.loads(answer)["translatedText"] if response.status == 200 else []
            if len(outputs) != size:
                self.faults[str(response.status)] += 1
                continue
            self.latencies.append(time.monotonic() - began)
            self.num_sentences += size
            self.num_words += sum(len(output.split()) for output in outputs)
        connection.close()


def main() -> None:
    port, seconds, path, *wanted = sys.argv[1:]
    sentences = Path(path).read_text(encoding="utf-8").splitlines()
    kinds = [(word.partition("=")[0], int(word.partition("=")[2])) for word in wanted]
    clients = {kind: Clients(kind, int(port), sentences) for kind, _ in kinds}
    began = time.monotonic()
    threads = [
        threading.Thread(target=clients[kind].run, args=(37 * number, began + float(seconds)))
        for kind, connections in kinds
        for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = {
        kind: {
            "latencies": one.latencies,
            "sentences": one.num_sentences,
            "words": one.num_words,
            "faults": dict(one.faults),
        }
        for kind, one in clients.items()
    }
    sys.stdout.write(json.dumps({"seconds": time.monotonic() - began, "kinds": rows}))


if __name__ == "__main__":
    main()
